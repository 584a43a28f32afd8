//! Checks whether the kernel supports what every table of a backend needs, independently of the
//! Services.

use dataplane::Family;
use netlink::nf_tables::{ChainKind, Expression, Operation, Rule, Transaction};
use netlink::{CommitError, Refusal, Socket};
use rustix::io::Errno;

use crate::key::name;

/// The name of a table in a transaction that is always rolled back, so that no process sees it.
const PROBE: &str = "signpost-probe";

/// Whether the kernel supports the fixed part of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// Not checked yet.
    Unknown,
    /// It does. If it refuses a change, some Service is the cause.
    Whole,
}

/// The transaction that creates a table without elements, one message for each operation.
#[derive(Debug)]
pub struct Probe(Transaction);

/// A kernel feature that every table of a backend needs and the kernel lacks.
#[derive(Debug, thiserror::Error)]
#[error("this kernel lacks {what}")]
pub struct MissingFeature {
    what: String,
    source: CommitError,
}

// === impl Support ===

impl Support {
    /// Returns the feature of `probe` that the kernel lacks, if the kernel names it. Does not ask
    /// again once the kernel has all of them.
    pub fn observe_missing(
        &mut self,
        socket: &mut Socket,
        probe: impl FnOnce() -> Probe,
    ) -> Option<MissingFeature> {
        if *self == Support::Whole {
            return None;
        }
        let probe = probe();
        match probe.check(socket) {
            Ok(()) => {
                *self = Support::Whole;
                None
            }
            Err(error) => probe.missing(error),
        }
    }
}

// === impl Probe ===

impl Probe {
    /// Of the operations that create a table without Services. Elements are left out.
    pub fn new(family: Family, operations: impl IntoIterator<Item = Operation>) -> Probe {
        let mut transaction = Transaction::new(family, name(PROBE));
        let operations = operations.into_iter();
        transaction.operations = operations
            .filter(|operation| !matches!(operation, Operation::AddElements { .. }))
            .collect();
        Probe(transaction)
    }

    /// The operations that the kernel is asked about.
    pub fn operations(&self) -> &[Operation] {
        &self.0.operations
    }

    /// Checks whether the kernel would accept the table. Changes nothing.
    pub fn check(&self, socket: &mut Socket) -> Result<(), CommitError> {
        socket.check(&self.0)
    }

    /// Derives the missing feature from the `error` of a check. Returns `None` if the kernel is
    /// busy or the process lacks the permission.
    pub fn missing(&self, error: CommitError) -> Option<MissingFeature> {
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
        let operation = match at {
            // Message 0 begins the batch.
            Refusal::Message(number) => usize::try_from(*number)
                .ok()
                .and_then(|number| self.operations().get(number.checked_sub(1)?)),
            Refusal::Commit | Refusal::Length => None,
        };
        let family = self.0.family;
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
        Some(Operation::AddFlowtable(_)) => "flowtables (module nf_flow_table_inet)".to_owned(),
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
            Expression::Hash { .. } => Some("nft_hash".to_owned()),
            Expression::Offload { .. } => Some("nft_flow_offload".to_owned()),
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
