use super::*;

use dataplane::{Endpoints, compile};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

/// The posted steps that were not received: `?` for unknown, otherwise the number of the node's
/// addresses.
fn steps(feed: &Feed, family: Family) -> Vec<String> {
    let Received::Steps(mut steps) = feed.receive(Some(Duration::ZERO)) else {
        panic!("the feed is open");
    };
    let steps = steps.remove(&family).unwrap_or_default().into_iter();
    steps.map(|step| text(&step)).collect()
}

fn text(knowledge: &ProgrammedState) -> String {
    match knowledge {
        ProgrammedState::Programmed(dataplane) => {
            dataplane.node().local_addresses.len().to_string()
        }
        ProgrammedState::Unknown => "?".to_owned(),
    }
}

fn step(number: usize) -> ProgrammedState {
    let node = dataplane::Node {
        local_addresses: (0..number)
            .map(|address| std::net::Ipv6Addr::from_bits(address as u128).into())
            .collect(),
        ..dataplane::Node::default()
    };
    ProgrammedState::Programmed(Dataplane::new(node.into(), Arc::default()))
}

#[test]
fn a_step_that_is_followed_by_another_before_it_is_read_is_not_lost() {
    let feed = Feed::default();
    feed.post(Family::Ipv4, step(1));
    feed.post(Family::Ipv6, step(7));
    feed.post(Family::Ipv4, ProgrammedState::Unknown);
    feed.post(Family::Ipv4, step(2));
    let newest = feed.newest(Family::Ipv4).map(|newest| text(&newest));
    assert_eq!(newest.as_deref(), Some("2"));
    assert_eq!(steps(&feed, Family::Ipv4), ["1", "?", "2"]);
    assert!(feed.newest(Family::Ipv4).is_none());
}

/// On a quiet node most syncs change nothing and must not cause a pass.
#[test]
fn what_was_said_last_is_no_step() {
    let feed = Feed::default();
    let two = step(2);
    feed.post(Family::Ipv4, two.clone());
    feed.post(Family::Ipv6, two.clone());
    assert_eq!(steps(&feed, Family::Ipv4), ["2"]);
    feed.post(Family::Ipv4, two.clone());
    assert_eq!(steps(&feed, Family::Ipv4), [""; 0]);
    feed.post(Family::Ipv4, ProgrammedState::Unknown);
    feed.post(Family::Ipv4, ProgrammedState::Unknown);
    feed.post(Family::Ipv4, two);
    assert_eq!(steps(&feed, Family::Ipv4), ["?", "2"]);
}

/// A draining endpoint gets no new connections, so its removal changes no rule; but from then on
/// its flows are stale.
#[test]
fn what_changes_for_flows_alone_is_a_step() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("kube-system/dns").cluster_ip("10.96.0.53");
    let service = service.udp("dns", 53).build();
    let left = mk_endpoints().udp("dns").ready("10.0.1.6:53", "node-1");
    let drains = left.clone().draining("10.0.1.5:53", "node-1");
    let programmed = |endpoints: &Endpoints| {
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        let rules = compile(&service, endpoints, &node, &config);
        dataplane.set(Arc::new(rules));
        ProgrammedState::Programmed(dataplane)
    };
    let feed = Feed::default();
    let drains = drains.build();
    for endpoints in [&drains, &drains, &left.build()] {
        feed.post(Family::Ipv4, programmed(endpoints));
    }
    assert_eq!(steps(&feed, Family::Ipv4).len(), 2);
}

#[test]
fn of_more_steps_than_are_kept_the_last_is_and_that_there_were_others() {
    let feed = Feed::default();
    for number in 0..=MOST_STEPS {
        feed.post(Family::Ipv4, step(number));
    }
    let last = MOST_STEPS.to_string();
    assert_eq!(steps(&feed, Family::Ipv4), ["?", &last]);
}
