use super::*;

use std::collections::BTreeMap;

use dataplane::{Config, Mode};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::render;

const BOTH_MODES: [Mode; 2] = [Mode::Nftables, Mode::Iptables];

/// One Service with a node port and these endpoints, by address and node.
fn dataplane(mode: Mode, endpoints: &[(&str, &str)]) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let config = Config {
        mode,
        ..Config::clone(&config)
    };
    let service = mk_service("shop/cart")
        .cluster_ip("10.96.0.10")
        .port("", 80)
        .node_port(30080);
    let mut list = mk_endpoints().tcp("");
    for (address, node) in endpoints {
        list = list.ready(address, node);
    }
    let rules = dataplane::compile(&service.build(), &list.build(), &node, &config);
    let mut dataplane = Dataplane::new(node, config.into());
    dataplane.set(rules.into());
    dataplane
}

fn kernel(dataplane: &Dataplane) -> Kernel {
    let held = Family::ALL.map(|family| (family, Ok(render(family, dataplane))));
    Kernel::Observed(held.into())
}

fn ask(packet: &str, dataplane: &Dataplane, kernel: &Kernel) -> Trace {
    let packet_spec: PacketSpec = packet.parse().expect("a packet");
    let modes = DetachedModes::default();
    trace(&packet_spec, dataplane, kernel, &modes).expect("there are rules")
}

const BOTH: &[(&str, &str)] = &[("10.0.1.5:8080", "node-1"), ("10.0.2.7:8080", "node-2")];

#[test]
fn a_packet_is_followed_hook_by_hook() {
    let dataplane = dataplane(Mode::Nftables, BOTH);
    let trace = ask(
        "203.0.113.2 -> 192.168.0.1:30080/tcp",
        &dataplane,
        &kernel(&dataplane),
    );
    assert_eq!(
        trace.to_string(),
        "\
outside 203.0.113.2 -> 192.168.0.1:30080/tcp
  taken for an address outside the cluster: this node does not know it
desired: 10.0.1.5:8080, 10.0.2.7:8080 masqueraded
the rules in the kernel: 10.0.1.5:8080, 10.0.2.7:8080 masqueraded
they agree

path to 10.0.1.5:8080 masqueraded or 10.0.2.7:8080 masqueraded
  filter-prerouting (filter hook prerouting priority -110)
    restrict: no rule matches
  nat-prerouting (nat hook prerouting priority -101)
    dispatch
      nodeport-addresses { 192.168.0.1 }
      nodeports { tcp . 30080 : 2 . 0x24000002 }
      service-chains { 0x24000002 : goto nodeport-external-2 }
    nodeport-external-2
      mark 0x4000
    nodeport-lb-2
      a number below 2 is drawn
      nodeport-endpoints { tcp . 30080 . 0x00000000 : 10.0.1.5 . 8080 }
      or nodeport-endpoints { tcp . 30080 . 0x00000001 : 10.0.2.7 . 8080 }
      dnat to 10.0.1.5:8080
      or dnat to 10.0.2.7:8080
  filter-forward (filter hook forward priority 0)
    refuse-services: no rule matches
    refuse-cluster-ips: no rule matches
  nat-postrouting-learn (nat hook postrouting priority 90)
    learn: no rule matches
  nat-postrouting (nat hook postrouting priority 100)
    masquerading
      mark 0x0
      masquerade
"
    );
}

#[test]
fn a_packet_is_followed_from_rule_to_rule() {
    let dataplane = dataplane(Mode::Iptables, BOTH);
    let trace = ask(
        "203.0.113.2 -> 192.168.0.1:30080/tcp",
        &dataplane,
        &kernel(&dataplane),
    );
    assert_eq!(
        trace.to_string(),
        "\
outside 203.0.113.2 -> 192.168.0.1:30080/tcp
  taken for an address outside the cluster: this node does not know it
desired: 10.0.1.5:8080, 10.0.2.7:8080 masqueraded
the rules in the kernel: 10.0.1.5:8080, 10.0.2.7:8080 masqueraded
they agree

path to 10.0.1.5:8080 masqueraded or 10.0.2.7:8080 masqueraded
  PREROUTING (nat)
    SIGNPOST-SERVICES
      -d 192.168.0.1/32 -j SIGNPOST-NODEPORTS
    SIGNPOST-NODEPORTS
      -p tcp -m tcp --dport 30080 -m comment --comment \"shop/cart node port\" -g
          SIGNPOST-EXT-N2HKNPJJEZ3AA3X
    SIGNPOST-EXT-N2HKNPJJEZ3AA3X
      mark 0x4000
    SIGNPOST-SVC-N2HKNPJJEZ3AA3X
      -p tcp -m statistic --mode random --probability 0.50000000000 -m comment --comment \"shop/cart
          -> 10.0.1.5:8080\" -j DNAT --to-destination 10.0.1.5:8080
      or -p tcp -m comment --comment \"shop/cart -> 10.0.2.7:8080\" -j DNAT --to-destination
          10.0.2.7:8080
      dnat to 10.0.1.5:8080
      or dnat to 10.0.2.7:8080
  FORWARD (filter)
    SIGNPOST-FORWARD
      -m conntrack --ctstate NEW -j SIGNPOST-LEAVING
    SIGNPOST-LEAVING
    SIGNPOST-CLUSTER-IPS: no rule matches
    SIGNPOST-FORWARD
      -m mark --mark 0x4000/0x4000 -j ACCEPT
      accept
  POSTROUTING (nat)
    SIGNPOST-POSTROUTING
      -m mark --mark 0x4000/0x4000 -g SIGNPOST-MASQUERADE
    SIGNPOST-MASQUERADE
      mark 0x0
      masquerade
"
    );
}

#[test]
fn a_way_that_differs_in_more_than_a_number_is_reported_by_itself() {
    for (mode, hairpin) in [
        (
            Mode::Nftables,
            "hairpins { 10.0.1.5 . 10.0.1.5 . tcp . 8080 }",
        ),
        (
            Mode::Iptables,
            "-s 10.0.1.5/32 -d 10.0.1.5/32 -p tcp -m tcp --dport 8080 -j MASQUERADE",
        ),
    ] {
        let dataplane = dataplane(mode, BOTH);
        let trace = ask("10.0.1.5 -> 10.96.0.10:80", &dataplane, &kernel(&dataplane));
        assert!(trace.agree, "{trace}");
        let outcomes: Vec<&str> = trace
            .paths
            .iter()
            .map(|path| path.outcome.as_str())
            .collect();
        assert_eq!(outcomes, ["10.0.1.5:8080 masqueraded", "10.0.2.7:8080"]);
        assert!(trace.to_string().contains(hairpin), "{trace}");
    }
}

#[test]
fn a_refused_packet_ends_where_it_is_refused() {
    for (mode, words, end) in [
        (
            Mode::Nftables,
            "refusals { 10.96.0.10 . tcp . 80 }",
            "    refuse\n      rejects { 10.96.0.10 . tcp . 80 }\n      reject\n",
        ),
        (
            Mode::Iptables,
            "\"shop/cart cluster IP has no endpoints\"",
            "-j REJECT\n      reject\n",
        ),
    ] {
        let dataplane = dataplane(mode, &[]);
        let trace = ask("10.0.1.9 -> 10.96.0.10:80", &dataplane, &kernel(&dataplane));
        let text = trace.to_string();
        assert_eq!(trace.actual, "reject");
        // Lines are wrapped between words.
        let unfolded = text.replace("\n          ", " ");
        assert!(unfolded.contains(words), "no {words:?} in:\n{text}");
        assert!(text.ends_with(end), "{text}");
    }
}

#[test]
fn rules_that_lead_elsewhere_do_not_agree() {
    for mode in BOTH_MODES {
        let (desired, held) = (dataplane(mode, BOTH), dataplane(mode, &BOTH[..1]));
        let trace = ask("10.0.1.9 -> 10.96.0.10:80", &desired, &kernel(&held));
        assert!(!trace.agree);
        let text = trace.to_string();
        assert!(
            text.contains("desired: 10.0.1.5:8080, 10.0.2.7:8080\n"),
            "{text}"
        );
        assert!(
            text.contains("the rules in the kernel: 10.0.1.5:8080\n! they do not agree\n"),
            "{text}"
        );
    }
}

#[test]
fn a_packet_is_followed_through_a_virtual_server() {
    let dataplane = dataplane(Mode::Ipvs, BOTH);
    let trace = ask("10.0.1.9 -> 10.96.0.10:80", &dataplane, &kernel(&dataplane));
    assert!(trace.agree, "{trace}");
    assert_eq!(trace.actual, "10.0.1.5:8080, 10.0.2.7:8080");
}

/// A node whose kernel does not support the desired mode is served by another mode.
#[test]
fn a_packet_takes_the_rules_that_are_there() {
    let (desired, held) = (
        dataplane(Mode::Iptables, BOTH),
        dataplane(Mode::Nftables, BOTH),
    );
    let trace = ask("10.0.1.9 -> 10.96.0.10:80", &desired, &kernel(&held));
    assert!(trace.agree, "{trace}");
}

#[test]
fn without_rules_there_is_no_way() {
    let packet_spec: PacketSpec = "10.0.1.9 -> 10.96.0.10:80".parse().expect("a packet");
    let refused = BTreeMap::from([(Family::Ipv4, Err("permission denied".to_owned()))]);
    let dataplane = dataplane(Mode::Nftables, BOTH);
    let error = trace(
        &packet_spec,
        &dataplane,
        &Kernel::Observed(refused),
        &DetachedModes::default(),
    );
    let error = error.expect_err("nothing was read").to_string();
    assert_eq!(error, "the IPv4 rules could not be read: permission denied");
}
