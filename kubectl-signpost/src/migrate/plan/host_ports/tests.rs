use crds::condition::IPV6_PROGRAMMED;
use serde_json::{Value, json};

use super::super::tests::{READY_BACK, READY_TRUE, Said, conditions};
use super::*;
use crate::pod_network::tests::pod;

const IPTABLES: Said = (FOREIGN_PROXY_DETECTED, "True", "KubeProxyIptables");
const NFTABLES: Said = (FOREIGN_PROXY_DETECTED, "True", "KubeProxyNftables");
const IPVS: Said = (FOREIGN_PROXY_DETECTED, "True", "KubeProxyIpvs");
const NONE: Said = (FOREIGN_PROXY_DETECTED, "False", "NoneFound");

fn node(name: &str, address: &str) -> Node {
    let addresses = json!([
        {"type": "ExternalIP", "address": "203.0.113.1"},
        {"type": "InternalIP", "address": address},
    ]);
    let node = json!({"metadata": {"name": name}, "status": {"addresses": addresses}});
    serde_json::from_value(node).expect("a Node")
}

fn service(name: &str, port: &Value, ip: Option<&str>) -> ServicePorts {
    let ingress: Vec<Value> = ip.iter().map(|ip| json!({"ip": ip})).collect();
    let service = json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"ports": [port]},
        "status": {"loadBalancer": {"ingress": ingress}},
    });
    let service = serde_json::from_value(service).expect("a Service");
    ServicePorts::of(&service).expect("it has ports of nodes")
}

/// The first finding about each node: those of kube-proxy's mode `from` move to Signpost's `to`.
/// Before, the nodes report `ready`.
fn warned(
    ready: Said,
    from: Said,
    to: Mode,
    pods: &[(&str, &str, Value)],
    services: &[ServicePorts],
) -> BTreeMap<String, String> {
    let findings = found(ready, from, to, pods, services).into_iter();
    let first = findings.map(|(node, findings)| {
        let obstacles = findings.obstacles.into_iter();
        let mut all = obstacles.map(|obstacle| obstacle.what);
        let warnings = findings.warnings.into_iter();
        let first = all.next().or(warnings.map(|warning| warning.what).next());
        (node, first.expect("there is one"))
    });
    first.collect()
}

fn found(
    ready: Said,
    from: Said,
    to: Mode,
    pods: &[(&str, &str, Value)],
    services: &[ServicePorts],
) -> BTreeMap<String, Findings> {
    let nodes = [node("n1", "192.168.0.1"), node("n2", "192.168.0.2")];
    let conditions = conditions(&[ready, from]);
    let config = EffectiveConfig::of(&crds::ProxyProfileSpec {
        mode: to,
        ..Default::default()
    });
    let movers = nodes.each_ref().map(|node| Mover {
        node,
        conditions: &conditions,
        config: &config,
    });
    let pods = pods.iter();
    let pods = pods.map(|(name, node, port)| pod(name, node, &["10.0.1.9"], &json!([port])));
    let pods: Vec<PodNetwork> = pods.filter_map(|pod| PodNetwork::of(&pod)).collect();
    find_clashes(&movers, &pods, services)
}

fn host_port(port: u16) -> Value {
    json!({"containerPort": 80, "hostPort": port})
}

#[test]
fn a_host_port_that_is_a_node_port_changes_hands_with_some_modes() {
    let cart = service("cart", &json!({"port": 80, "nodePort": 30080}), None);
    let services = [cart];
    let pods = [
        ("a", "n1", host_port(30080)),
        ("b", "n1", host_port(30081)),
        ("c", "n2", host_port(30080)),
    ];
    let expected = "host port 30080/TCP (shop/a, shop/c) is also a node port of Service shop/cart: in kube-proxy's mode ipvs \
                    the Pod answers, in Signpost's mode nftables the Service answers";
    let warned_about = warned(READY_BACK, IPVS, Mode::Nftables, &pods, &services);
    let both = ["n1", "n2"].map(|node| (node.to_owned(), expected.to_owned()));
    assert_eq!(warned_about, BTreeMap::from(both));
}

/// Failure story T306: obstacles and warnings, of a node that was handed back.
#[test]
fn t306_a_host_port_that_certainly_changes_hands_stops_a_takeover() {
    let cart = service("cart", &json!({"port": 80, "nodePort": 30080}), None);
    let services = [cart];
    let pods = [("a", "n1", host_port(30080))];
    for (from, to, expected) in [
        // Either one may have been attached last.
        (NFTABLES, Mode::Nftables, (0, 1)),
        (NFTABLES, Mode::Iptables, (0, 1)),
        (NFTABLES, Mode::Ipvs, (0, 1)),
        (IPTABLES, Mode::Nftables, (0, 0)),
        (IPTABLES, Mode::Iptables, (0, 0)),
        (IPTABLES, Mode::Ipvs, (0, 0)),
        (IPVS, Mode::Nftables, (1, 0)),
        (IPVS, Mode::Iptables, (1, 0)),
        (IPVS, Mode::Ipvs, (1, 0)),
        (NONE, Mode::Nftables, (0, 0)),
    ] {
        let mut found = found(READY_BACK, from, to, &pods, &services);
        let of_node = found.remove("n1").unwrap_or_default();
        let counts = (of_node.obstacles.len(), of_node.warnings.len());
        assert_eq!(counts, expected, "{from:?} {to:?}");
        let mut obstacles = of_node.obstacles.iter();
        assert!(
            obstacles.all(|obstacle| obstacle.yields_to_force && obstacle.next.contains("--force"))
        );
    }
}

/// Failure story T306: Signpost takes nothing at an external IP that is the node's address, and the
/// rules of kube-proxy do until the takeover, whether Signpost's are beside them or not.
#[test]
fn t306_a_host_port_at_an_external_ip_goes_to_the_pod() {
    let mut web = service("web", &json!({"port": 443, "nodePort": 30443}), None);
    let pods = [("a", "n1", host_port(443)), ("b", "n2", host_port(443))];
    let counts = |web: &ServicePorts, ready, from| {
        let services = std::slice::from_ref(web);
        let found = found(ready, from, Mode::Nftables, &pods, services);
        let obstacles = found.values().map(|found| found.obstacles.len());
        let warnings = found.values().map(|found| found.warnings.len());
        (
            found.contains_key("n2"),
            obstacles.sum::<usize>(),
            warnings.sum::<usize>(),
        )
    };
    assert_eq!(counts(&web, READY_BACK, IPTABLES), (false, 0, 0));
    // The address of n1, and one that is of no node.
    for ip in ["192.168.0.1", "198.51.100.1"] {
        web.external_ips.push(ip.parse().expect("an address"));
    }
    for ready in [READY_BACK, READY_TRUE] {
        assert_eq!(counts(&web, ready, IPTABLES), (false, 1, 0));
        assert_eq!(counts(&web, ready, NFTABLES), (false, 0, 1));
        // What mode ipvs accepts, no rule of plugin portmap redirects.
        assert_eq!(counts(&web, ready, IPVS), (false, 1, 0));
    }
    // As the load-balancer IP, which comes first, it is served by both proxies.
    web.load_balancer_ips = web.external_ips.clone();
    assert_eq!(counts(&web, READY_BACK, IPTABLES), (false, 0, 0));
}

/// Failure story T331.
#[test]
fn t331_a_host_port_changes_hands_only_where_signposts_rules_are_not_there_yet() {
    let cart = service("cart", &json!({"port": 80, "nodePort": 30080}), None);
    let pods = [("a", "n1", host_port(30080))];
    let all_modes = [Mode::Nftables, Mode::Iptables, Mode::Ipvs];
    let changes = |ready| {
        let from_all = [NFTABLES, IPTABLES, IPVS].into_iter();
        let all = from_all.flat_map(|from| all_modes.map(|to| (from, to)));
        let services = std::slice::from_ref(&cart);
        let changes =
            all.filter(|(from, to)| !warned(ready, *from, *to, &pods, services).is_empty());
        changes.count()
    };
    assert_eq!(changes(READY_TRUE), 0);
    let silent = ("Ready", "Unknown", "AgentSilent");
    let failed = ("Ready", "False", "CommitFailed");
    for absent in [READY_BACK, ("Ready", "True", "HandedBack"), silent, failed] {
        assert_eq!(changes(absent), 6, "{absent:?}");
    }
    let of_one_family = (IPV6_PROGRAMMED, "True", "FamilyProgrammed");
    assert_eq!(changes(of_one_family), 6);
}

#[test]
fn mode_ipvs_leaves_host_ports_of_load_balancer_ips_with_source_ranges_to_pods() {
    let mut web = service("web", &json!({"port": 443}), Some("192.168.0.1"));
    let pods = [("a", "n1", host_port(443))];
    let is_warned = |ready, from, web: &ServicePorts| {
        let services = std::slice::from_ref(web);
        !warned(ready, from, Mode::Ipvs, &pods, services).is_empty()
    };
    let before = [READY_BACK, READY_TRUE].map(|ready| [(ready, IPTABLES), (ready, IPVS)]);
    for (ready, from) in before.concat() {
        web.sources = Sources::All;
        assert!(!is_warned(ready, from, &web), "{from:?}");
        web.sources = Sources::InRanges;
        // kube-proxy's rules decide until the takeover.
        assert!(is_warned(ready, from, &web), "{from:?}");
    }
}

#[test]
fn a_host_port_at_one_address_is_compared_with_where_the_service_is() {
    let of_nodes = service("cart", &json!({"port": 80, "nodePort": 30080}), None);
    let balanced = service("web", &json!({"port": 443}), Some("192.168.0.1"));
    let services = [of_nodes, balanced];
    let at = |port: u16, address: &str| {
        let port = json!({"containerPort": 80, "hostPort": port, "hostIP": address});
        warned(
            READY_BACK,
            NFTABLES,
            Mode::Nftables,
            &[("a", "n1", port)],
            &services,
        )
        .remove("n1")
    };
    // Mode nftables takes node ports at the node's own first address.
    assert!(
        at(30080, "192.168.0.1")
            .is_some_and(|what| what.contains("a node port of Service shop/cart"))
    );
    assert_eq!(at(30080, "203.0.113.1"), None);
    assert_eq!(at(30080, "127.0.0.1"), None);
    assert!(at(443, "0.0.0.0").is_some_and(|what| what.contains("of Service shop/web")));
    assert_eq!(at(443, "203.0.113.1"), None);
    // It is the address of another node.
    let elsewhere = [("a", "n2", host_port(443))];
    assert!(warned(READY_BACK, NFTABLES, Mode::Nftables, &elsewhere, &services).is_empty());
}

#[test]
fn services_without_ports_of_nodes_are_left_out() {
    let of =
        |service: Value| ServicePorts::of(&serde_json::from_value(service).expect("a Service"));
    let inside = json!({"spec": {"ports": [{"port": 80}]}});
    assert_eq!(of(inside), None);
    let outside = json!({"spec": {"ports": [{"port": 80}], "externalIPs": ["192.168.0.1"]}});
    assert!(of(outside).is_some());
    let proxied = json!({"ip": "192.168.0.1", "ipMode": "Proxy"});
    let proxied = json!({
        "spec": {"ports": [{"port": 80}]},
        "status": {"loadBalancer": {"ingress": [proxied]}},
    });
    assert_eq!(of(proxied), None);
    let with_ranges = json!({"spec": {
        "ports": [{"port": 80, "nodePort": 30080}], "loadBalancerSourceRanges": ["10.0.0.0/8"],
    }});
    assert_eq!(
        of(with_ranges).map(|of| of.sources),
        Some(Sources::InRanges)
    );
}
