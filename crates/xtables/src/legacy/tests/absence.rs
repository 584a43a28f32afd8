//! Kernels without the tables of a family.

use super::*;
use crate::Fault;

fn legacy(kernel: Option<Kernel>) -> Legacy {
    Legacy {
        kernel,
        family: Family::Ipv6,
        prefix: SIGNPOST,
        // An existing file that no other process locks.
        lock: std::env::current_exe().expect("a test is a program"),
        patience: Duration::ZERO,
        waited: Duration::ZERO,
        gave_up: false,
        seen: BTreeMap::new(),
    }
}

/// Regression test: on a node with ipv6.disable=1 the socket of the family could not be opened, and
/// IPv4 was not served either.
#[test]
fn a_kernel_without_the_family_is_opened() {
    for errno in [Errno::AFNOSUPPORT, Errno::PROTONOSUPPORT] {
        let opened = none_if_unsupported(errno.into()).expect("it can be lived with");
        assert!(opened.is_none());
    }
    none_if_unsupported(Errno::MFILE.into()).expect_err("that says nothing of the family");
}

#[test]
fn what_is_not_there_is_empty_and_stays_so_but_cannot_be_changed() {
    let without_tables = Kernel::without_tables(Family::Ipv6).expect("a socket");
    for kernel in [None, Some(without_tables)] {
        let mut legacy = legacy(kernel);
        for table in TableName::ALL {
            let held = legacy.observe(table).expect("nothing is there to be read");
            assert_eq!(held, OwnRules::default());
        }
        assert!(!legacy.observe_drift().expect("nothing can drift"));
        let nothing = [TableChange::new(TableName::Nat)];
        assert_eq!(legacy.commit(&nothing).expect("nothing is to be done"), 0);
        let something = [change(&[("SIGNPOST-A", &[])], &[], &[])];
        let error = legacy.commit(&something).expect_err("it cannot be done");
        assert_eq!((error.fault, error.done), (Fault::Impossible, 0));
    }
}
