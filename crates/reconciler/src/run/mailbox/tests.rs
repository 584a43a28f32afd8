use std::time::SystemTime;

use backend::Culprit;
use dataplane::{Dataplane, Family};

use super::super::Resync;
use super::*;
use crate::Stamps;

const NOW: Option<Duration> = Some(Duration::ZERO);

fn desired(received_at: Instant) -> Command {
    Command::Desired(Desired {
        dataplane: Dataplane::default(),
        stamps: Stamps {
            received_at,
            compile: Duration::from_millis(1),
            triggers: vec![SystemTime::UNIX_EPOCH],
        },
    })
}

fn disturbance(family: Family, program: Option<&str>) -> Command {
    Command::Drifted(Disturbance {
        families: [family].into(),
        culprit: program.map(|program| Culprit {
            program: program.to_owned(),
            process: 1,
        }),
    })
}

/// A kernel that hangs for minutes under constant changes.
#[test]
fn of_a_hundred_thousand_versions_one_is_kept_with_the_stamps_of_all() {
    let (orders, mut mailbox) = mailbox();
    let first = Instant::now();
    for later in 0..100_000 {
        orders.send(desired(first + Duration::from_micros(later)));
    }
    let Received::Command(Command::Desired(desired)) = mailbox.receive(NOW) else {
        panic!("nothing was left");
    };
    assert_eq!(desired.stamps.received_at, first);
    assert_eq!(desired.stamps.compile, Duration::from_secs(100));
    assert!(desired.stamps.triggers.len() < 2000, "they are bounded");
    assert!(matches!(mailbox.receive(NOW), Received::Nothing));
}

#[test]
fn disturbances_become_one_with_the_last_culprit() {
    let (orders, mut mailbox) = mailbox();
    orders.send(disturbance(Family::Ipv4, Some("nft")));
    orders.send(disturbance(Family::Ipv6, Some("firewalld")));
    orders.send(disturbance(Family::Ipv6, None));
    let Received::Command(Command::Drifted(disturbance)) = mailbox.receive(NOW) else {
        panic!("nothing was left");
    };
    assert_eq!(disturbance.families, Family::ALL.into());
    let culprit = disturbance.culprit.map(|culprit| culprit.program);
    assert_eq!(culprit.as_deref(), Some("firewalld"));
}

#[test]
fn a_stop_goes_before_everything_and_a_request_after() {
    let (orders, mut mailbox) = mailbox();
    orders.send(Command::Resync(Reply::new(|_: Resync| ())));
    orders.send(desired(Instant::now()));
    let first = mailbox.receive(NOW);
    assert!(matches!(first, Received::Command(Command::Desired(_))));
    let second = mailbox.receive(NOW);
    assert!(matches!(second, Received::Command(Command::Resync(_))));
    orders.send(desired(Instant::now()));
    orders.send(Command::Stop);
    let last = mailbox.receive(NOW);
    assert!(matches!(last, Received::Command(Command::Stop)));
}

#[test]
fn whoever_waits_is_woken() {
    let (orders, mut mailbox) = mailbox();
    let sender = std::thread::spawn(move || orders.send(desired(Instant::now())));
    let received = mailbox.receive(None);
    assert!(matches!(received, Received::Command(Command::Desired(_))));
    sender.join().expect("it has sent");
    assert!(matches!(mailbox.receive(None), Received::Closed));
}
