use std::io;

use netlink::nf_tables::{ChainKind, Expression, Operation};
use netlink::{CommitError, Refusal};
use rustix::io::Errno;

use super::*;

/// The error message for a kernel that refuses the first operation that `is_it` accepts, with this
/// errno.
fn reported(family: Family, errno: Errno, is_it: impl Fn(&Operation) -> bool) -> Option<String> {
    let probe = probe(family);
    let at = probe.operations().iter().position(is_it);
    let at = at.expect("it is always there") + 1;
    let error = CommitError::Refused {
        at: Refusal::Message(u32::try_from(at).expect("there are few")),
        source: io::Error::from(errno),
    };
    probe.missing(error).map(|missing| missing.to_string())
}

fn is_nat(operation: &Operation) -> bool {
    let Operation::AddChain(chain) = operation else {
        return false;
    };
    chain
        .hook
        .as_ref()
        .is_some_and(|hook| hook.kind == ChainKind::Nat)
}

fn has(operation: &Operation, is_it: fn(&Expression) -> bool) -> bool {
    matches!(operation, Operation::AddRule { rule, .. } if rule.expressions.iter().any(is_it))
}

#[test]
fn t84_what_a_kernel_lacks_for_a_family_is_named_with_its_module() {
    let nat = reported(Family::Ipv6, Errno::NOENT, is_nat);
    let expected = "this kernel lacks chains of type nat (module nft_chain_nat) for IPv6";
    assert_eq!(nat.as_deref(), Some(expected));
    let fib = |expression: &Expression| matches!(expression, Expression::FibType { .. });
    let fib = reported(Family::Ipv6, Errno::NOENT, |o| has(o, fib)).expect("it is missing");
    assert!(fib.contains("nft_fib_ipv6"), "{fib}");
    let reject = |expression: &Expression| matches!(expression, Expression::Reject(_));
    let reject = reported(Family::Ipv4, Errno::NOENT, |o| has(o, reject)).expect("it is missing");
    assert!(reject.contains("nft_reject_ipv4"), "{reject}");
    let is_table = |operation: &Operation| matches!(operation, Operation::AddTable);
    let table = reported(Family::Ipv4, Errno::OPNOTSUPP, is_table);
    let expected = "this kernel lacks tables (module nf_tables) for IPv4";
    assert_eq!(table.as_deref(), Some(expected));
}

#[test]
fn a_kernel_that_is_busy_or_forbids_lacks_nothing() {
    for errno in [Errno::NOMEM, Errno::BUSY, Errno::INTR, Errno::PERM] {
        assert_eq!(reported(Family::Ipv6, errno, is_nat), None, "{errno}");
    }
    let source = io::Error::from(io::ErrorKind::TimedOut);
    let error = CommitError::Socket {
        step: "receive from",
        source,
    };
    assert!(probe(Family::Ipv6).missing(error).is_none());
}
