//! The watches against an API server whose answers the test writes.

mod absent_kinds;
mod api_server;
mod protobuf;

use std::time::{Duration, SystemTime};

use catalog::object::Service;
use catalog::{Change, Event, ObjectKey};
use serde_json::{Value, json};

use crate::{Delivery, SourceCondition};
use api_server::{ApiServer, NODE_PROXIES, NODES, SERVICE_CIDRS, SERVICES, SLICES};

const WHOLE: &str = "fieldSelector=spec.clusterIP%21%3DNone&\
                     labelSelector=%21service.kubernetes.io%2Fservice-proxy-name";
const STREAMED: &str = "allowWatchBookmarks=true&sendInitialEvents=true&\
                        resourceVersionMatch=NotOlderThan&resourceVersion=";

/// A Service as an API server sends it, with many fields that are not used.
fn service_json(name: &str, version: &str) -> Value {
    json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": {
            "name": name, "namespace": "shop", "uid": "6f0e", "resourceVersion": version,
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"app": name},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
            "managedFields": [{
                "manager": "kubectl", "operation": "Update", "apiVersion": "v1",
                "time": "2026-01-02T03:04:05Z", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:clusterIP": {}}},
            }],
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web"}],
            "selector": {"app": name}, "sessionAffinity": "None",
        },
        "status": {"loadBalancer": {}},
    })
}

fn service(name: &str, version: &str) -> Service {
    serde_json::from_value(service_json(name, version)).expect("a Service")
}

fn reported(event: Event<Service>) -> Delivery {
    Delivery::Objects(event.into())
}

#[tokio::test(start_paused = true)]
async fn only_what_this_node_needs_is_asked_for() {
    let mut server = ApiServer::start();
    for (path, selectors) in [
        (SERVICES, WHOLE),
        (SLICES, "labelSelector=%21service.kubernetes.io%2Fheadless"),
    ] {
        let asked = server.asked(path).await;
        assert_eq!(asked.query, selectors);
        asked.cut();
    }
    for (path, selectors) in [
        (NODES, "fieldSelector=metadata.name%3Dnode-1&"),
        (SERVICE_CIDRS, ""),
        (NODE_PROXIES, "fieldSelector=metadata.name%3Dnode-1&"),
    ] {
        let asked = server.asked(path).await;
        assert_eq!(asked.query, format!("watch=true&{selectors}{STREAMED}"));
        asked.cut();
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_and_what_happens_after_it_arrive_in_order() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let cart = service_json("cart", "5");
    let watch = server.listed(SERVICES, "7", &[cart]).await;
    watch.send("MODIFIED", &service_json("cart", "8"));
    watch.send("ADDED", &service_json("till", "9"));
    watch.send("DELETED", &service_json("cart", "10"));
    for expected in [
        reported(Event::Init),
        reported(Event::InitApply(service("cart", "5"))),
        reported(Event::InitDone),
        reported(Event::Apply(service("cart", "8"))),
        reported(Event::Apply(service("till", "9"))),
        reported(Event::Delete(ObjectKey::namespaced("shop", "cart"))),
    ] {
        assert_eq!(server.delivery().await, expected);
    }
    assert_eq!(server.condition().await, SourceCondition::Fresh);
}

#[tokio::test(start_paused = true)]
async fn t23_a_watch_resumes_after_the_last_thing_seen() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let watch = server.listed(SERVICES, "7", &[]).await;
    watch.send("ADDED", &service_json("cart", "8"));
    watch.bookmark("30");
    assert_eq!(server.condition().await, SourceCondition::Fresh);
    for expected in [
        reported(Event::Init),
        reported(Event::InitDone),
        reported(Event::Apply(service("cart", "8"))),
    ] {
        assert_eq!(server.delivery().await, expected);
    }
    drop(watch);
    let asked = server.asked(SERVICES).await;
    assert!(
        asked.query.ends_with("&resourceVersion=30"),
        "{}",
        asked.query
    );
    assert!(
        !asked.query.contains("sendInitialEvents"),
        "{}",
        asked.query
    );
    // Changed while no watch was open, and not touched again.
    asked.watch().send("DELETED", &service_json("cart", "31"));
    let key = ObjectKey::namespaced("shop", "cart");
    assert_eq!(server.delivery().await, reported(Event::Delete(key)));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_decoded_is_named_and_holds_up_nothing() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let mut broken = service_json("broken", "4");
    broken["spec"]["ports"] = json!("eighty");
    let expected = |message: &Delivery| match message {
        Delivery::Objects(Change::Service(event)) => match &**event {
            Event::Undecodable {
                key,
                field,
                message,
            } => {
                assert_eq!(key, &ObjectKey::namespaced("shop", "broken"));
                assert_eq!(field, "spec.ports");
                assert!(message.contains("eighty"), "{message}");
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let cart = service_json("cart", "5");
    let watch = server.listed(SERVICES, "7", &[broken.clone(), cart]).await;
    assert_eq!(server.delivery().await, reported(Event::Init));
    expected(&server.delivery().await);
    let good = reported(Event::InitApply(service("cart", "5")));
    assert_eq!(server.delivery().await, good);
    assert_eq!(server.delivery().await, reported(Event::InitDone));
    assert_eq!(server.condition().await, SourceCondition::Fresh);

    broken["metadata"]["resourceVersion"] = json!("8");
    watch.send("MODIFIED", &broken);
    // An object without a valid name.
    watch.send("ADDED", &json!({"metadata": {"name": 3}}));
    watch.send("ADDED", &service_json("till", "9"));
    expected(&server.delivery().await);
    assert_eq!(
        server.delivery().await,
        reported(Event::Apply(service("till", "9")))
    );
    watch.send("DELETED", &broken);
    let key = ObjectKey::namespaced("shop", "broken");
    assert_eq!(server.delivery().await, reported(Event::Delete(key)));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_cut_is_streamed() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let asked = server.asked(SERVICES).await;
    assert_eq!(asked.query, WHOLE);
    asked.answer_in("application/json", 200, r#"{"items": ["#);
    assert!(matches!(
        server.condition().await,
        SourceCondition::Stale { .. }
    ));
    let asked = server.asked(SERVICES).await;
    assert!(asked.query.ends_with(STREAMED), "{}", asked.query);
    let watch = asked.watch();
    watch.send("ADDED", &service_json("cart", "5"));
    watch.end_list("7");
    for expected in [
        reported(Event::Init),
        reported(Event::Init),
        reported(Event::InitApply(service("cart", "5"))),
        reported(Event::InitDone),
    ] {
        assert_eq!(server.delivery().await, expected);
    }
    server.until_fresh().await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_stream_lists_is_listed_page_by_page() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let whole = server.asked(SERVICES).await;
    whole.answer_in("application/json", 200, r#"{"items": ["#);
    server.asked(SERVICES).await.refuse(
        422,
        "Invalid",
        "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the \
         WatchList feature gate is enabled",
    );
    let first = server.asked(SERVICES).await;
    assert_eq!(first.query, format!("{WHOLE}&limit=500"));
    first.answer(
        200,
        &json!({
            "kind": "ServiceList", "apiVersion": "v1",
            "metadata": {"resourceVersion": "70", "continue": "more"},
            "items": [service_json("cart", "5")],
        }),
    );
    let second = server.asked(SERVICES).await;
    assert_eq!(second.query, format!("{WHOLE}&limit=500&continue=more"));
    second.answer(
        200,
        &json!({
            "kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "70"},
            "items": [service_json("till", "6")],
        }),
    );
    let watch = server.asked(SERVICES).await;
    assert_eq!(
        watch.query,
        format!("watch=true&{WHOLE}&allowWatchBookmarks=true&resourceVersion=70")
    );
    for expected in [
        reported(Event::Init),
        reported(Event::Init),
        reported(Event::InitApply(service("cart", "5"))),
        reported(Event::InitApply(service("till", "6"))),
        reported(Event::InitDone),
    ] {
        assert_eq!(server.delivery().await, expected);
    }
    server.until_fresh().await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_forgot_its_history_is_listed_again_without_alarm() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let watch = server.listed(SERVICES, "7", &[]).await;
    assert_eq!(server.condition().await, SourceCondition::Fresh);
    assert_eq!(server.delivery().await, reported(Event::Init));
    assert_eq!(server.delivery().await, reported(Event::InitDone));
    watch.send(
        "ERROR",
        &json!({"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410,
                "message": "too old resource version: 7 (90)"}),
    );
    let again = server.asked(SERVICES).await;
    assert_eq!(again.query, WHOLE);
    again.list("92", &[service_json("till", "91")]);
    let watch = server.asked(SERVICES).await.watch();
    for expected in [
        reported(Event::Init),
        reported(Event::InitApply(service("till", "91"))),
        reported(Event::InitDone),
    ] {
        assert_eq!(server.delivery().await, expected);
    }
    let reported = server.deliveries_within(Duration::from_secs(1)).await;
    assert_eq!(reported, [], "an alarm");
    // Some front ends send this status as the answer to the request itself.
    drop(watch);
    let resumed = server.asked(SERVICES).await;
    assert!(
        resumed.query.ends_with("resourceVersion=92"),
        "{}",
        resumed.query
    );
    resumed.refuse(410, "Expired", "too old resource version: 92 (190)");
    assert_eq!(server.asked(SERVICES).await.query, WHOLE);
}

#[tokio::test(start_paused = true)]
async fn a_cut_connection_makes_it_stale_until_it_is_back() {
    let before = SystemTime::now();
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let watch = server.listed(SERVICES, "7", &[]).await;
    assert_eq!(server.condition().await, SourceCondition::Fresh);
    watch.cut();
    match server.condition().await {
        SourceCondition::Stale { since, message } => {
            assert!(since >= before && since <= SystemTime::now());
            assert!(message.starts_with("Services: the connection"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    for _ in 0..3 {
        server.asked(SERVICES).await.cut();
    }
    let asked = server.asked(SERVICES).await;
    assert!(
        asked.query.ends_with("resourceVersion=7"),
        "{}",
        asked.query
    );
    let watch = asked.watch();
    server.until_fresh().await;
    assert_eq!(server.delivery().await, reported(Event::Init));
    assert_eq!(server.delivery().await, reported(Event::InitDone));
    watch.send("ADDED", &service_json("cart", "8"));
    assert_eq!(
        server.delivery().await,
        reported(Event::Apply(service("cart", "8")))
    );
}

#[tokio::test(start_paused = true)]
async fn t24_a_silent_api_server_is_noticed() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let watch = server.listed(SERVICES, "6", &[]).await;
    assert_eq!(server.condition().await, SourceCondition::Fresh);
    watch.bookmark("7");
    // The connections stay open, but nothing more arrives on any watch, not even bookmarks.
    let begun = tokio::time::Instant::now();
    match server.condition().await {
        SourceCondition::Stale { message, .. } => {
            assert!(message.contains("silent"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let noticed = begun.elapsed();
    assert!(noticed <= Duration::from_secs(120), "{noticed:?}");
    let asked = server.asked(SERVICES).await;
    assert!(
        asked.query.ends_with("resourceVersion=7"),
        "{}",
        asked.query
    );
}

/// Failure story T446: etcd was restored from a backup. The API server opened each watch that went on
/// after a version of the time before, and sent nothing until the cluster had as many changes
/// again. The agent asked for the same every 100 seconds, took the answer for a sign of life, and
/// missed every change.
#[tokio::test(start_paused = true)]
async fn t446_a_watch_on_which_nothing_arrives_is_followed_by_a_list() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let watch = server.listed(SERVICES, "9000", &[]).await;
    assert_eq!(server.condition().await, SourceCondition::Fresh);
    watch.bookmark("10000");
    watch.cut();
    let asked = server.asked(SERVICES).await;
    assert!(asked.query.ends_with("resourceVersion=10000"));
    let _mute = asked.watch();

    let asked = server.asked(SERVICES).await;
    assert!(!asked.is_watch(), "{}", asked.query);
    asked.list("9100", &[service_json("cart", "9050")]);
    let applied = reported(Event::InitApply(service("cart", "9050")));
    while server.delivery().await != applied {}
}

#[tokio::test(start_paused = true)]
async fn t24_bookmarks_are_a_sign_of_life() {
    let mut server = ApiServer::start();
    let mut watches = Vec::new();
    for path in [SERVICES, SLICES, NODES, SERVICE_CIDRS, NODE_PROXIES] {
        watches.push(server.listed(path, "7", &[]).await);
    }
    assert_eq!(server.condition().await, SourceCondition::Fresh);
    let _ = server.deliveries_within(Duration::from_secs(1)).await;
    for minute in 0..30 {
        for watch in &watches {
            watch.bookmark(&format!("{}", 10 + minute));
        }
        let reported = server.deliveries_within(Duration::from_secs(60)).await;
        assert_eq!(reported, [], "minute {minute}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_reported_in_the_api_servers_words() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let message = "services is forbidden: User \"agent\" cannot watch resource \"services\"";
    server
        .asked(SERVICES)
        .await
        .refuse(403, "Forbidden", message);
    match server.condition().await {
        SourceCondition::Stale { message, .. } => assert_eq!(
            message,
            "Services: the API server answered 403 Forbidden: services is forbidden: \
             User \"agent\" cannot watch resource \"services\""
        ),
        other => panic!("{other:?}"),
    }
    let _watch = server.listed(SERVICES, "3", &[]).await;
    assert_eq!(server.condition().await, SourceCondition::Fresh);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_keeps_being_closed_is_not_opened_in_a_storm() {
    let mut server = ApiServer::start_with_only(SERVICES).await;
    let minute = Duration::from_secs(60);
    let asked = server.count(SERVICES, minute, |asked| match asked.is_watch() {
        true => drop(asked.watch()),
        false => asked.list("7", &[]),
    });
    let asked = asked.await;
    // The list, its watch, and one after each wait: the shortest are 0.5 s, 1 s and then 2 s.
    assert!((3..=34).contains(&asked), "{asked} times in a minute");
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_it_is_stopped_and_when_the_engine_is_gone() {
    let server = ApiServer::start();
    server.stopper.cancel();
    assert_eq!(server.source.await.expect("no panic"), Ok(()));

    let mut server = ApiServer::start_with_only(SERVICES).await;
    let asked = server.asked(SERVICES).await;
    let ApiServer {
        source, deliveries, ..
    } = server;
    drop(deliveries);
    asked.list("7", &[]);
    let ended = source.await.expect("no panic");
    assert_eq!(ended, Err(crate::EngineGone));
}
