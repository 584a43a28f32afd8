//! Whether this kernel has what every table of ours is made of, whatever the Services are.

use backend::Rendered;
use dataplane::{Dataplane, Family};
use netlink::nf_tables::{ChainKind, Expression, Operation, Rule, Transaction};
use netlink::{CommitError, Refusal, Socket};
use rustix::io::Errno;

use crate::diff::diff;
use crate::layout::name;
use crate::render::render;
use crate::table::Table;

/// The name of a table that is taken back before anybody sees it.
const PROBE: &str = "signpost-probe";

/// What is known of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Support {
    /// Nobody has asked.
    Unknown,
    /// It has everything. What it refuses it refuses for the sake of some Service.
    Whole,
}

/// Something that no table of ours can do without.
#[derive(Debug, thiserror::Error)]
#[error("this kernel lacks {what}")]
pub(super) struct Lacking {
    what: String,
    source: CommitError,
}

/// Asks whether the kernel would take a table of ours without any Service. Nothing comes of it.
pub(super) fn check(socket: &mut Socket, family: Family) -> Result<(), CommitError> {
    socket.check(&probe(family))
}

/// Everything that is always there but for elements: one message each.
fn probe(family: Family) -> Transaction {
    let table = render(family, &Dataplane::default(), &Rendered::default());
    let change = diff(family, &Table::default(), &table);
    let operations = change.transactions.into_iter().flat_map(|t| t.operations);
    let mut probe = Transaction::new(family, name(PROBE));
    probe.operations = operations
        .filter(|operation| !matches!(operation, Operation::AddElements { .. }))
        .collect();
    probe
}

// === impl Lacking ===

impl Lacking {
    /// What `error` of a check says of the kernel: nothing where that is busy, or this process may not.
    pub(super) fn of(family: Family, error: CommitError) -> Option<Lacking> {
        let CommitError::Refused { at, source } = &error else {
            return None;
        };
        // The type of a chain and an expression are looked up by name; a family is asked for as such
        // (nf_tables_newchain, nft_expr_type_get and nft_supported_family in
        // net/netfilter/nf_tables_api.c).
        if !matches!(
            Errno::from_io_error(source),
            Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::AFNOSUPPORT)
        ) {
            return None;
        }
        let probe = probe(family);
        let operation = match at {
            // The first message begins the batch.
            Refusal::Message(number) => usize::try_from(*number)
                .ok()
                .and_then(|number| probe.operations.get(number.checked_sub(1)?)),
            Refusal::Commit | Refusal::Length => None,
        };
        Some(Lacking {
            what: format!("{} for {family}", describe(family, operation)),
            source: error,
        })
    }
}

/// What the kernel is asked for, with the module that has it.
fn describe(family: Family, operation: Option<&Operation>) -> String {
    match operation {
        Some(Operation::AddChain(chain)) => match chain.hook.as_ref().map(|hook| hook.kind) {
            Some(ChainKind::Nat) => "chains of type nat (module nft_chain_nat)".to_owned(),
            Some(ChainKind::Route) => "chains of type route (module nf_tables)".to_owned(),
            Some(ChainKind::Filter) | None => "chains of type filter (module nf_tables)".to_owned(),
        },
        Some(Operation::AddSet(set)) => format!("sets like {set} (module nf_tables)"),
        Some(Operation::AddRule { rule, .. } | Operation::InsertRule { rule, .. }) => {
            describe_rule(family, rule)
        }
        _ => "tables (module nf_tables)".to_owned(),
    }
}

/// Expressions that a kernel may have for one family and not for the other, or not at all.
fn describe_rule(family: Family, rule: &Rule) -> String {
    let suffix = match family {
        Family::Ipv4 => "ipv4",
        Family::Ipv6 => "ipv6",
    };
    let modules = rule
        .expressions
        .iter()
        .filter_map(|expression| match expression {
            Expression::FibType { .. } => Some(format!("nft_fib_{suffix}")),
            Expression::Reject(_) => Some(format!("nft_reject_{suffix}")),
            Expression::Masquerade => Some("nft_masq".to_owned()),
            Expression::Nat { .. } => Some("nft_nat".to_owned()),
            Expression::Ct { .. } | Expression::SetCt { .. } => Some("nft_ct".to_owned()),
            _ => None,
        });
    let modules: Vec<String> = modules.collect();
    match modules.as_slice() {
        [] => format!("what rule `{rule}` is made of"),
        [module] => format!("what rule `{rule}` is made of (module {module})"),
        modules => format!(
            "what rule `{rule}` is made of (modules {})",
            modules.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests;
