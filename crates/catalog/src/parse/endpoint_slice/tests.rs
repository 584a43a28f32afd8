use std::net::IpAddr;
use std::time::Duration;

use dataplane::{Hints, Port, Protocol};
use serde_json::{Value, json};

use super::*;

/// Parses a slice with one ready endpoint; `fields` replace its own.
fn parsed(fields: Value) -> Parsed<Box<Slice>> {
    let mut object = json!({
        "metadata": {
            "namespace": "shop",
            "name": "cart-x7",
            "labels": {"kubernetes.io/service-name": "cart"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [{"addresses": ["10.0.1.5"]}],
    });
    let (Value::Object(base), Value::Object(fields)) = (&mut object, fields) else {
        panic!("a slice is an object");
    };
    base.extend(fields);
    let object = serde_json::from_value(object).expect("the shape is right");
    parse_endpoint_slice(&object, &mut SharedNames::default())
}

fn kept(fields: Value) -> Box<Slice> {
    let parsed = parsed(fields.clone());
    assert_eq!(parsed.rejections, [], "{fields}");
    parsed.value.unwrap_or_else(|| panic!("not kept: {fields}"))
}

fn passed_over(fields: Value) {
    let parsed = parsed(fields.clone());
    assert_eq!(parsed.value, None, "{fields}");
    assert_eq!(parsed.rejections, [], "{fields}");
}

fn rejected(fields: Value, field: &str, message: &str) -> Option<Box<Slice>> {
    let parsed = parsed(fields.clone());
    let [rejection] = &parsed.rejections[..] else {
        panic!("one rejection of {fields}, not {:?}", parsed.rejections);
    };
    assert_eq!(
        rejection.to_string(),
        format!("EndpointSlice shop/cart-x7: {field}: {message}")
    );
    parsed.value
}

fn addresses(slice: &Slice) -> Vec<String> {
    slice
        .endpoints
        .iter()
        .map(|endpoint| endpoint.address.to_string())
        .collect()
}

#[test]
fn what_an_endpoint_does_not_say_has_its_default() {
    let slice = kept(json!({}));
    assert_eq!(slice.service, ServiceKey::new("shop", "cart"));
    assert_eq!(slice.trigger, None);
    let port = SlicePort {
        name: EndpointPort {
            name: "http".into(),
            protocol: Protocol::Tcp,
        },
        port: Port::new(8080).expect("not 0"),
    };
    assert_eq!(*slice.ports, [port]);
    let endpoint = SliceEndpoint {
        address: IpAddr::from([10, 0, 1, 5]),
        readiness: Readiness {
            ready: true,
            serving: true,
            terminating: false,
        },
        placement: None,
    };
    assert_eq!(*slice.endpoints, [endpoint]);
}

#[test]
fn conditions_node_and_hints_are_read() {
    let slice = kept(json!({"endpoints": [{
        "addresses": ["10.0.1.5"],
        "conditions": {"ready": false, "serving": false, "terminating": true},
        "nodeName": "node-1",
        "zone": "not read",
        "hints": {"forZones": [{"name": "b"}, {"name": "a"}, {"name": "b"}], "forNodes": [{"name": "node-1"}]},
    }]}));
    let endpoint = &slice.endpoints[0];
    assert_eq!(
        endpoint.readiness,
        Readiness {
            ready: false,
            serving: false,
            terminating: true
        }
    );
    let placement = Placement {
        node: Some("node-1".into()),
        hints: Hints {
            zones: ["a".into(), "b".into()].into(),
            nodes: ["node-1".into()].into(),
        },
    };
    assert_eq!(endpoint.placement.as_deref(), Some(&placement));
}

#[test]
fn slices_that_are_not_for_a_proxy_are_passed_over() {
    let labelled = |labels: Value| json!({"metadata": {"namespace": "shop", "name": "cart-x7", "labels": labels}});
    passed_over(labelled(json!({})));
    passed_over(labelled(json!(null)));
    passed_over(labelled(json!({"kubernetes.io/service-name": ""})));
    passed_over(labelled(json!({
        "kubernetes.io/service-name": "cart", "service.kubernetes.io/headless": "",
    })));
    passed_over(json!({"addressType": "FQDN", "endpoints": [{"addresses": ["example.org"]}]}));
}

#[test]
fn an_unknown_address_type_is_named() {
    let message = "\"IPv5\" is not IPv4, IPv6 or FQDN; the slice is left out";
    assert_eq!(
        rejected(json!({"addressType": "IPv5"}), "addressType", message),
        None
    );
    let message = "there is none; the slice is left out";
    assert_eq!(
        rejected(json!({"addressType": null}), "addressType", message),
        None
    );
}

#[test]
fn only_the_first_address_of_an_endpoint_counts() {
    let slice = kept(json!({"endpoints": [{"addresses": ["10.0.1.5", "10.0.1.6", "nonsense"]}]}));
    assert_eq!(addresses(&slice), ["10.0.1.5"]);
}

#[test]
fn leading_zeros_in_an_address_are_decimal() {
    let slice = kept(json!({"endpoints": [{"addresses": ["010.000.001.05"]}]}));
    assert_eq!(addresses(&slice), ["10.0.1.5"]);
}

#[test]
fn one_bad_endpoint_leaves_the_others() {
    let table = [
        (
            json!({"addresses": ["10.0.1.256"]}),
            "addresses[0]",
            "\"10.0.1.256\" is not an IP address; this endpoint is left out",
        ),
        (
            json!({"addresses": []}),
            "addresses[0]",
            "\"\" is not an IP address; this endpoint is left out",
        ),
        (
            json!({"addresses": null}),
            "addresses[0]",
            "\"\" is not an IP address; this endpoint is left out",
        ),
        (
            json!({"addresses": ["fd00::5"]}),
            "addresses[0]",
            "fd00::5 is not of IPv4 like the slice; this endpoint is left out",
        ),
        (
            json!({"addresses": ["10.0.1.9"], "conditions": {"ready": "no"}}),
            "conditions.ready",
            "\"no\" is not true or false; this endpoint is left out",
        ),
        (
            json!({"addresses": ["10.0.1.9"], "nodeName": 7}),
            "nodeName",
            "7 is not text; this endpoint is left out",
        ),
    ];
    for (bad, field, message) in table {
        let endpoints = json!([{"addresses": ["10.0.1.5"]}, bad, {"addresses": ["10.0.1.6"]}]);
        let field = format!("endpoints[1].{field}");
        let slice = rejected(json!({"endpoints": endpoints}), &field, message).expect("kept");
        assert_eq!(addresses(&slice), ["10.0.1.5", "10.0.1.6"]);
    }
}

/// T373: IPVS refuses such a destination, and the API server accepts most of these addresses.
#[test]
fn t373_an_endpoint_at_an_address_of_no_single_host_is_left_out() {
    let of_ipv4 = [
        "0.0.0.0",
        "0.1.2.3",
        "224.0.1.1",
        "239.255.0.1",
        "255.255.255.255",
    ];
    let of_ipv6 = ["::", "ff0e::1", "fe80::1"];
    let good = [("IPv4", "10.0.1.5"), ("IPv6", "fd00::5")];
    for ((family, good), bad) in good.into_iter().zip([&of_ipv4[..], &of_ipv6[..]]) {
        for bad in bad {
            let endpoints = json!([{"addresses": [bad]}, {"addresses": [good]}]);
            let fields = json!({"addressType": family, "endpoints": endpoints});
            let message = format!("no single host can have {bad}; this endpoint is left out");
            let slice = rejected(fields, "endpoints[0].addresses[0]", &message).expect("kept");
            assert_eq!(addresses(&slice), [good]);
        }
    }
}

#[test]
fn an_ipv6_slice_takes_ipv6_only() {
    let endpoints = json!([{"addresses": ["fd00::5"]}]);
    let slice = kept(json!({"addressType": "IPv6", "endpoints": endpoints}));
    assert_eq!(addresses(&slice), ["fd00::5"]);
    let clothed = json!({"addressType": "IPv6", "endpoints": [{"addresses": ["::ffff:10.0.0.1"]}]});
    let message = "10.0.0.1 is not of IPv6 like the slice; this endpoint is left out";
    rejected(clothed, "endpoints[0].addresses[0]", message);
}

#[test]
fn an_unnamed_port_has_the_empty_name_however_it_is_written() {
    for port in [
        json!({"name": "", "port": 80}),
        json!({"port": 80}),
        json!({"name": null, "port": 80}),
    ] {
        assert_eq!(&*kept(json!({"ports": [port]})).ports[0].name.name, "");
    }
}

#[test]
fn one_bad_port_leaves_the_others() {
    let none = "there is no number, and all ports at once cannot be served; this port is left out";
    let table = [
        (json!({"name": "bad"}), "port", none),
        (json!({"name": "bad", "port": null}), "port", none),
        (json!({"name": "bad", "port": 0}), "port", none),
        (
            json!({"name": "bad", "port": 65_536}),
            "port",
            "65536 is not a port (1 to 65535); this port is left out",
        ),
        (
            json!({"name": "bad", "port": 80, "protocol": "ICMP"}),
            "protocol",
            "\"ICMP\" is not TCP, UDP or SCTP; this port is left out",
        ),
    ];
    for (bad, field, message) in table {
        let ports = json!([bad, {"name": "good", "port": 80}]);
        let slice = rejected(
            json!({"ports": ports}),
            &format!("ports[0].{field}"),
            message,
        );
        assert_eq!(&*slice.expect("kept").ports[0].name.name, "good");
    }
}

#[test]
fn null_lists_are_empty() {
    let slice = kept(json!({"ports": null, "endpoints": null}));
    assert_eq!((slice.ports.len(), slice.endpoints.len()), (0, 0));
}

#[test]
fn the_order_within_a_slice_is_not_kept() {
    let forth = json!([{"addresses": ["10.0.1.5"]}, {"addresses": ["10.0.1.6"], "nodeName": "n"}]);
    let back = json!([{"addresses": ["10.0.1.6"], "nodeName": "n"}, {"addresses": ["10.0.1.5"]}]);
    assert_eq!(
        kept(json!({"endpoints": forth})),
        kept(json!({"endpoints": back}))
    );
}

#[test]
fn the_trigger_time_is_read_to_the_nanosecond() {
    let annotated = |time: &str| {
        json!({"metadata": {
            "namespace": "shop",
            "name": "cart-x7",
            "labels": {"kubernetes.io/service-name": "cart"},
            "annotations": {LAST_CHANGE_TRIGGER_TIME: time},
        }})
    };
    let expected = SystemTime::UNIX_EPOCH + Duration::new(1_767_225_600, 123_456_789);
    assert_eq!(
        kept(annotated("2026-01-01T00:00:00.123456789Z")).trigger,
        Some(expected)
    );

    let field = "metadata.annotations[endpoints.kubernetes.io/last-change-trigger-time]";
    let message =
        "\"yesterday\" is not a time in RFC 3339; how long this change takes is not measured";
    let slice = rejected(annotated("yesterday"), field, message).expect("kept");
    assert_eq!(slice.trigger, None);
    assert_eq!(slice.endpoints.len(), 1);
}
