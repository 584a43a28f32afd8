//! The kinds that an API server may not have: Signpost's own, and those of later Kubernetes
//! versions.

use catalog::Event;
use crds::{NodeProxySpec, ProxyProfile, ProxyProfileSpec};
use serde_json::{Value, json};

use super::api_server::{ApiServer, NODE_PROXIES, SERVICE_CIDRS};
use crate::{Assignment, Delivery, SourceCondition};

fn proxy_json(profile_generation: i64, generation: i64, version: &str) -> Value {
    json!({
        "apiVersion": "signpost.dev/v1alpha1", "kind": "NodeProxy",
        "metadata": {"name": "node-1", "generation": generation, "resourceVersion": version},
        "spec": spec(profile_generation),
        "status": {"mode": "of a later version"},
    })
}

fn spec(profile_generation: i64) -> NodeProxySpec {
    let mut profile = ProxyProfile::new("default", ProxyProfileSpec::default());
    profile.metadata.generation = Some(profile_generation);
    let effective = crds::resolve([&profile], &crds::NodeFacts::default()).effective;
    std::sync::Arc::unwrap_or_clone(effective.expect("an empty selector selects every node"))
}

fn assigned(delivery: Delivery) -> Option<Assignment> {
    match delivery {
        Delivery::Configuration(assignment) => assignment,
        other => panic!("{other:?} is no configuration"),
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_crd_nothing_is_assigned_and_services_are_served_all_the_same() {
    let mut server = ApiServer::start_with_only(NODE_PROXIES).await;
    let absent = server.asked(NODE_PROXIES).await;
    absent.refuse(
        404,
        "NotFound",
        "the server could not find the requested resource",
    );
    assert_eq!(assigned(server.delivery().await), None);
    assert_eq!(server.condition().await, SourceCondition::Fresh);

    // Installed later, and a NodeProxy created.
    let watch = server.asked(NODE_PROXIES).await.watch();
    watch.end_list("3");
    watch.send("ADDED", &proxy_json(1, 1, "4"));
    let assignment = assigned(server.delivery().await).expect("an assignment");
    assert_eq!(assignment.generation, Some(1));
    assert_eq!(assignment.spec, spec(1));
    assert!(
        assignment.reason.contains("profile default"),
        "{}",
        assignment.reason
    );

    // The agent's own status update arrives, but only the next spec is delivered.
    let status = server.own_status.borrow_and_update().clone();
    assert_eq!(status, json!({"mode": "of a later version"}));
    watch.send("MODIFIED", &proxy_json(1, 1, "5"));
    watch.send("MODIFIED", &proxy_json(2, 2, "6"));
    let assignment = assigned(server.delivery().await).expect("an assignment");
    assert_eq!((assignment.generation, assignment.spec), (Some(2), spec(2)));

    watch.send("DELETED", &proxy_json(2, 2, "7"));
    assert_eq!(assigned(server.delivery().await), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_proxy_that_cannot_be_read_changes_nothing_and_is_named() {
    let mut server = ApiServer::start_with_only(NODE_PROXIES).await;
    let watch = server.asked(NODE_PROXIES).await.watch();
    watch.send("ADDED", &proxy_json(1, 1, "4"));
    watch.end_list("4");
    assert!(assigned(server.delivery().await).is_some());
    assert_eq!(server.condition().await, SourceCondition::Fresh);
    let mut broken = proxy_json(2, 2, "5");
    broken["spec"]["profileGeneration"] = json!("two");
    watch.send("MODIFIED", &broken);
    match server.condition().await {
        SourceCondition::Stale { message, .. } => {
            assert!(
                message.contains("node-1 cannot be read: spec.profileGeneration"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
    watch.send("MODIFIED", &proxy_json(3, 3, "6"));
    let assignment = assigned(server.delivery().await).expect("an assignment");
    assert_eq!(assignment.generation, Some(3));
    assert_eq!(server.condition().await, SourceCondition::Fresh);
}

/// Failure story T264.
#[tokio::test(start_paused = true)]
async fn t264_a_value_that_only_a_newer_version_knows_costs_its_field_alone() {
    let mut server = ApiServer::start_with_only(NODE_PROXIES).await;
    let watch = server.asked(NODE_PROXIES).await.watch();
    let mut newer = proxy_json(2, 2, "4");
    newer["spec"]["config"]["mode"] = json!("teleport");
    watch.send("ADDED", &newer);
    watch.end_list("4");
    let assignment = assigned(server.delivery().await).expect("an assignment");
    assert_eq!(assignment.spec, spec(2), "the mode is the default");
    assert_eq!(assignment.unreadable[0].field(), "config.mode");
    assert_eq!(server.condition().await, SourceCondition::Fresh);
}

#[tokio::test(start_paused = true)]
async fn an_older_cluster_has_no_service_cidrs() {
    let mut server = ApiServer::start_with_only(SERVICE_CIDRS).await;
    let absent = server.asked(SERVICE_CIDRS).await;
    absent.refuse(
        404,
        "NotFound",
        "the server could not find the requested resource",
    );
    for expected in [Event::Init, Event::InitDone] {
        let expected: Event<catalog::object::ServiceCidr> = expected;
        assert_eq!(server.delivery().await, Delivery::Objects(expected.into()));
    }
    assert_eq!(server.condition().await, SourceCondition::Fresh);
}
