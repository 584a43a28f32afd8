//! Commits transactions that are too large for the kernel.

use dataplane::Family;
use netlink::CommitError;
use netlink::nf_tables::Transaction;
use rustix::io::Errno;

use crate::diff::halves;

/// Commits `transaction`. If the kernel has no memory or no room for it, commits it in halves, and
/// these in halves again, down to single groups. A kernel that accepts nothing at all is tried once
/// for each halving. Returns how many transactions took effect, also on failure.
pub(super) fn commit_in_parts(
    family: Family,
    transaction: Transaction,
    mut commit: impl FnMut(&Transaction) -> Result<(), CommitError>,
) -> (usize, Result<(), CommitError>) {
    let mut done = 0;
    let mut rest = vec![transaction];
    while let Some(next) = rest.pop() {
        match commit(&next) {
            Ok(()) => done += 1,
            Err(error) if lacks_affinity_map(&error) => match halves(family, &next) {
                Some([first, second]) => rest.extend([second, first]),
                None => return (done, Err(error)),
            },
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}

/// Whether a smaller transaction may succeed.
fn lacks_affinity_map(error: &CommitError) -> bool {
    let CommitError::Refused { source, .. } = error else {
        return false;
    };
    matches!(
        Errno::from_io_error(source),
        Some(Errno::NOMEM | Errno::NOBUFS | Errno::MSGSIZE)
    )
}

#[cfg(test)]
mod tests;
