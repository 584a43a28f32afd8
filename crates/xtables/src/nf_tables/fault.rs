//! Classifies errors of the nf_tables variant by how to react.

use std::io;

use netlink::nf_tables::{Expression, Extension, ExtensionKind, Operation, Transaction};
use netlink::{CommitError, ObserveError, Refusal};
use rustix::io::Errno;

use crate::Fault;
use crate::error::FailedOperation;

/// How to react to a transaction that did not take effect.
pub(super) fn of_writing(error: &CommitError, transaction: &Transaction) -> Fault {
    let (at, source) = match error {
        // It is unknown what the kernel did.
        CommitError::Socket { .. } => return Fault::Changed,
        CommitError::Refused { at, source } => (*at, source),
    };
    match (Errno::from_io_error(source), operation_at(at, transaction)) {
        // Another rule still leads to the chain.
        (Some(Errno::BUSY), Some(Operation::DeleteChain(_))) => Fault::Changed,
        // The table exists or is added earlier in the transaction, so the kernel lacks chains of
        // that type.
        (Some(Errno::NOENT), Some(Operation::AddChain(chain))) if chain.hook.is_some() => {
            Fault::Impossible
        }
        _ => of(source, FailedOperation::Writing),
    }
}

/// How to react to a listing that failed.
pub(super) fn of_reading(error: &ObserveError) -> Fault {
    let source = match error {
        ObserveError::Unsteady { .. } => return Fault::Passing,
        ObserveError::Socket { .. } | ObserveError::Foreign { .. } => return Fault::Changed,
        ObserveError::Refused { source, .. } => source,
    };
    of(source, FailedOperation::Reading)
}

fn of(source: &io::Error, doing: FailedOperation) -> Fault {
    match Errno::from_io_error(source) {
        // An object that is addressed by its name was created or deleted.
        Some(Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY) => Fault::Changed,
        _ => Fault::of(source, doing),
    }
}

/// Whether another program's transaction came before one that is bound to a generation.
pub(super) fn is_overtaken(error: &CommitError) -> bool {
    has_errno(error, Errno::RESTART)
}

/// Whether a smaller transaction might succeed: the kernel ran out of memory for it, or it exceeds
/// the socket's buffer.
pub(super) fn is_of_size(error: &CommitError) -> bool {
    [Errno::NOMEM, Errno::NOBUFS, Errno::MSGSIZE]
        .into_iter()
        .any(|errno| has_errno(error, errno))
}

/// The matches and targets of the rule for which the kernel reported that something is missing.
pub(super) fn doubtful_extensions<'a>(
    error: &CommitError,
    transaction: &'a Transaction,
) -> Vec<Extension<'a>> {
    let rule = match error {
        CommitError::Refused { at, .. } if has_errno(error, Errno::NOENT) => {
            match operation_at(*at, transaction) {
                Some(Operation::AddRule { rule, .. } | Operation::InsertRule { rule, .. }) => rule,
                _ => return Vec::new(),
            }
        }
        _ => return Vec::new(),
    };
    let extensions = rule.expressions.iter().filter_map(|expression| {
        let (kind, module) = match expression {
            Expression::Match(module) => (ExtensionKind::Match, module),
            Expression::Target(module) => (ExtensionKind::Target, module),
            _ => return None,
        };
        Some(Extension {
            kind,
            name: &module.name,
            revision: module.revision,
        })
    });
    extensions.collect()
}

fn has_errno(error: &CommitError, errno: Errno) -> bool {
    match error {
        CommitError::Refused { source, .. } => Errno::from_io_error(source) == Some(errno),
        CommitError::Socket { .. } => false,
    }
}

/// The operation that the kernel refused. Message 0 begins the transaction; then follows one
/// message for each operation.
fn operation_at(at: Refusal, transaction: &Transaction) -> Option<&Operation> {
    let Refusal::Message(number) = at else {
        return None;
    };
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    transaction.operations.get(number.wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use netlink::nf_tables::Family;

    use super::*;
    use crate::nf_tables::chains::base_chain;
    use crate::nf_tables::encode::encode;
    use crate::{BuiltIn, Rule, TableName, Target};

    fn refused(number: u32, errno: Errno) -> CommitError {
        CommitError::Refused {
            at: Refusal::Message(number),
            source: errno.into(),
        }
    }

    #[test]
    fn busy_passes_unless_it_is_a_chain_that_is_still_led_to() {
        let mut transaction = Transaction::new(Family::Ipv4, "nat".into());
        transaction.operations = vec![
            Operation::FlushChain("SIGNPOST-X".into()),
            Operation::DeleteChain("SIGNPOST-X".into()),
        ];
        let of = |error| of_writing(&error, &transaction);
        assert_eq!(of(refused(1, Errno::BUSY)), Fault::Passing);
        assert_eq!(of(refused(2, Errno::BUSY)), Fault::Changed);
        assert_eq!(of(refused(3, Errno::BUSY)), Fault::Passing);
        assert_eq!(of(refused(2, Errno::NOMEM)), Fault::Passing);
        assert_eq!(of(refused(2, Errno::NOENT)), Fault::Changed);
        assert_eq!(of(refused(2, Errno::PERM)), Fault::Impossible);
        assert_eq!(of(refused(2, Errno::LOOP)), Fault::Refused);
        let lost = CommitError::Socket {
            step: "receive from",
            source: io::ErrorKind::TimedOut.into(),
        };
        assert_eq!(of(lost), Fault::Changed);
    }

    /// Regression test: one Service with 6,000 endpoints and affinity, in a user namespace, where a
    /// send buffer is at most `net.core.wmem_max`. All other Services waited for it forever.
    #[test]
    fn what_is_too_long_to_be_sent_is_refused() {
        let too_long = CommitError::Refused {
            at: Refusal::Length,
            source: Errno::MSGSIZE.into(),
        };
        let transaction = Transaction::new(Family::Ipv4, "nat".into());
        assert_eq!(of_writing(&too_long, &transaction), Fault::Refused);
    }

    #[test]
    fn a_kernel_without_chains_of_a_type_is_distinguished_from_a_rule_without_a_module() {
        let mut transaction = Transaction::new(Family::Ipv4, "nat".into());
        let chain = base_chain(TableName::Nat, BuiltIn::Output);
        let rule = Rule::always(Target::Masquerade);
        transaction.operations = vec![
            Operation::AddChain(chain),
            Operation::AddRule {
                chain: "SIGNPOST-X".into(),
                rule: encode(&rule, crate::Family::Ipv4),
            },
        ];
        let of = |number| {
            let error = refused(number, Errno::NOENT);
            let doubtful = doubtful_extensions(&error, &transaction);
            let names = doubtful.iter().map(Extension::to_string).collect();
            (of_writing(&error, &transaction), names)
        };
        let (fault, names): (Fault, Vec<String>) = of(1);
        assert_eq!((fault, names.len()), (Fault::Impossible, 0));
        let (fault, names) = of(2);
        assert_eq!(fault, Fault::Changed);
        assert_eq!(names, ["target MASQUERADE (revision 0)"]);
    }

    #[test]
    fn a_kernel_without_nf_tables_is_no_passing_matter() {
        let of = |errno: Errno| {
            let what = "rules";
            let source = errno.into();
            of_reading(&ObserveError::Refused { what, source })
        };
        // The errno of nfnetlink_rcv_msg for a missing subsystem (net/netfilter/nfnetlink.c).
        assert_eq!(of(Errno::INVAL), Fault::Impossible);
        assert_eq!(of(Errno::NOENT), Fault::Changed);
        assert_eq!(of(Errno::NOBUFS), Fault::Passing);
        let unsteady = ObserveError::Unsteady { what: "rules" };
        assert_eq!(of_reading(&unsteady), Fault::Passing);
    }
}
