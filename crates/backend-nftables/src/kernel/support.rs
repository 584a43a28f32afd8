//! Checks whether the kernel supports what every Signpost table needs, independently of the
//! Services.

use backend::Rendered;
use dataplane::{Dataplane, Family};
use netlink::nf_tables::{ChainKind, Expression, Operation, Rule, Transaction};
use netlink::{CommitError, Refusal, Socket};
use rustix::io::Errno;

use crate::diff::diff;
use crate::layout::name;
use crate::render::render;
use crate::table::Table;

/// The name of a table in a transaction that is always rolled back, so that no process sees it.
const PROBE: &str = "signpost-probe";

/// Whether the kernel supports the fixed part of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Support {
    /// Not checked yet.
    Unknown,
    /// It does. If it refuses a change, some Service is the cause.
    Whole,
}

/// A kernel feature that every Signpost table needs and the kernel lacks.
#[derive(Debug, thiserror::Error)]
#[error("this kernel lacks {what}")]
pub(super) struct MissingFeature {
    what: String,
    source: CommitError,
}

/// Checks whether the kernel would accept a Signpost table without Services. Changes nothing.
pub(super) fn check(socket: &mut Socket, family: Family) -> Result<(), CommitError> {
    socket.check(&probe(family))
}

/// The transaction that creates such a table without elements, one message for each operation.
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

// === impl MissingFeature ===

impl MissingFeature {
    /// Derives the missing feature from the `error` of a check. Returns `None` if the kernel is
    /// busy or the process lacks the permission.
    pub(super) fn of(family: Family, error: CommitError) -> Option<MissingFeature> {
        let CommitError::Refused { at, source } = &error else {
            return None;
        };
        // The kernel looks up chain types and expressions by name, and families by number
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
            // Message 0 begins the batch.
            Refusal::Message(number) => usize::try_from(*number)
                .ok()
                .and_then(|number| probe.operations.get(number.checked_sub(1)?)),
            Refusal::Commit | Refusal::Length => None,
        };
        Some(MissingFeature {
            what: format!("{} for {family}", describe(family, operation)),
            source: error,
        })
    }
}

/// Describes the feature that `operation` needs, with its kernel module.
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

/// Describes the expressions that a kernel may support for only one family, or not at all.
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
            Expression::Counter => Some("nft_counter".to_owned()),
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
