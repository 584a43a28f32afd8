//! Packets and the counters that they move.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dataplane::{Family, Protocol};
use serde_json::{Value, json};
use testkit::address_plan as addresses;
use tests::deadline::wait_for;
use tests::network::{Namespace, Outcome, Probe, probe};

use crate::manifests::{NODE_PORT, endpoints, profile, service};
use crate::scrape::Scrape;
use crate::stage::{PROMPTLY, SERVED, Stage};

/// The last bytes of the addresses of Services.
const WEB: u8 = 10;
const EMPTY: u8 = 31;
const ELSEWHERE: u8 = 32;
const RESTRICTED: u8 = 33;
const UNALLOCATED: u8 = 99;
/// The node ports of Services without an endpoint, and without one on this node.
const EMPTY_NODE_PORT: u16 = 30_082;
const ELSEWHERE_NODE_PORT: u16 = 30_083;
/// A port of every Service, and one of none.
const PORT: u16 = 80;
const OTHER_PORT: u16 = 81;
/// How long a client waits for a packet that nothing answers.
const OF_NOTHING: Duration = Duration::from_millis(500);
/// How long it waits for an answer: an ICMPv6 error that arrives while `connect` still sends the SYN
/// ends nothing, only the one for the second SYN, a second later, does (Linux 6.18).
const OF_AN_ANSWER: Duration = Duration::from_secs(3);

/// The counter of new connections.
const CONNECTIONS: &str = "signpost_new_connections_total";
/// The counters of refused packets, by reason.
const REFUSED: &str = "signpost_refused_packets_total";

/// A client.
#[derive(Debug, Clone, Copy)]
enum Client {
    Pod,
    Outsider,
}

/// What a client gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Connection,
    Refusal,
    Nothing,
}

/// A packet and what it moves.
struct Case {
    what: &'static str,
    client: Client,
    destination: fn(Family) -> (IpAddr, u16),
    gets: Answer,
    /// Whether it counts as a new connection.
    is_connection: bool,
    /// The verdict and the reason with which it counts as refused.
    refused: Option<(&'static str, &'static str)>,
}

const CASES: [Case; 10] = [
    Case {
        what: "a Service with an endpoint",
        client: Client::Pod,
        destination: |family| (addresses::cluster_ip(WEB, family), PORT),
        gets: Answer::Connection,
        is_connection: true,
        refused: None,
    },
    Case {
        what: "its node port",
        client: Client::Outsider,
        destination: |family| (addresses::node_address(1, family), NODE_PORT),
        gets: Answer::Connection,
        is_connection: true,
        refused: None,
    },
    Case {
        what: "a Service without endpoints",
        client: Client::Pod,
        destination: |family| (addresses::cluster_ip(EMPTY, family), PORT),
        gets: Answer::Refusal,
        is_connection: true,
        refused: Some(("reject", "no_endpoints")),
    },
    Case {
        what: "its node port",
        client: Client::Outsider,
        destination: |family| (addresses::node_address(1, family), EMPTY_NODE_PORT),
        gets: Answer::Refusal,
        is_connection: false,
        refused: Some(("reject", "no_endpoints")),
    },
    Case {
        what: "a Service with policy Local whose endpoint is elsewhere",
        client: Client::Pod,
        destination: |family| (addresses::cluster_ip(ELSEWHERE, family), PORT),
        gets: Answer::Nothing,
        is_connection: true,
        refused: Some(("drop", "no_local_endpoints")),
    },
    Case {
        what: "its node port",
        client: Client::Outsider,
        destination: |family| (addresses::node_address(1, family), ELSEWHERE_NODE_PORT),
        gets: Answer::Nothing,
        is_connection: true,
        refused: Some(("drop", "no_local_endpoints")),
    },
    Case {
        what: "a load-balancer IP with other source ranges",
        client: Client::Outsider,
        destination: |family| (addresses::load_balancer_ip(RESTRICTED, family), PORT),
        gets: Answer::Nothing,
        is_connection: false,
        refused: Some(("drop", "source_not_allowed")),
    },
    Case {
        what: "a port that the Service does not have",
        client: Client::Pod,
        destination: |family| (addresses::cluster_ip(WEB, family), OTHER_PORT),
        gets: Answer::Refusal,
        is_connection: false,
        refused: Some(("reject", "no_such_port")),
    },
    Case {
        what: "an address in a Service CIDR that no Service has",
        client: Client::Pod,
        destination: |family| (addresses::cluster_ip(UNALLOCATED, family), PORT),
        gets: Answer::Nothing,
        is_connection: false,
        refused: Some(("drop", "no_such_address")),
    },
    Case {
        what: "such a port at a cluster IP that is also on a device of the node",
        client: Client::Pod,
        destination: |family| (addresses::cluster_ip(EMPTY, family), OTHER_PORT),
        gets: Answer::Refusal,
        is_connection: false,
        refused: Some(("reject", "no_such_port")),
    },
];

/// Every packet moves the counter of its fate, and no other; a connection counts once, however many
/// packets it has.
pub(crate) fn every_packet_moves_its_counter_and_no_other() -> Result<()> {
    let stage = Stage::start()?;
    for (name, manifest) in manifests() {
        stage.apply(name, &manifest)?;
    }
    for family in Family::ALL {
        let shared = addresses::cluster_ip(EMPTY, family);
        stage
            .node()?
            .configure(&format!("addr add {shared} dev lo"))?;
    }
    for family in Family::ALL {
        for case in &CASES {
            case.check(&stage, family)
                .with_context(|| format!("{}, {family}", case.what))?;
        }
    }
    let before = stage.scrape()?;
    let question = CASES[0].question(Family::Ipv4);
    probe(stage.client()?, &question, 5)?;
    let moved = stage.scrape()?.sum(CONNECTIONS, "IPv4") - before.sum(CONNECTIONS, "IPv4");
    ensure!(moved.total_cmp(&5.0).is_eq(), "5 connections count {moved}");
    counts_outlive_what_counts(&stage)
}

/// Failure story T229: Prometheus takes a sum that falls for a process that has started again, and
/// `increase()` then counts once more what is left of it.
fn counts_outlive_what_counts(stage: &Stage) -> Result<()> {
    type Change = fn(&Stage) -> Result<()>;
    let changes: [(&str, Change); 4] = [
        ("one of the chains is written again", |stage| {
            stage.nft("flush chain ip signpost refuse-ports")
        }),
        ("another program deletes the table", |stage| {
            stage.nft("delete table ip signpost")
        }),
        ("the profile says mode iptables", |stage| {
            stage.apply("profile", &profile(&json!({"mode": "iptables"})))?;
            expect_mode(stage, "iptables")
        }),
        ("the profile says mode nftables again", |stage| {
            stage.apply("profile", &profile(&json!({"mode": "nftables"})))?;
            expect_mode(stage, "nftables")
        }),
    ];
    let sums = |scrape: &Scrape| [CONNECTIONS, REFUSED].map(|metric| scrape.sum(metric, "IPv4"));
    let before = sums(&stage.scrape()?);
    ensure!(before.iter().all(|sum| *sum > 0.0), "nothing to lose");
    for (what, change) in changes {
        change(stage).context(what)?;
        let question = CASES[0].question(Family::Ipv4);
        stage.wait_until("an answer", || {
            let outcomes = probe(stage.client()?, &question, 1)?;
            Ok(matches!(outcomes[..], [Outcome::Answered { .. }]))
        })?;
        let after = sums(&stage.scrape()?);
        ensure!(
            after[1].total_cmp(&before[1]).is_eq(),
            "{what}: {after:?} after {before:?}"
        );
        ensure!(after[0] >= before[0], "{what}: {after:?} after {before:?}");
    }
    let again = CASES[7].question(Family::Ipv4);
    stage.wait_until("a refusal", || {
        let outcomes = probe(stage.client()?, &again, 1)?;
        Ok(matches!(outcomes[..], [Outcome::Refused]))
    })?;
    let last = sums(&stage.scrape()?);
    ensure!(last[1] > before[1], "nothing counts any more: {last:?}");
    Ok(())
}

fn expect_mode(stage: &Stage, mode: &str) -> Result<()> {
    stage.wait_until(mode, || {
        let scrape = stage.scrape()?;
        Ok(scrape.values("signpost_node_mode", "mode") == [mode].into())
    })
}

/// The Services in addition to those of [`crate::manifests`].
fn manifests() -> Vec<(&'static str, Value)> {
    let node_port =
        |port: u16| json!([{"name": "http", "protocol": "TCP", "port": PORT, "nodePort": port}]);
    let empty = json!({"type": "NodePort", "ports": node_port(EMPTY_NODE_PORT)});
    let elsewhere = json!({
        "type": "NodePort", "ports": node_port(ELSEWHERE_NODE_PORT),
        "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local",
    });
    let restricted = json!({
        "type": "LoadBalancer",
        "loadBalancerSourceRanges": ["198.18.0.0/24", "fd00:ffff::/64"],
    });
    let cidrs = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": Family::ALL.map(addresses::service_cidr)},
    });
    let away = |name| endpoints(name, &[None], SERVED, "TCP");
    vec![
        ("cidrs", cidrs),
        ("empty", service("empty", EMPTY, &empty)),
        ("elsewhere-endpoints", away("elsewhere")),
        ("elsewhere", service("elsewhere", ELSEWHERE, &elsewhere)),
        ("restricted-endpoints", away("restricted")),
        ("restricted", service("restricted", RESTRICTED, &restricted)),
    ]
}

/// Returns the series of both counters that differ.
fn moved(before: &Scrape, after: &Scrape) -> BTreeSet<String> {
    let moved = after.series_moved_since(before).into_iter();
    moved
        .filter(|series| series.starts_with(CONNECTIONS) || series.starts_with(REFUSED))
        .collect()
}

// === impl Case ===

impl Case {
    fn question(&self, family: Family) -> Probe {
        let (address, port) = (self.destination)(family);
        Probe {
            protocol: Protocol::Tcp,
            source: None,
            destination: SocketAddr::new(address, port),
            deadline: match self.gets {
                Answer::Nothing => OF_NOTHING,
                Answer::Connection | Answer::Refusal => OF_AN_ANSWER,
            },
        }
    }

    /// The series that the packet moves.
    fn moves(&self, family: Family) -> BTreeSet<String> {
        let of_family = ("ip_family".to_owned(), family.to_string());
        let connection = self
            .is_connection
            .then(|| format!("{CONNECTIONS}{:?}", std::slice::from_ref(&of_family)));
        let refused = self.refused.map(|(verdict, reason)| {
            let verdict = ("verdict".to_owned(), verdict.to_owned());
            let reason = ("reason".to_owned(), reason.to_owned());
            format!("{REFUSED}{:?}", [of_family, verdict, reason])
        });
        connection.into_iter().chain(refused).collect()
    }

    /// Sends the packet until it has its fate: the agent may not know of the Services yet, and the
    /// kernel limits how many errors it sends to a client.
    fn check(&self, stage: &Stage, family: Family) -> Result<()> {
        let expected = (self.gets, self.moves(family));
        let mut last = None;
        let waited = wait_for("the packet", PROMPTLY, || {
            let before = stage.scrape()?;
            let outcomes = probe(self.inside(stage)?, &self.question(family), 1)?;
            let answer = match outcomes.first().context("there is one outcome")? {
                Outcome::Answered { .. } => Answer::Connection,
                Outcome::Refused => Answer::Refusal,
                Outcome::TimedOut | Outcome::Failed(_) => Answer::Nothing,
            };
            let seen = (answer, moved(&before, &stage.scrape()?));
            let is_expected = seen == expected;
            last = Some(seen);
            Ok(is_expected.then_some(()))
        });
        waited.with_context(|| format!("last seen: {last:?}, expected: {expected:?}"))
    }

    fn inside<'a>(&self, stage: &'a Stage) -> Result<&'a Namespace> {
        match self.client {
            Client::Pod => stage.client(),
            Client::Outsider => stage.outside(),
        }
    }
}
