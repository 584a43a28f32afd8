use crds::node_proxy::latency::Microseconds;
use crds::profile::mode::Mode;
use crds::profile::node_findings::{AgentVersion, NodeFinding, NodeFindingKind};
use crds::profile::status::{FleetLatency, ProxyProfileStatus, WorstNode};
use crds::{ProxyProfile, ProxyProfileSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use super::*;
use crate::cluster::{Read, Unreadable};
use crate::ending::Ending;
use crate::trouble::tests::condition;

fn profile(name: &str, change: impl FnOnce(&mut ProxyProfile)) -> ProxyProfile {
    let mut profile = ProxyProfile::new(name, ProxyProfileSpec::default());
    profile.metadata.generation = Some(3);
    profile.status = Some(ProxyProfileStatus {
        observed_generation: Some(3),
        matched_nodes: 3,
        updated_nodes: 3,
        ready_nodes: 3,
        sync_latency: Some(FleetLatency::new(
            Microseconds::new(1_000),
            Microseconds::new(5_000),
        )),
        conditions: vec![
            condition(
                "Ready",
                "True",
                "AllNodesProgrammed",
                "3 of 3 nodes are ready with it",
            ),
            condition("Progressing", "False", "Settled", ""),
        ],
        ..ProxyProfileStatus::default()
    });
    change(&mut profile);
    profile
}

fn read(profiles: Vec<ProxyProfile>) -> Read<ProxyProfile> {
    Read {
        objects: profiles,
        unreadable: Vec::new(),
    }
}

fn report(profiles: Vec<ProxyProfile>) -> Report {
    Report::of(&read(profiles), &Read::default(), None)
}

fn unhealthy() -> ProxyProfile {
    profile("edge", |profile| {
        profile.spec.priority = 10;
        profile.spec.mode = Mode::Iptables;
        let status = profile.status.get_or_insert_default();
        (
            status.updated_nodes,
            status.ready_nodes,
            status.degraded_nodes,
        ) = (2, 2, 1);
        let message = "1 of 3 nodes failed: n3 (CommitFailed)";
        status.conditions = vec![
            condition(
                "Ready",
                "False",
                "NodesNotReady",
                "2 of 3 nodes are ready with it",
            ),
            condition("Progressing", "False", "RolledBack", message),
            condition("FeaturesHonoured", "False", "FieldNotHonoured", "logging"),
        ];
        status.worst_nodes = vec![WorstNode {
            name: "n3".to_owned(),
            reason: "CommitFailed".to_owned(),
            p99_microseconds: Some(Microseconds::new(100_000)),
        }];
    })
}

#[test]
fn a_profile_that_is_settled_takes_four_lines() {
    let report = report(vec![profile("default", |_| ())]);
    assert_eq!(
        render(&report, Paint::Plain),
        "ProxyProfile default: healthy\n\
        \x20 mode     nftables, priority 1000, generation 3\n\
        \x20 nodes    3: 3 updated, 3 ready, 0 degraded\n\
        \x20 sync     p50 1ms, p99 5ms on the slowest node\n"
    );
    assert_eq!(Ending::from(report.health), Ending::Success);
}

/// Failure story T336. Nothing was said any more once all nodes had been taken over.
#[test]
fn t336_a_settled_profile_is_shown_with_what_may_start_kube_proxy_again() {
    let message = "every node has the profile's configuration; kube-proxy may be started again: 3 nodes: AKS may \
                   restore DaemonSet kube-system/kube-proxy (next: stay with kube-proxy) on n1, n2, n3";
    let report = report(vec![profile("default", |profile| {
        let status = profile.status.get_or_insert_default();
        status.conditions = vec![condition("Progressing", "False", "Settled", message)];
        // One that joined waits for its turn.
        status.updated_nodes = 2;
    })]);
    let text = render(&report, Paint::Plain);
    assert!(text.contains(message) && text.contains("note"), "{text}");
    assert_eq!(Ending::from(report.health), Ending::Success);
    let stage = crate::rollout::stage(&report.profiles[0]);
    assert_eq!(stage, crate::rollout::Stage::Finished);
}

#[test]
fn what_nodes_report_besides_their_health_is_named() {
    let report = report(vec![profile("default", |profile| {
        let status = profile.status.get_or_insert_default();
        let of = |version: &str, nodes| AgentVersion {
            version: version.to_owned(),
            nodes,
        };
        status.agent_versions = vec![of("0.2.0", 2), of("0.1.0", 1)];
        let found = |kind, nodes, first_nodes: &[&str]| NodeFinding {
            kind,
            nodes,
            first_nodes: first_nodes.iter().map(ToString::to_string).collect(),
        };
        status.node_findings = vec![
            found(NodeFindingKind::ForeignProxyDetected, 1, &["n2"]),
            found(NodeFindingKind::RulesDrifted, 6, &["n1", "n2"]),
        ];
    })]);
    let text = render(&report, Paint::Plain);
    assert!(
        text.ends_with(
            "\x20 agents   0.2.0 on 2 nodes, 0.1.0 on 1 node\n\
            \x20 found    ForeignProxyDetected on 1 node: n2\n\
            \x20          RulesDrifted on 6 nodes: n1, n2, …\n"
        ),
        "{text}"
    );
}

/// Failure story T293.
#[test]
fn what_a_rollout_waits_for_is_named() {
    let report = report(vec![profile("default", |profile| {
        let rollout = serde_json::json!({
            "configHash": "1", "generation": 3, "phase": "RollingOut", "since": "2026-01-01T00:00:00Z",
            "wave": 1, "waitingFor": "1 node of wave 1 to be available: n1",
        });
        let rollout = serde_json::from_value(rollout).expect("a rollout");
        profile.status.get_or_insert_default().rollout = Some(rollout);
    })]);
    let text = render(&report, Paint::Plain);
    let line = "\n  waits    for 1 node of wave 1 to be available: n1\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn t140_every_fault_is_named_with_what_to_do_next() {
    let report = report(vec![profile("default", |_| ()), unhealthy()]);
    let text = render(&report, Paint::Plain);
    let of_edge = text.split("\n\n").next().unwrap_or_default();
    assert_eq!(
        of_edge,
        "ProxyProfile edge: unhealthy\n\
        \x20 mode     iptables, priority 10, generation 3\n\
        \x20 nodes    3: 2 updated, 2 ready, 1 degraded\n\
        \x20 sync     p50 1ms, p99 5ms on the slowest node\n\
        \x20 fault    Ready is False, NodesNotReady: 2 of 3 nodes are ready with it\n\
        \x20          next: Some nodes are not ready. `kubectl signpost nodes --not-ready` names them, each with what to do; without the plugin, look at status.worstNodes, and at condition Ready of their NodeProxy objects.\n\
        \x20 fault    Progressing is False, RolledBack: 1 of 3 nodes failed: n3 (CommitFailed)\n\
        \x20          next: A wave of the rollout failed and its nodes were rolled back: look at the nodes the message names, then correct the profile.\n\
        \x20 note     FeaturesHonoured is False, FieldNotHonoured: logging\n\
        \x20 worst    n3: CommitFailed, p99 100ms"
    );
    assert_eq!(Ending::from(report.health), Ending::ProblemFound);
}

#[test]
fn a_change_that_the_operator_has_not_seen_is_not_finished() {
    let report = report(vec![profile("default", |profile| {
        profile.metadata.generation = Some(4);
    })]);
    assert_eq!(report.health, Health::Pending);
    let text = render(&report, Paint::Plain);
    assert!(
        text.contains("has not reported on generation 4 yet"),
        "{text}"
    );
    assert_eq!(
        progress(&report),
        "default NotReported, 3 of 3 nodes updated, 3 ready"
    );
}

#[test]
fn without_a_profile_no_node_is_served_which_is_a_fault() {
    let mut node = Node::default();
    node.metadata.name = Some("n1".to_owned());
    let report = Report::of(&Read::default(), &Read::default(), Some(&[node]));
    assert_eq!(report.health, Health::Unhealthy);
    let text = render(&report, Paint::Plain);
    assert!(text.contains("There is no ProxyProfile"), "{text}");
    assert!(
        text.contains("Nodes without a configuration of Signpost: n1\n"),
        "{text}"
    );
}

#[test]
fn an_object_of_another_version_is_named_and_hides_no_other() {
    let mut profiles = read(vec![profile("default", |_| ())]);
    profiles.unreadable.push(Unreadable {
        object: "ProxyProfile new".to_owned(),
        reason: "unknown variant `ebpf`".to_owned(),
    });
    let report = Report::of(&profiles, &Read::default(), None);
    let text = render(&report, Paint::Plain);
    assert!(text.contains("ProxyProfile default: healthy"), "{text}");
    assert!(
        text.contains("ProxyProfile new cannot be read: unknown variant `ebpf`"),
        "{text}"
    );
    assert_eq!(report.health, Health::Unhealthy);
}

#[test]
fn colours_change_nothing_but_colours() {
    let report = report(vec![unhealthy()]);
    let coloured = render(&report, Paint::Colours);
    let stripped = ["\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[0m"]
        .iter()
        .fold(coloured.clone(), |text, code| text.replace(code, ""));
    assert_ne!(coloured, stripped);
    assert_eq!(stripped, render(&report, Paint::Plain));
}

/// Failure story T406: no operator runs any more, and the status of profiles, which no operator has updated
/// since, says that all is well.
#[test]
fn t406_a_status_that_no_operator_updates_is_not_healthy() {
    let lease = |renewed: &str| -> Lease {
        let spec = json!({"holderIdentity": "operator-1", "renewTime": renewed});
        serde_json::from_value(json!({"metadata": {"name": "signpost-operator"}, "spec": spec}))
            .expect("a Lease")
    };
    let now = "2026-01-01T12:00:00Z".parse().expect("a time");
    let of = |leases: &[Lease]| report(vec![profile("default", |_| {})]).with_operator(leases, now);

    let absent = of(&[lease("2026-01-01T09:30:00.123456Z")]);
    assert_eq!(absent.health, Health::Unhealthy);
    let text = render(&absent, Paint::Plain);
    let first = "No operator has renewed its Lease since 2026-01-01T09:30:00Z: the status of profiles is as of then.";
    assert!(text.starts_with(first), "{text}");

    // Another one has taken over in another namespace; or the user may not list Leases.
    let recent = [
        lease("2026-01-01T09:30:00.000000Z"),
        lease("2026-01-01T11:58:00.000000Z"),
    ];
    for leases in [&recent[..], &[]] {
        let report = of(leases);
        assert_eq!(report.health, Health::Healthy);
        assert!(!render(&report, Paint::Plain).contains("No operator"));
    }
}
