use std::sync::Arc;

use crds::profile::mode::Mode as ProfileMode;
use dataplane::{Protocol, Service, compile};
use foreign_proxy::Mode;
use serde_json::json;
use testkit::{ServiceBuilder, address_plan, mk_config, mk_endpoints, mk_node, mk_service};

use super::*;
use crate::preflight::Severity;

/// The endpoint of every Service, and the Pod that has the host port.
const ENDPOINT: &str = "10.0.2.7:8080";
const POD: &str = "10.0.1.8:9090";

fn own_address() -> String {
    address_plan::node_address(1, Family::Ipv4).to_string()
}

fn web() -> ServiceBuilder {
    mk_service("shop/web").cluster_ip("10.96.0.10")
}

/// What node 1 is to serve, with an endpoint for each Service.
fn desired(services: Vec<Service>) -> Dataplane {
    let mut dataplane = Dataplane::new(mk_node(1).build(), mk_config().build());
    let endpoints = mk_endpoints().tcp("http").ready(ENDPOINT, "node-2").build();
    for service in services {
        let (node, config) = (Arc::clone(dataplane.node()), Arc::clone(dataplane.config()));
        let rules = compile(&service, &endpoints, &node, &config);
        dataplane.set(rules.into());
    }
    dataplane
}

fn host_port(port: u16) -> HostPort {
    HostPort {
        port: (Protocol::Tcp, port),
        address: None,
        pod: POD.parse().expect("an address and a port"),
    }
}

fn change(from: ProfileMode, to: ProfileMode, own_rules: OwnRules) -> Change {
    let tables = Tables::Shared;
    let proxy = |mode| Proxy { mode, tables };
    Change {
        from: proxy(from),
        to: proxy(to),
        own_rules,
    }
}

fn severities(desired: &Dataplane, port: HostPort, change: Change) -> Vec<Severity> {
    let points = check(desired, &[(port, change)]).into_iter();
    points.map(|point| point.weight).collect()
}

/// Failure story T317: Signpost serves nothing at an external IP that is the node's address.
#[test]
fn t317_a_host_port_that_goes_from_a_service_to_a_pod_is_a_warning_with_both() {
    let external = web().external_ip(&own_address()).port("http", 8443).build();
    let desired = desired(vec![external]);
    let from_iptables = change(
        ProfileMode::Iptables,
        ProfileMode::Nftables,
        OwnRules::Present,
    );
    let points = check(&desired, &[(host_port(8443), from_iptables)]);
    let expected = "a host port is also a port of an external IP that is the node's address, where Signpost serves none, \
                    of a Service: 8443/tcp (Pod at 10.0.1.8:9090, Service shop/web); in kube-proxy's mode iptables \
                    the Service answers, in Signpost's mode nftables the Pod answers: give the Pods";
    assert_eq!(points.len(), 1, "{points:?}");
    assert_eq!(points[0].weight, Severity::Warning);
    assert!(points[0].text.starts_with(expected), "{}", points[0]);
    assert!(!points[0].text.contains('\n'), "it becomes a condition");
    // Other ports, and other addresses of the node.
    assert_eq!(severities(&desired, host_port(8444), from_iptables), []);
    let elsewhere = HostPort {
        address: Some(address_plan::second_address(1, Family::Ipv4)),
        ..host_port(8443)
    };
    assert_eq!(severities(&desired, elsewhere, from_iptables), []);
    // The order in which kube-proxy and the plugin attached their rules decides.
    let from_nftables = change(
        ProfileMode::Nftables,
        ProfileMode::Nftables,
        OwnRules::Present,
    );
    let note = [Severity::Note];
    assert_eq!(severities(&desired, host_port(8443), from_nftables), note);
    // What mode ipvs accepts, no rule of the plugin redirects.
    let from_ipvs = change(ProfileMode::Ipvs, ProfileMode::Nftables, OwnRules::Present);
    let warning = [Severity::Warning];
    assert_eq!(severities(&desired, host_port(8443), from_ipvs), warning);
}

/// Failure story T318: so does k3s, whose load balancer has a host port for each port of a Service
/// at the addresses of nodes.
#[test]
fn t318_where_signposts_rules_are_there_a_port_that_both_have_is_no_warning() {
    let balanced = web()
        .load_balancer_ip(&own_address())
        .port("http", 443)
        .node_port(30443);
    let desired = desired(vec![balanced.build()]);
    let all_modes = [
        ProfileMode::Nftables,
        ProfileMode::Iptables,
        ProfileMode::Ipvs,
    ];
    for number in [443, 30443] {
        let port = host_port(number);
        for (from, to) in all_modes
            .map(|from| all_modes.map(|to| (from, to)))
            .concat()
        {
            let beside = change(from, to, OwnRules::Present);
            assert_eq!(severities(&desired, port, beside), [], "{beside:?}");
            let expected = match from {
                ProfileMode::Iptables => vec![],
                ProfileMode::Nftables => vec![Severity::Note],
                // It leaves nothing but node ports to the Pod.
                ProfileMode::Ipvs if number == 443 => vec![],
                ProfileMode::Ipvs => vec![Severity::Warning],
            };
            let handed_back = change(from, to, OwnRules::Absent);
            let found = severities(&desired, port, handed_back);
            assert_eq!(found, expected, "{handed_back:?}");
        }
    }
}

#[test]
fn mode_ipvs_gives_a_load_balancer_ip_with_source_ranges_to_the_pod() {
    let balanced = web()
        .load_balancer_ip(&own_address())
        .source_range("10.0.0.0/8")
        .port("http", 443);
    let desired = desired(vec![balanced.build()]);
    let to = |mode| {
        let change = change(ProfileMode::Iptables, mode, OwnRules::Present);
        severities(&desired, host_port(443), change)
    };
    assert_eq!(to(ProfileMode::Ipvs), [Severity::Warning]);
    assert_eq!(to(ProfileMode::Nftables), []);
}

#[test]
fn clients_that_find_the_same_program_before_and_after_are_no_warning() {
    let of_own = web().port("http", 80).node_port(30080).build();
    let from_ipvs = change(ProfileMode::Ipvs, ProfileMode::Nftables, OwnRules::Absent);
    let served = desired(vec![of_own.clone()]);
    let warning = [Severity::Warning];
    assert_eq!(severities(&served, host_port(30080), from_ipvs), warning);
    let of_an_endpoint = HostPort {
        pod: ENDPOINT.parse().expect("an address and a port"),
        ..host_port(30080)
    };
    assert_eq!(severities(&served, of_an_endpoint, from_ipvs), []);
    let mut without = Dataplane::new(mk_node(1).build(), mk_config().build());
    let nobody = mk_endpoints().tcp("http").build();
    let rules = compile(&of_own, &nobody, without.node(), without.config());
    without.set(rules.into());
    assert_eq!(severities(&without, host_port(30080), from_ipvs), []);
}

#[test]
fn many_host_ports_that_change_hands_are_one_warning() {
    let services = (0..9).map(|number: u16| {
        let name = format!("shop/web-{number}");
        let service = mk_service(&name).cluster_ip(&format!("10.96.0.{}", 20 + number));
        service.port("http", 80).node_port(30080 + number).build()
    });
    let desired = desired(services.collect());
    let from_ipvs = change(ProfileMode::Ipvs, ProfileMode::Nftables, OwnRules::Absent);
    let ports: Vec<_> = (0..9).map(|n| (host_port(30080 + n), from_ipvs)).collect();
    let points = check(&desired, &ports);
    assert_eq!(points.len(), 1, "{points:?}");
    assert!(points[0].text.contains(" and 4 more; in"), "{}", points[0]);
}

/// Failure story T317: a Service whose policy allows no endpoint of this node redirects no packet of a
/// client outside, whichever proxy serves, and the Pod answers before and after.
#[test]
fn t317_policy_local_without_an_endpoint_on_the_node_is_no_warning() {
    let local = web().external_local().port("http", 80).node_port(30080);
    let from_ipvs = change(ProfileMode::Ipvs, ProfileMode::Nftables, OwnRules::Absent);
    let found = |node| {
        let endpoints = mk_endpoints().tcp("http").ready(ENDPOINT, node).build();
        let mut desired = Dataplane::new(mk_node(1).build(), mk_config().build());
        let (served, config) = (desired.node(), desired.config());
        let rules = compile(&local.clone().build(), &endpoints, served, config);
        desired.set(rules.into());
        severities(&desired, host_port(30080), from_ipvs)
    };
    assert_eq!(found("node-1"), [Severity::Warning]);
    assert_eq!(found("node-2"), []);
}

/// Failure story T318: a takeover that was cut short after IPv4 has moved its ports already, and a
/// family that fails takes nothing from the other one.
#[test]
fn t318_each_family_is_compared_with_its_own_rules() {
    let at = |family, status: &str| {
        let condition = json!({
            "type": family, "status": status, "reason": "Any", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value::<Condition>(condition).expect("a condition")
    };
    let conditions = [at(IPV4_PROGRAMMED, "True"), at(IPV6_PROGRAMMED, "False")];
    let rules = |state| Family::ALL.map(|family| own_rules(state, &conditions, family));
    let one = [OwnRules::Present, OwnRules::Absent];
    assert_eq!(rules(ServingState::Serving), one);
    assert_eq!(rules(ServingState::HandedBack), [OwnRules::Absent; 2]);

    let backend = Backend::Iptables(Variant::NfTables);
    let mut found = Found::default();
    let signpost = signpost(ProfileMode::Nftables, None);
    let changes = |found: &Found| {
        Family::ALL.map(|family| {
            let change = change_of(found, backend, family, OwnRules::Present, &signpost)?;
            Some((change.from.mode, change.from.tables))
        })
    };
    assert_eq!(changes(&found), [None, None]);
    let ipv6 = BTreeSet::from([Family::Ipv6]);
    found.rules.insert(Mode::Iptables, ipv6);
    let shared = Some((ProfileMode::Iptables, Tables::Shared));
    assert_eq!(changes(&found), [None, shared]);
    let both = BTreeSet::from(Family::ALL);
    found.rules.insert(Mode::Ipvs, both);
    let from = |tables| Some((ProfileMode::Ipvs, tables));
    let expected = [Tables::Separate, Tables::Shared].map(from);
    assert_eq!(changes(&found), expected);
}

/// Failure story T320: Signpost's mode iptables comes first in the table of its own variant alone.
#[test]
fn t320_signposts_variant_and_that_of_the_plugin_may_differ() {
    let mut found = Found::default();
    let both = BTreeSet::from(Family::ALL);
    found.rules.insert(Mode::Iptables, both);
    let served = desired(vec![web().port("http", 80).node_port(30080).build()]);
    let severities = |backend, variant| {
        let signpost = signpost(ProfileMode::Iptables, variant);
        let change = change_of(&found, backend, Family::Ipv4, OwnRules::Absent, &signpost);
        severities(&served, host_port(30080), change.expect("it has rules"))
    };
    let in_nf_tables = Backend::Iptables(Variant::NfTables);
    assert_eq!(severities(in_nf_tables, Some(Variant::NfTables)), []);
    let note = [Severity::Note];
    assert_eq!(severities(in_nf_tables, Some(Variant::Legacy)), note);
    assert_eq!(severities(in_nf_tables, None), note);
    let table_of = |backend| {
        let signpost = signpost(ProfileMode::Iptables, Some(Variant::Legacy));
        let change = change_of(&found, backend, Family::Ipv4, OwnRules::Absent, &signpost);
        change.map(|change| (change.from.tables, change.to.tables))
    };
    let (shared, separate) = (Tables::Shared, Tables::Separate);
    assert_eq!(table_of(in_nf_tables), Some((shared, separate)));
    let in_legacy = Backend::Iptables(Variant::Legacy);
    assert_eq!(table_of(in_legacy), Some((separate, shared)));
    assert_eq!(table_of(Backend::Nftables), Some((separate, separate)));
}

fn signpost(mode: ProfileMode, variant: Option<Variant>) -> SignpostSide {
    SignpostSide {
        mode,
        variant,
        desired: None,
    }
}
