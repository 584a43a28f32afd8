use crds::effective::hash::ConfigHash;
use crds::node_proxy::Counts;
use crds::node_proxy::drift::Drift;
use crds::node_proxy::latency::SyncLatency;
use crds::{EffectiveConfig, NodeProxySpec, NodeProxyStatus};
use jiff::ToSpan;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::cluster::{Read, parse_in_part};
use crate::trouble::tests::condition;

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).expect("a time")
}

fn node(name: &str, change: impl FnOnce(&mut NodeProxyStatus)) -> NodeProxy {
    let config = EffectiveConfig::default();
    let hash = ConfigHash::of(&config);
    let mut status = NodeProxyStatus {
        applied_hash: Some(hash.clone()),
        mode: Some(config.mode),
        last_sync_time: Some(Time(now() - 12.seconds())),
        sync_latency: Some(SyncLatency {
            p99: "4ms".to_owned(),
            ..SyncLatency::default()
        }),
        counts: Counts {
            services: 3,
            ..Counts::default()
        },
        agent_version: Some("0.1.0".to_owned()),
        kernel_version: Some("6.18.0".to_owned()),
        conditions: vec![
            condition("Ready", "True", "Programmed", ""),
            condition("Degraded", "False", "AsExpected", ""),
        ],
        ..NodeProxyStatus::default()
    };
    change(&mut status);
    let mut proxy = NodeProxy::new(
        name,
        NodeProxySpec {
            profile_name: "default".to_owned(),
            profile_generation: 1,
            config_hash: hash,
            config,
            written_fields: Vec::new(),
        },
    );
    proxy.status = Some(status);
    proxy
}

fn listing(nodes: Vec<NodeProxy>) -> Listing {
    let read = Read {
        objects: nodes,
        unreadable: Vec::new(),
    };
    Listing::of(&read, &[])
}

fn failing(name: &str) -> NodeProxy {
    node(name, |status| {
        status.conditions = vec![
            condition("Ready", "False", "CommitFailed", "no memory"),
            condition("Degraded", "True", "CommitFailed", "no memory"),
        ];
    })
}

#[test]
fn t141_nodes_are_one_line_each_and_their_troubles_are_grouped() {
    let mut bare = Node::default();
    bare.metadata.name = Some("n9".to_owned());
    let read = Read {
        objects: vec![node("n1", |_| ()), failing("n3"), failing("n2")],
        unreadable: Vec::new(),
    };
    let listing = Listing::of(&read, &[bare]);
    assert_eq!(
        table(&listing, Format::Text).render(Paint::Plain),
        "NODE   PROFILE   MODE       READY   REASON            DEGRADED   SERVICES   SYNC-P99\n\
         n1     default   nftables   True    Programmed        False      3          4ms\n\
         n2     default   nftables   False   CommitFailed      True       3          4ms\n\
         n3     default   nftables   False   CommitFailed      True       3          4ms\n\
         n9     -         -          -       NoConfiguration   -          0          -\n"
    );
    let text = render(&listing, Format::Text, Paint::Plain);
    assert!(
        text.contains("\nCommitFailed on n2, n3\n  next: The kernel refused the last change"),
        "{text}"
    );
    assert!(text.contains("\nNoConfiguration on n9\n  next: "), "{text}");
    assert_eq!(listing.health(), Health::Unhealthy);
}

#[test]
fn a_node_that_has_not_applied_its_configuration_is_not_finished() {
    let waiting = listing(vec![node("n1", |status| status.applied_hash = None)]);
    assert_eq!(waiting.health(), Health::Pending);
    let silent = listing(vec![node("n1", |status| {
        *status = NodeProxyStatus::default()
    })]);
    assert_eq!(silent.nodes[0].troubles[0].reason, "NotReported");
    let text = render(&silent, Format::Text, Paint::Plain);
    let words = "\nNotReported on n1\n  next: Type `kubectl signpost check`";
    assert!(text.contains(words), "{text}");
}

#[test]
fn wide_has_hash_and_versions() {
    let drift = |program: Option<&str>, repairs| Drift {
        program: program.map(str::to_owned),
        continues: false,
        repairs,
        last_found: Time(now()),
        elements: 1,
        objects: 0,
    };
    let disturbed = node("n1", |status| {
        status.drift = vec![drift(None, 1), drift(Some("nft"), 12)];
    });
    let wide = table(&listing(vec![disturbed]), Format::Wide);
    let text = wide.render(Paint::Plain);
    assert!(text.contains("HASH"), "{text}");
    assert!(text.contains(" unknown:1,nft:12 "), "{text}");
    assert!(text.contains("0.1.0   6.18.0\n"), "{text}");
}

#[test]
fn ages_are_short() {
    for (seconds, text) in [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (7200, "2h"),
        (172_800, "2d"),
    ] {
        assert_eq!(age(now() - seconds.seconds(), now()), text);
    }
    assert_eq!(age(now() + 5.seconds(), now()), "0s");
}

/// Failure story T264. The line of a node was empty because its agent was newer than this program.
#[test]
fn t264_a_node_with_a_newer_agent_is_shown_as_far_as_it_can_be_read() {
    let mut object = serde_json::to_value(node("n1", |_| ())).expect("JSON");
    object["status"]["mode"] = "teleport".into();
    let object = serde_json::from_value(object).expect("an object");
    let (read, unreadable) = parse_in_part::<NodeProxy>(object);
    let listing = Listing::of(
        &Read {
            objects: read.into_iter().collect(),
            unreadable: unreadable.into_iter().collect(),
        },
        &[],
    );
    let text = render(&listing, Format::Text, Paint::Plain);
    assert!(
        text.contains("n1     default   -      True    Programmed"),
        "{text}"
    );
    assert!(
        text.contains("NodeProxy n1 cannot be read: status.mode: "),
        "{text}"
    );
    assert_eq!(listing.health(), Health::Unhealthy);
}
