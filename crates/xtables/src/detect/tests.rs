use std::io;
use std::time::Duration;

use rustix::io::Errno;

use super::look::{Failure, observe_patiently};
use super::*;

fn presence(rules: usize, kubelet: bool) -> Presence {
    Presence {
        offered: true,
        rules,
        kubelet,
        own_chains: OwnChains::None,
    }
}

/// Failure story T36 (cilium#28260, kube-router#1069).
#[test]
fn t36_the_variant_of_the_others_is_chosen_and_a_split_is_reported() {
    let chosen = |nf_tables, legacy| {
        let Choice {
            variant,
            why,
            split,
        } = Found { nf_tables, legacy }.choose();
        (variant, why, split.is_some())
    };
    let none = presence(0, false);
    let absent = Presence::default();
    let (nf, legacy) = (Variant::NfTables, Variant::Legacy);
    for (found, expected) in [
        ((none, none), (nf, VariantReason::Preferred, false)),
        ((absent, none), (legacy, VariantReason::Alone, false)),
        ((none, absent), (nf, VariantReason::Alone, false)),
        ((absent, absent), (legacy, VariantReason::Alone, false)),
        (
            (none, presence(0, true)),
            (legacy, VariantReason::Kubelet, false),
        ),
        (
            (presence(9, false), presence(2, true)),
            (legacy, VariantReason::Kubelet, true),
        ),
        (
            (presence(9, true), presence(2, true)),
            (nf, VariantReason::MoreRules, true),
        ),
        (
            (none, presence(1, false)),
            (legacy, VariantReason::MoreRules, false),
        ),
        (
            (presence(3, false), presence(3, false)),
            (nf, VariantReason::Preferred, true),
        ),
    ] {
        assert_eq!(chosen(found.0, found.1), expected, "{found:?}");
    }
}

#[test]
fn a_split_is_reported_with_its_numbers() {
    let found = Found {
        nf_tables: presence(12, false),
        legacy: presence(3, false),
    };
    let split = found.choose().split.expect("both hold rules of others");
    assert_eq!(
        split.to_string(),
        "other programs have 12 rules in iptables-nft and 3 in iptables-legacy"
    );
}

fn failure(fault: Fault) -> Failure {
    let source: io::Error = Errno::MFILE.into();
    Failure {
        fault,
        source: source.into(),
    }
}

/// Regression test: a process that was out of file descriptors for a moment at its start took its
/// legacy rules for missing and wrote all of them to nf_tables.
#[test]
fn a_look_that_failed_once_is_taken_again() {
    let minute = Duration::from_secs(60);
    let mut looks = 0;
    let seen = observe_patiently(minute, || {
        looks += 1;
        match looks {
            1 | 2 => Err(failure(Fault::Passing)),
            _ => Ok("everything"),
        }
    });
    assert_eq!(seen.ok(), Some("everything"));
    let mut looks = 0;
    let mut look = |fault, patience| {
        looks = 0;
        let seen: Result<(), _> = observe_patiently(patience, || {
            looks += 1;
            Err(failure(fault))
        });
        (seen.err().map(|failure| failure.fault), looks)
    };
    let never = (Some(Fault::Impossible), 1);
    assert_eq!(look(Fault::Impossible, minute), never);
    let short = look(Fault::Passing, Duration::from_millis(1));
    assert_eq!(short.0, Some(Fault::Passing));
}

#[test]
fn what_is_short_for_a_moment_is_no_reason_to_give_up() {
    for (errno, fault) in [
        (Errno::MFILE, Fault::Passing),
        (Errno::NFILE, Fault::Passing),
        (Errno::NOMEM, Fault::Passing),
        (Errno::INTR, Fault::Passing),
        (Errno::PERM, Fault::Impossible),
        (Errno::AFNOSUPPORT, Fault::Impossible),
    ] {
        let error = crate::OpenError::new(io::Error::from(errno));
        assert_eq!(error.fault, fault, "{errno:?}");
        // The errno is also found below other errors.
        assert_eq!(crate::OpenError::new(error).fault, fault, "{errno:?}");
    }
}

/// A failed scan never moves Signpost's rules away from where they are known to be.
#[test]
fn where_a_look_failed_signposts_rules_stay_where_they_are() {
    let with = |own_chains| Presence {
        own_chains,
        ..presence(0, false)
    };
    let (nf, legacy) = (Some(Variant::NfTables), Some(Variant::Legacy));
    for (found, expected) in [
        // nf_tables changed too often to be read.
        ((OwnChains::Present, OwnChains::None), nf),
        ((OwnChains::Unlikely, OwnChains::Present), legacy),
        ((OwnChains::Present, OwnChains::Present), nf),
        ((OwnChains::Unlikely, OwnChains::None), nf),
        // A legacy table could not be read, or not even the list of tables.
        ((OwnChains::None, OwnChains::Likely), legacy),
        ((OwnChains::Present, OwnChains::Likely), nf),
        ((OwnChains::Present, OwnChains::Unknown), nf),
        ((OwnChains::None, OwnChains::Unknown), None),
        ((OwnChains::Unknown, OwnChains::None), None),
        ((OwnChains::Unknown, OwnChains::Likely), None),
        ((OwnChains::Unknown, OwnChains::Unknown), None),
    ] {
        let known = Found {
            nf_tables: with(found.0),
            legacy: with(found.1),
        };
        assert_eq!(known.choose_without_counting(), expected, "{found:?}");
    }
    // A first start, with other programs' rules in legacy tables.
    let fresh = Found {
        nf_tables: with(OwnChains::Unlikely),
        legacy: presence(5, false),
    };
    assert_eq!(fresh.choose_without_counting(), legacy);
    assert_eq!(fresh.suspected(), [Variant::NfTables]);
}
