//! What every Signpost table needs of the kernel, independently of the Services.

use backend::Rendered;
use dataplane::{Dataplane, Family};
use nftables_model::Probe;

use crate::diff::diff;
use crate::render::render;
use crate::table::Table;

/// A table without Services.
pub(super) fn probe(family: Family) -> Probe {
    let table = render(family, &Dataplane::default(), &Rendered::default());
    let change = diff(family, &Table::default(), &table);
    let transactions = change.transactions.into_iter();
    Probe::new(family, transactions.flat_map(|t| t.operations))
}

#[cfg(test)]
mod tests;
