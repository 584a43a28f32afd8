//! Objects that an API server should not accept: they are read or rejected, reported by name, and
//! leave nothing behind.
//!
//! `tests/corpus` has one valid object of each kind, and every object that once did harm.
//! `PROPTEST_CASES=1000000` searches for more.

use std::path::Path;

use catalog::object::{EndpointSlice, Node, Object, Service, ServiceCidr};
use catalog::{Catalog, Change, Event, ObjectKey};
use dataplane::{Config, Dataplane, FrontendKind, ObjectKind, ServiceKey, ServiceRules, compile};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testkit::{corpus, damaged, damaged_json, try_many};

/// Far more than any of the largest objects takes, and far less than parsing one in quadratic time.
const PROMPTLY: std::time::Duration = std::time::Duration::from_secs(10);
/// The number of inputs for each requested proptest case.
const CASES: u32 = 8;

fn recorded() -> Vec<(Value, testkit::Input)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let read = |(path, input): (_, testkit::Input)| match serde_json::from_slice(&input.0) {
        Ok(value) => (value, input),
        Err(error) => panic!("{path:?}: {error}"),
    };
    corpus(&folder).into_iter().map(read).collect()
}

/// A catalog that contains every valid object.
fn good(objects: &[Value]) -> Catalog {
    let mut catalog = Catalog::new("node-1");
    for object in objects {
        assert!(take(&mut catalog, object), "{object}");
    }
    catalog
}

/// Applies an object of the kind that it names; returns whether it could be decoded.
fn take(catalog: &mut Catalog, object: &Value) -> bool {
    match object["kind"].as_str() {
        Some("EndpointSlice") => take_as::<EndpointSlice>(catalog, object),
        Some("Node") => take_as::<Node>(catalog, object),
        Some("ServiceCIDR") => take_as::<ServiceCidr>(catalog, object),
        _ => take_as::<Service>(catalog, object),
    }
}

fn take_as<T: Object + DeserializeOwned>(catalog: &mut Catalog, object: &Value) -> bool
where
    Change: From<Event<T>>,
{
    // Sources accept only JSON objects.
    if !object.is_object() {
        return false;
    }
    let decoded = T::deserialize(object);
    let is_decoded = decoded.is_ok();
    if let Ok(object) = decoded {
        catalog.apply(Event::Apply(object));
    }
    is_decoded
}

/// Prints the result of every query to a catalog, down to the rules for the kernel.
fn print(catalog: &Catalog) -> String {
    let mut dataplane = Dataplane::default();
    for key in catalog.services() {
        let view = catalog.service(key).expect("it is listed");
        let rules = compile(
            &view.service,
            &view.endpoints,
            dataplane.node(),
            &Config::default(),
        );
        dataplane.set(rules.into());
    }
    // What the Node had earlier and no longer has is kept on purpose.
    let kept = |rejection: &&dataplane::Rejection| {
        rejection.object.kind == ObjectKind::Node
            && ["status.addresses", "spec.podCIDRs"].contains(&rejection.field.as_str())
    };
    let rejections = catalog.rejections().filter(|rejection| !kept(rejection));
    let rejections: Vec<String> = rejections.map(ToString::to_string).collect();
    let node = catalog.node().map(|node| {
        let addresses = (node.ipv4, node.ipv6);
        (
            &node.name,
            &node.labels,
            &node.zone,
            addresses,
            node.lifecycle,
        )
    });
    let cidrs = catalog.service_cidrs();
    format!("{dataplane}\n{rejections:?}\n{node:?}\n{cidrs:?}")
}

#[test]
fn whatever_a_field_holds_it_is_read_or_named_and_leaves_nothing_behind() {
    let objects: Vec<Value> = recorded().into_iter().map(|(value, _)| value).collect();
    let before = print(&good(&objects));
    let odd = [
        "TCP",
        "UDP",
        "SCTP",
        "IPv4",
        "IPv6",
        "Local",
        "ClusterIP",
        "NodePort",
        "LoadBalancer",
        "ExternalName",
        "10.96.0.10",
        "fd00:10:96::10",
        "web",
        "cart",
        "node-1",
    ];
    let strategy = damaged_json(objects.clone(), odd.map(|word| json!(word)).to_vec());
    try_many(CASES, &strategy, |object| {
        let mut catalog = good(&objects);
        let of_whom = object["metadata"]["name"].as_str().map(str::to_owned);
        if take(&mut catalog, &object) {
            print(&catalog);
            for rejection in catalog.rejections() {
                let said = rejection.to_string();
                prop_assert!(!rejection.field.is_empty(), "{}", said);
                // Only the beginning of an invalid name is shown, escaped.
                let is_named = |name: &str| said.contains(name) || said.contains("left out");
                prop_assert!(of_whom.as_deref().is_some_and(is_named), "{}", said);
            }
        }
        // An object under another name stays until it is deleted.
        let is_one = |good: &Value| ["kind", "metadata"].iter().all(|f| good[f] == object[f]);
        if objects.iter().any(is_one) {
            for object in &objects {
                take(&mut catalog, object);
            }
            prop_assert_eq!(print(&catalog), before.as_str());
        }
        Ok(())
    });
}

#[test]
fn whatever_bytes_come_they_are_an_object_or_an_error() {
    let inputs = recorded().into_iter().map(|(_, input)| input).collect();
    let words = [
        "null", "[", "]", "{", "}", "\"", "\\u0000", "\\ud800", "1e999", "-0", ",", ":", "\u{feff}",
    ];
    let words = words.map(|word| word.as_bytes().to_vec()).to_vec();
    try_many(CASES, &damaged(inputs, words), |input| {
        let mut catalog = Catalog::new("node-1");
        if let Ok(object) = serde_json::from_slice::<Service>(&input.0) {
            catalog.apply(Event::Apply(object));
        }
        if let Ok(object) = serde_json::from_slice::<EndpointSlice>(&input.0) {
            catalog.apply(Event::Apply(object));
        }
        if let Ok(object) = serde_json::from_slice::<Node>(&input.0) {
            catalog.apply(Event::Apply(object));
        }
        if let Ok(object) = serde_json::from_slice::<ServiceCidr>(&input.0) {
            catalog.apply(Event::Apply(object));
        }
        print(&catalog);
        Ok(())
    });
}

/// From any source: names appear in the kernel's rules.
#[test]
fn an_object_with_a_name_that_no_api_server_takes_is_named_and_never_kept() {
    let objects: Vec<Value> = recorded().into_iter().map(|(value, _)| value).collect();
    let before = print(&good(&objects));
    let long = "n".repeat(1 << 20);
    for (namespace, name) in [
        ("shop", "web\n* COMMIT"),
        ("shop", "Web"),
        ("shop", ""),
        ("shop", "-"),
        ("shop\0", "web"),
        (long.as_str(), "web"),
        ("shop", long.as_str()),
    ] {
        let mut catalog = good(&objects);
        let mut object = objects
            .iter()
            .find(|object| object["kind"] == "Service")
            .expect("the corpus has one")
            .clone();
        object["metadata"]["namespace"] = json!(namespace);
        object["metadata"]["name"] = json!(name);
        let services = catalog.services().count();
        assert!(take(&mut catalog, &object));
        assert_eq!(catalog.services().count(), services);
        let said: Vec<String> = catalog.rejections().map(ToString::to_string).collect();
        let said = said
            .iter()
            .find(|said| said.contains("the object is left out"));
        let said = said.expect("it is named");
        assert!(said.len() < 600 && !said.contains(['\n', '\0']), "{said}");
        let key = ObjectKey::namespaced(namespace, name);
        catalog.apply(Event::<Service>::Delete(key));
        assert_eq!(print(&catalog), before, "it left something behind");
    }
}

#[test]
fn names_within_an_object_are_taken_as_the_api_server_takes_them() {
    let mut catalog = Catalog::new("node-1");
    let bad = "http\n* COMMIT";
    assert!(take(
        &mut catalog,
        &json!({
            "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"clusterIP": "10.96.0.10", "ports": [{"name": bad, "port": 80}, {"name": "https", "port": 443}]},
        })
    ));
    let slice = |name: &str, service: &str| {
        json!({
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "shop", "name": name, "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.1.5"]}],
            "ports": [{"name": bad, "port": 8080}, {"name": "https", "port": 8443}],
        })
    };
    assert!(take(&mut catalog, &slice("web-1", "web")));
    assert!(take(&mut catalog, &slice("web-2", bad)));
    let said: Vec<String> = catalog.rejections().map(ToString::to_string).collect();
    let named = [
        "Service shop/web: spec.ports[0].name: ",
        "EndpointSlice shop/web-1: ports[0].name: ",
        "EndpointSlice shop/web-2: metadata.labels[kubernetes.io/service-name]: ",
    ];
    assert_eq!(said.len(), named.len(), "{said:#?}");
    for (said, named) in said.iter().zip(named) {
        assert!(said.starts_with(named) && !said.contains('\n'), "{said}");
    }
    let service = catalog.services().next().expect("it is served");
    let view = catalog.service(service).expect("it is served");
    assert_eq!(view.service.ports.len(), 1);
    assert_eq!(view.endpoints.by_port.len(), 1);
}

/// A Service and one of its slices; `ports` may be of any type.
fn pair(spec: &Value, ports: &[Value], endpoints: u32) -> [Value; 2] {
    let mut spec = spec.clone();
    spec["clusterIP"] = json!("10.96.0.10");
    let address = |n: u32| json!({"addresses": [format!("10.0.{}.{}", n >> 8, n & 255)]});
    [
        json!({
            "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
            "spec": spec, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
        }),
        json!({
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "shop", "name": "web-1",
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": "IPv4", "ports": ports,
            "endpoints": (0..endpoints).map(address).collect::<Vec<Value>>(),
        }),
    ]
}

fn many(count: u32, entry: impl Fn(u32) -> Value) -> Vec<Value> {
    (0..count).map(entry).collect()
}

/// The compiled rules of a Service, and all messages about it.
fn compiled(objects: &[Value]) -> (ServiceRules, Vec<String>) {
    let catalog = good(objects);
    let key = ServiceKey::new("shop", "web");
    let view = catalog.service(&key).expect("it is served");
    let rules = compile(
        &view.service,
        &view.endpoints,
        &dataplane::Node::default(),
        &Config::default(),
    );
    let said = catalog.rejections().chain(&rules.rejections);
    let said = said.map(ToString::to_string).collect();
    (rules, said)
}

/// An API server limits no list of a Service; this many entries fit into the largest possible
/// object. Parsed in quadratic time, each of these objects would take minutes.
#[test]
fn t91_the_largest_objects_are_read_promptly_and_what_is_too_much_is_named() {
    let http = many(1, |_| json!({"name": "p0", "port": 80}));
    let ports = many(20_000, |n| json!({"name": format!("p{n}"), "port": n + 1}));
    let twins = many(20_000, |n| json!({"name": format!("p{n}"), "port": 80}));
    let addresses = many(100_000, |n| {
        json!(format!(
            "198.{}.{}.{}",
            18 + (n >> 16),
            (n >> 8) & 255,
            n & 255
        ))
    });
    let damaged = many(100_000, |n| json!(n));
    let mut mostly_damaged = damaged.clone();
    mostly_damaged[0] = json!("10.96.0.10");
    for (what, objects, said) in [
        (
            "external IPs",
            pair(&json!({"ports": http, "externalIPs": addresses}), &http, 5),
            "Service shop/web: spec.externalIPs[1000]: only the first 1000 are read; 99000 more are not served",
        ),
        (
            "external IPs that are none",
            pair(&json!({"ports": http, "externalIPs": damaged}), &http, 5),
            "; 901 more fields of this object are not honoured",
        ),
        (
            "cluster IPs that are none",
            pair(
                &json!({"ports": http, "clusterIPs": mostly_damaged}),
                &http,
                5,
            ),
            "spec.clusterIPs[2]: only the first 2 are read; 99998 more are not served",
        ),
        (
            "ports of one number",
            pair(&json!({"ports": twins, "externalIPs": addresses}), &http, 5),
            " more are not served",
        ),
        (
            "ports of one name",
            pair(
                &json!({"ports": many(40_000, |n| json!({"name": "p", "port": n + 1}))}),
                &http,
                5,
            ),
            "spec.ports[20000]: only the first 20000 are read",
        ),
        (
            "endpoints",
            pair(&json!({"ports": http}), &http, 40_000),
            "endpoints[1000]: only the first 1000 are read; 39000 more are left out",
        ),
        (
            "ports of a slice",
            pair(&json!({"ports": http}), &ports, 1_000),
            "",
        ),
        (
            "ports of both",
            pair(&json!({"ports": ports}), &ports, 1_000),
            "have more endpoints than all ports of a Service may have",
        ),
    ] {
        let start = std::time::Instant::now();
        let (rules, rejections) = compiled(&objects);
        let took = start.elapsed();
        assert!(took < PROMPTLY, "{what} took {took:?}");
        assert!(rejections.len() <= 200, "{what}: {}", rejections.len());
        let is_said = rejections.iter().any(|text| text.contains(said));
        let last = rejections.last();
        assert_eq!(said.is_empty(), last.is_none(), "{what}: {last:?}");
        assert!(said.is_empty() || is_said, "{what}: {last:?}");
        assert!(!rules.frontends.is_empty(), "{what}: nothing is served");
    }
}

/// The unread part of a list of source ranges admits no client.
#[test]
fn t91_source_ranges_that_are_too_many_never_open_a_service() {
    let http = many(1, |_| json!({"name": "p0", "port": 80}));
    let range = |n: u32| json!(format!("10.{}.{}.0/25", n >> 8, n & 255));
    let ports = many(20, |n| json!({"name": format!("p{n}"), "port": n + 1}));
    for (ports, ranges) in [(&http, 60_000), (&ports, 20_000), (&ports, 60_000)] {
        let spec = json!({
            "type": "LoadBalancer", "ports": ports,
            "loadBalancerSourceRanges": many(ranges, range),
        });
        let start = std::time::Instant::now();
        let (rules, said) = compiled(&pair(&spec, ports, 5));
        assert!(start.elapsed() < PROMPTLY, "{:?}", start.elapsed());
        assert!(!said.is_empty());
        let guarded = rules.frontends.iter();
        let guarded = guarded.filter(|(_, f)| f.kind == FrontendKind::LoadBalancerIp);
        for (key, frontend) in guarded {
            assert_eq!(frontend.source_ranges.len(), 20_000, "{key}");
        }
    }
    // The ranges of the second family come after everything that is read.
    let mut mixed = many(20_000, range);
    mixed.push(json!("fd00::/64"));
    let spec = json!({
        "type": "LoadBalancer", "ports": http, "loadBalancerSourceRanges": mixed,
    });
    let catalog = good(&pair(&spec, &http, 5));
    let view = catalog.service(&ServiceKey::new("shop", "web"));
    let ranges = &view.expect("it is served").service.source_ranges;
    assert!(
        ranges.iter().any(|range| range.addr().is_ipv6()),
        "IPv6 is open"
    );
}

/// If a Service has too many slices, which ones are merged does not depend on their order of
/// arrival.
#[test]
fn t91_too_many_slices_of_a_service_are_counted_by_name_and_named() {
    let http = many(1, |_| json!({"name": "p0", "port": 80}));
    let [service, first] = pair(&json!({"ports": http}), &http, 0);
    let slice = |n: u32| {
        let mut slice = first.clone();
        slice["metadata"]["name"] = json!(format!("web-{n:05}"));
        slice["endpoints"] = json!([{"addresses": [format!("10.0.{}.{}", n >> 8, n & 255)]}]);
        slice
    };
    let start = std::time::Instant::now();
    let backwards: Vec<Value> = (0..5_000).rev().map(slice).chain([service]).collect();
    let (rules, said) = compiled(&backwards);
    assert!(start.elapsed() < PROMPTLY, "{:?}", start.elapsed());
    let frontend = &rules.frontends[0].1;
    assert_eq!(frontend.cluster.len(), 4_096);
    let last = frontend.cluster.last().expect("they are there");
    assert_eq!(last.address.to_string(), "10.0.15.255");
    assert!(said[0].contains("904 EndpointSlices"), "{said:?}");
}

/// Each event of a slice looks at the ports of all slices of its Service: with a hundred slices of
/// 20,000 ports one took a second, in which no Service of anybody was compiled.
#[test]
fn t387_slices_with_too_many_ports_together_are_counted_by_name_and_named() {
    let ports = many(20_000, |n| json!({"name": format!("p{n}"), "port": 80}));
    let [service, first] = pair(&json!({"ports": [{"name": "p0", "port": 80}]}), &ports, 0);
    let slice = |n: u32, count: usize| {
        let mut slice = first.clone();
        slice["metadata"]["name"] = json!(format!("web-{n}"));
        slice["ports"] = json!(ports[..count]);
        slice["endpoints"] = json!([{"addresses": [format!("10.0.0.{n}")]}]);
        slice
    };
    let all = (0..7).rev().map(|n| slice(n, 20_000));
    let objects: Vec<Value> = [service].into_iter().chain(all).collect();
    let (rules, said) = compiled(&objects);
    assert_eq!(rules.frontends[0].1.cluster.len(), 6);
    assert!(said[0].contains("1 EndpointSlices"), "{said:?}");
    // The first one leaves room for the last, of which the event says nothing.
    let smaller = slice(0, 1);
    let mut catalog = good(&objects);
    let _ = catalog.take_dirty();
    catalog.apply(Event::Apply(
        serde_json::from_value::<EndpointSlice>(smaller).expect("it is an EndpointSlice"),
    ));
    let key = ServiceKey::new("shop", "web");
    let dirty = catalog.take_dirty();
    assert!(dirty.services.contains_key(&key), "{dirty:?}");
    let view = catalog.service(&key).expect("it is served");
    assert_eq!(
        view.endpoints.by_port.values().next().map(Vec::len),
        Some(7)
    );
}
