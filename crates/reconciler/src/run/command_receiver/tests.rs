use std::time::SystemTime;

use backend::Actor;
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

fn external_change(family: Family, program: Option<&str>) -> Command {
    Command::Drifted(ExternalChange {
        families: [family].into(),
        actor: program.map(|program| Actor {
            program: program.to_owned(),
            process: 1,
        }),
    })
}

/// A kernel that hangs for minutes under constant changes.
#[test]
fn of_a_hundred_thousand_versions_one_is_kept_with_the_stamps_of_all() {
    let (commands, mut command_receiver) = command_receiver();
    let first = Instant::now();
    for later in 0..100_000 {
        commands.send(desired(first + Duration::from_micros(later)));
    }
    let Received::Command(Command::Desired(desired)) = command_receiver.receive(NOW) else {
        panic!("nothing was left");
    };
    assert_eq!(desired.stamps.received_at, first);
    assert_eq!(desired.stamps.compile, Duration::from_secs(100));
    assert!(desired.stamps.triggers.len() < 2000, "they are bounded");
    assert!(matches!(command_receiver.receive(NOW), Received::Nothing));
}

#[test]
fn disturbances_become_one_with_the_last_actor() {
    let (commands, mut command_receiver) = command_receiver();
    commands.send(external_change(Family::Ipv4, Some("nft")));
    commands.send(external_change(Family::Ipv6, Some("firewalld")));
    commands.send(external_change(Family::Ipv6, None));
    let Received::Command(Command::Drifted(external_change)) = command_receiver.receive(NOW) else {
        panic!("nothing was left");
    };
    assert_eq!(external_change.families, Family::ALL.into());
    let actor = external_change.actor.map(|actor| actor.program);
    assert_eq!(actor.as_deref(), Some("firewalld"));
}

#[test]
fn a_stop_goes_before_everything_and_a_request_after() {
    let (commands, mut command_receiver) = command_receiver();
    commands.send(Command::Resync(Reply::new(|_: Resync| ())));
    commands.send(desired(Instant::now()));
    let first = command_receiver.receive(NOW);
    assert!(matches!(first, Received::Command(Command::Desired(_))));
    let second = command_receiver.receive(NOW);
    assert!(matches!(second, Received::Command(Command::Resync(_))));
    commands.send(desired(Instant::now()));
    commands.send(Command::Stop);
    let last = command_receiver.receive(NOW);
    assert!(matches!(last, Received::Command(Command::Stop)));
}

#[test]
fn a_waiting_receiver_is_woken() {
    let (commands, mut command_receiver) = command_receiver();
    let sender = std::thread::spawn(move || commands.send(desired(Instant::now())));
    let received = command_receiver.receive(None);
    assert!(matches!(received, Received::Command(Command::Desired(_))));
    sender.join().expect("it has sent");
    assert!(matches!(command_receiver.receive(None), Received::Closed));
}
