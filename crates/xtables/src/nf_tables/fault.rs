//! What to do about what the kernel, or the way to it, refused.

use netlink::nf_tables::{Operation, Transaction};
use netlink::{CommitError, ObserveError, Refusal};
use rustix::io::Errno;

use crate::Fault;

/// What to do about a transaction that did not take effect.
pub(super) fn of_writing(error: &CommitError, transaction: &Transaction) -> Fault {
    let (at, source) = match error {
        // What the kernel did is not known.
        CommitError::Socket { .. } => return Fault::Changed,
        CommitError::Refused { at, source } => (*at, source),
    };
    match Errno::from_io_error(source) {
        // A chain that something still leads to.
        Some(Errno::BUSY) if is_removal(at, transaction) => Fault::Changed,
        Some(errno) => of_errno(errno),
        None => Fault::Refused,
    }
}

/// What to do about a listing that did not come.
pub(super) fn of_reading(error: &ObserveError) -> Fault {
    let source = match error {
        ObserveError::Unsteady { .. } => return Fault::Passing,
        ObserveError::Socket { .. } | ObserveError::Foreign { .. } => return Fault::Changed,
        ObserveError::Refused { source, .. } => source,
    };
    match Errno::from_io_error(source) {
        // What is asked is well formed: EINVAL is how a kernel says that it has no nf_tables
        // (nfnetlink_rcv_msg in net/netfilter/nfnetlink.c).
        Some(Errno::INVAL) => Fault::Impossible,
        Some(errno) => of_errno(errno),
        None => Fault::Changed,
    }
}

fn of_errno(errno: Errno) -> Fault {
    match errno {
        Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY => Fault::Changed,
        Errno::BUSY | Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS => Fault::Passing,
        Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::PROTONOSUPPORT => Fault::Impossible,
        _ => Fault::Refused,
    }
}

/// Whether the kernel refused to remove a chain. Message 0 begins the transaction, and each of our
/// operations is one message.
fn is_removal(at: Refusal, transaction: &Transaction) -> bool {
    let Refusal::Message(number) = at else {
        return false;
    };
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    let operation = transaction.operations.get(number.wrapping_sub(1));
    matches!(operation, Some(Operation::DeleteChain(_)))
}

#[cfg(test)]
mod tests {
    use std::io;

    use netlink::nf_tables::Family;

    use super::*;

    fn refused(number: u32, errno: Errno) -> CommitError {
        CommitError::Refused {
            at: Refusal::Message(number),
            source: errno.into(),
        }
    }

    #[test]
    fn busy_passes_unless_it_is_a_chain_that_is_still_led_to() {
        let mut transaction = Transaction::new(Family::Ip, "nat".into());
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

    #[test]
    fn a_kernel_without_nf_tables_is_no_passing_matter() {
        let of = |errno: Errno| {
            let what = "rules";
            let source = errno.into();
            of_reading(&ObserveError::Refused { what, source })
        };
        assert_eq!(of(Errno::INVAL), Fault::Impossible);
        assert_eq!(of(Errno::NOBUFS), Fault::Passing);
        let unsteady = ObserveError::Unsteady { what: "rules" };
        assert_eq!(of_reading(&unsteady), Fault::Passing);
    }
}
