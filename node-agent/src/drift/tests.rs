use std::time::SystemTime;

use backend::{Actor, Size};
use reconciler::Activity;

use super::*;

/// A report after `drifts` repairs of IPv4, the last of them of a change by `program`.
fn report(drifts: u64, program: &str) -> Report {
    let repaired_drift = RepairedDrift {
        found: SystemTime::UNIX_EPOCH,
        actor: Some(Actor {
            program: program.to_owned(),
            process: 4711,
        }),
        size: Size {
            elements: 3,
            objects: 1,
        },
        repaired_after: Duration::from_millis(12),
    };
    Report {
        activity: Activity::Waiting,
        families: vec![FamilyStatus {
            drifts,
            last_repaired_drift: (drifts > 0).then_some(repaired_drift),
            ..FamilyStatus::new(Family::Ipv4)
        }],
        repair_backoff: None,
        finished: Vec::new(),
        latencies: Vec::new(),
    }
}

fn notes(announcements: &[Announcement]) -> Vec<&str> {
    announcements.iter().map(|news| &*news.note).collect()
}

const BY_NFT: &str =
    "IPv4: nft (process 4711) had changed 3 elements and 1 objects, repaired after 12ms";

#[test]
fn a_repair_is_announced_once_with_its_actor() {
    let (mut reported, now) = (Announced::default(), Instant::now());
    assert_eq!(reported.announcements(&report(0, "nft"), now), []);
    assert_eq!(
        notes(&reported.announcements(&report(1, "nft"), now)),
        [BY_NFT]
    );
    assert_eq!(reported.announcements(&report(1, "nft"), now), []);
}

#[test]
fn the_same_program_is_announced_once_a_minute() {
    let (mut reported, now) = (Announced::default(), Instant::now());
    let at = |seconds| now + Duration::from_secs(seconds);
    assert_eq!(reported.announcements(&report(1, "nft"), now).len(), 1);
    assert_eq!(reported.announcements(&report(2, "nft"), at(59)).len(), 0);
    assert_eq!(
        reported
            .announcements(&report(3, "firewalld"), at(59))
            .len(),
        1
    );
    assert_eq!(reported.announcements(&report(4, "nft"), at(60)).len(), 1);
}

#[test]
fn that_repairs_are_held_back_is_announced_when_it_begins() {
    let (mut reported, now) = (Announced::default(), Instant::now());
    let contested = Report {
        repair_backoff: Some(RepairBackoff {
            since: SystemTime::UNIX_EPOCH,
            repairs: 6,
            within: Duration::from_millis(1250),
            actor: None,
        }),
        ..report(0, "nft")
    };
    let expected = "another program keeps changing the rules: repaired 6 times within 1.2 s";
    assert_eq!(notes(&reported.announcements(&contested, now)), [expected]);
    assert_eq!(reported.announcements(&contested, now), []);
}
