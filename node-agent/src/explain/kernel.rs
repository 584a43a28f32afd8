//! What the kernel was seen to hold.

use std::collections::BTreeMap;

use backend::Backend;
use backend_nftables::Table;
use dataplane::Family;
use runtime::chain;

/// The tables of this network namespace, as they were when somebody asked.
#[derive(Debug)]
pub(crate) enum Kernel {
    /// Nobody looked: there is no kernel behind what is explained.
    NotAsked,
    /// Each family's table, or why it could not be read, with causes.
    Observed(BTreeMap<Family, Result<Table, String>>),
}

// === impl Kernel ===

impl Kernel {
    /// Reads both families' tables, over a socket of its own: whoever programs them is not
    /// disturbed. Blocks for about 0.1 s where there are 10,000 Services.
    pub(crate) fn observe() -> Kernel {
        let tables = match backend_nftables::open() {
            Ok(backends) => backends
                .into_iter()
                .map(|mut backend| {
                    let table = backend.observe();
                    let table = table.map_err(|error| chain(&error).to_string());
                    (backend.family(), table)
                })
                .collect(),
            Err(error) => {
                let error = chain(&error).to_string();
                Family::ALL
                    .map(|family| (family, Err(error.clone())))
                    .into()
            }
        };
        Kernel::Observed(tables)
    }

    /// One family's table, if it was read.
    pub(crate) fn table(&self, family: Family) -> Option<&Table> {
        match self {
            Kernel::NotAsked => None,
            Kernel::Observed(tables) => tables.get(&family)?.as_ref().ok(),
        }
    }
}
