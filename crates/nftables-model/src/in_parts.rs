//! Commits transactions that are too large for the kernel.

use netlink::CommitError;
use netlink::nf_tables::Transaction;
use rustix::io::Errno;

/// Commits `transaction`. If the kernel has no memory or no room for it, commits it in `halves`, and
/// these in halves again, until they cannot be split. A kernel that accepts nothing at all is tried
/// once for each halving. Returns how many transactions took effect, also on failure.
pub fn commit_in_parts(
    transaction: Transaction,
    halves: impl Fn(&Transaction) -> Option<[Transaction; 2]>,
    mut commit: impl FnMut(&Transaction) -> Result<(), CommitError>,
) -> (usize, Result<(), CommitError>) {
    let mut done = 0;
    let mut rest = vec![transaction];
    while let Some(next) = rest.pop() {
        match commit(&next) {
            Ok(()) => done += 1,
            Err(error) if is_too_large(&error) => match halves(&next) {
                Some([first, second]) => rest.extend([second, first]),
                None => return (done, Err(error)),
            },
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}

/// Whether a smaller transaction may succeed.
fn is_too_large(error: &CommitError) -> bool {
    let CommitError::Refused { source, .. } = error else {
        return false;
    };
    matches!(
        Errno::from_io_error(source),
        Some(Errno::NOMEM | Errno::NOBUFS | Errno::MSGSIZE)
    )
}
