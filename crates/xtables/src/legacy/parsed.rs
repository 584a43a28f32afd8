//! Reads and parses legacy tables. The kernel returns a table's description and its entries in two
//! separate replies.

use super::blob::Table;
use super::failure::Failure;
use super::kernel::{Info, Kernel, KernelError, Snapshot};
use crate::{Family, TableName};

/// How often a table that cannot be parsed is read again. If another program moves a rule from one
/// built-in chain to another between the two replies, both have the same length, so the kernel does
/// not notice.
const ATTEMPTS: u32 = 5;

/// Reads a table and returns the result of `read` for it. Creates the table if it does not exist.
pub(super) fn observe_parsed<T>(
    kernel: &Kernel,
    table: TableName,
    family: Family,
    read: impl Fn(&Info, &Table<'_>) -> T,
) -> Result<T, Failure> {
    let name = table.to_string();
    let snapshot = || kernel.observe_snapshot(&name);
    observe_until_parsed(family, snapshot, || kernel.observe_info(&name), read)
}

fn observe_until_parsed<T>(
    family: Family,
    mut observe_snapshot: impl FnMut() -> Result<Snapshot, KernelError>,
    observe_info: impl FnOnce() -> Result<Info, KernelError>,
    read: impl Fn(&Info, &Table<'_>) -> T,
) -> Result<T, Failure> {
    let mut attempt = 1;
    loop {
        let snapshot = observe_snapshot()?;
        match Table::parse(family, &snapshot.info, snapshot.entries()) {
            Ok(parsed) => return Ok(read(&snapshot.info, &parsed)),
            Err(_) if attempt < ATTEMPTS => attempt += 1,
            Err(error) => {
                let was_replaced = observe_info()? != snapshot.info;
                return Err(Failure::unreadable(error, was_replaced));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::super::tests::with_others;
    use super::*;
    use crate::Fault;

    fn entries(_: &Info, table: &Table<'_>) -> usize {
        table.end() + 1
    }

    /// Regression test: another program moved a rule between the kernel's two replies, and Signpost
    /// took the table for unreadable and gave up.
    #[test]
    fn halves_of_two_tables_are_read_again() {
        let made = with_others(Family::Ipv4);
        let mut moved = made.info;
        moved.policies[1] += 8;
        let halves = || Ok(Snapshot::made(moved, &made.entries));
        let mut answers = vec![
            Ok(Snapshot::made(made.info, &made.entries)),
            halves(),
            halves(),
        ];
        let next = || answers.pop().expect("the third can be read");
        let info = || Ok(made.info);
        let read = observe_until_parsed(Family::Ipv4, next, info, entries);
        assert_eq!(read.ok(), Some(made.info.entries as usize));

        let fault = |info: Result<Info, KernelError>| {
            let read = observe_until_parsed(Family::Ipv4, halves, || info, entries);
            read.err().map(|failure| failure.fault)
        };
        // Another program keeps moving rules.
        assert_eq!(fault(Ok(made.info)), Some(Fault::Passing));
        assert_eq!(fault(Ok(moved)), Some(Fault::Impossible));
        let step = "ask for the size of";
        let source = Errno::NOMEM.into();
        assert_eq!(
            fault(Err(KernelError { step, source })),
            Some(Fault::Passing)
        );
    }
}
