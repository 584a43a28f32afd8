//! Checks the coverage of the generators: everything that the model distinguishes must occur.

use std::collections::BTreeMap;

use dataplane::{Choice, FrontendKind, Origin, Packet, TrafficPolicy, Verdict};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use testkit::{Cluster, clusters, packets};

const CLUSTERS: usize = 500;
const PACKETS_EACH: usize = 20;

fn origin(packet: &Packet) -> &'static str {
    match packet.origin {
        Origin::Pod { .. } => "pod",
        Origin::PodElsewhere { .. } => "remote pod",
        Origin::Node => "node",
        Origin::Loopback => "loopback",
        Origin::Outside { .. } => "outside",
    }
}

fn outcome(verdict: &Verdict) -> &'static str {
    let Verdict::Deliver(choices) = verdict else {
        return match verdict {
            Verdict::Reject => "rejected",
            Verdict::Drop => "dropped",
            _ => "untouched",
        };
    };
    let masqueraded = |choice: &Choice| choice.masquerade;
    match (
        choices.iter().any(masqueraded),
        choices.iter().all(masqueraded),
    ) {
        (false, _) => "delivered",
        (true, true) => "delivered masqueraded",
        (true, false) => "delivered, masqueraded in part",
    }
}

/// How often each case of interest occurred.
fn count() -> BTreeMap<String, usize> {
    let mut runner = TestRunner::deterministic();
    let mut counts = BTreeMap::new();
    for _ in 0..CLUSTERS {
        let tree = clusters().new_tree(&mut runner);
        let cluster = tree.expect("clusters are not filtered").current();
        count_rules(&cluster, &mut counts);
        let dataplane = cluster.compile();
        let packets = packets(&cluster);
        for _ in 0..PACKETS_EACH {
            let tree = packets.new_tree(&mut runner);
            let packet = tree.expect("packets are not filtered").current();
            let outcome = outcome(&dataplane.verdict(&packet));
            *counts
                .entry(format!("{} {outcome}", origin(&packet)))
                .or_default() += 1;
            *counts
                .entry(format!("{} packet", packet.protocol))
                .or_default() += 1;
        }
    }
    counts
}

fn count_rules(cluster: &Cluster, counts: &mut BTreeMap<String, usize>) {
    let dataplane = cluster.compile();
    let mut seen = |what: String| *counts.entry(what).or_default() += 1;
    for (key, claims) in dataplane.frontends().iter() {
        let (_, frontend) = claims.winner();
        let policy = match frontend.policy {
            TrafficPolicy::Cluster => "Cluster",
            TrafficPolicy::Local => "Local",
        };
        let targets = match (frontend.local.is_empty(), frontend.has_endpoints) {
            _ if !frontend.cluster.is_empty() => "with targets",
            (false, _) => "with targets",
            (true, true) => "without targets it may use",
            (true, false) => "without endpoints",
        };
        seen(format!("{} {policy} {targets}", frontend.kind));
        seen(format!("{} {}", key.family(), frontend.kind));
        if claims.losers().next().is_some() {
            seen("claimed twice".to_owned());
        }
        if frontend.kind == FrontendKind::LoadBalancerIp && !frontend.source_ranges.is_empty() {
            seen("source ranges".to_owned());
        }
    }
    for (_, rules) in dataplane.services().iter() {
        if rules.health_check.is_some() {
            seen("health check".to_owned());
        }
        if !rules.rejections.is_empty() {
            seen("rejection".to_owned());
        }
        if !rules.hairpins.is_empty() {
            seen("hairpin".to_owned());
        }
    }
}

#[test]
fn generators_reach_everything_the_model_tells_apart() {
    let mut desired: Vec<String> = [
        "claimed twice",
        "source ranges",
        "health check",
        "rejection",
        "hairpin",
        "tcp packet",
        "udp packet",
        "sctp packet",
        "cluster IP Local without targets it may use",
        "pod delivered, masqueraded in part",
    ]
    .map(str::to_owned)
    .into();
    for origin in ["pod", "remote pod", "node", "loopback", "outside"] {
        for outcome in [
            "delivered",
            "delivered masqueraded",
            "rejected",
            "dropped",
            "untouched",
        ] {
            desired.push(format!("{origin} {outcome}"));
        }
    }
    for kind in ["cluster IP", "external IP", "load-balancer IP", "node port"] {
        for policy in ["Cluster", "Local"] {
            for targets in ["with targets", "without endpoints"] {
                desired.push(format!("{kind} {policy} {targets}"));
            }
        }
        for family in ["IPv4", "IPv6"] {
            desired.push(format!("{family} {kind}"));
        }
    }
    let counts = count();
    let missing: Vec<_> = desired
        .iter()
        .filter(|what| !counts.contains_key(*what))
        .collect();
    assert!(
        missing.is_empty(),
        "never seen: {missing:?}\nseen: {counts:#?}"
    );
}

#[test]
fn a_cluster_is_what_its_services_say() {
    let mut runner = TestRunner::deterministic();
    for _ in 0..50 {
        let tree = clusters().new_tree(&mut runner);
        let cluster = tree.expect("clusters are not filtered").current();
        assert_eq!(cluster.compile().services().len(), cluster.services.len());
    }
}
