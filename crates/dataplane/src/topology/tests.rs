//! The cases of kube-proxy 1.36 (pkg/proxy/topology_test.go), one row each.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::{
    Affinity, Endpoint, Hints, Node, Port, Precedence, Protocol, Readiness, Selection, Service,
    ServiceKey, ServiceKind, ServicePort, TrafficPolicy, select,
};

/// Columns: zone is the node's label (`-` none, `""` empty); service has `iTP`/`eTP` for policies
/// that are Local and `ext` for a node port; an endpoint is its number, its flags (Ready, Serving,
/// Terminating, Local), then hints for zones (`z=`) and nodes (`n=`). Any: whether there is a
/// usable endpoint anywhere.
///
/// Row 11 is the row that upstream runs with its gate for node hints disabled, as before 1.35.
/// Signpost behaves like 1.36, where the gate cannot be disabled: node hints are obeyed, as in row
/// 12.
const CASES: &str = r#"
 # | zone | node   | service     | endpoints                                                          | cluster | local | any | what it shows
 1 | a    | node-9 |             | 3R z=a; 4R z=b; 5R z=c; 6R z=a                                     | 3 6     |       | yes | all hinted, some for the node's zone: those
 2 | a    | node-9 | eTP ext     | 3RL z=a; 4RL z=b; 5R z=c; 6R z=a                                   | 3 6     | 3 4   | yes | zones do not narrow the list of an external policy Local
 3 | a    | node-9 | iTP ext     | 3RL z=a; 4RL z=b; 5R z=c; 6R z=a                                   | 3 6     | 3 4   | yes | zones do not narrow the list of an internal policy Local
 4 | -    | node-9 |             | 3R z=a                                                             | 3       |       | yes | a node without labels obeys no zone
 5 | ""   | node-9 |             | 3R z=a                                                             | 3       |       | yes | a node with an empty zone obeys no zone
 6 | b    | node-9 |             | 3R z=a                                                             | 3       |       | yes | nothing hinted for the node's zone: everything
 7 | a    | node-9 |             | 3R z=a; 4R z=b; 5R z=c; 6 z=a                                      | 3       |       | yes | what is not ready is not chosen
 8 | a    | node-9 |             | 3 z=a; 4R z=b; 5R z=c; 6 z=a                                       | 4 5     |       | yes | only ready hints count: the node's zone has none
 9 | a    | node-9 |             | 3R z=a; 4R z=b; 5R; 6R z=a                                         | 3 4 5 6 |       | yes | one without a hint: everything
10 | c    | node-9 |             | 3R z=a,b,c; 4R z=b,c; 5R z=b,d; 6R z=c                             | 3 4 6   |       | yes | an endpoint for several zones
11 | a    | node-1 |             | 3R z=a n=node-1; 4R z=b n=node-2; 5R z=c n=node-3; 6R z=a n=node-4 | 3       |       | yes | upstream's gate off gives 3 6; node hints are always obeyed here
12 | a    | node-1 |             | 3R z=a n=node-1; 4R z=b n=node-2; 5R z=c n=node-3; 6R z=a n=node-4 | 3       |       | yes | the node before its zone
13 | a    | node-1 |             | 3R z=a n=node-1; 4R; 5R z=c n=node-3; 6R z=a n=node-4              | 3 4 5 6 |       | yes | one without hints ends both levels
14 | a    | node-0 |             | 3R z=a n=node-1; 4R z=b n=node-2; 5R z=c n=node-3; 6R z=a n=node-4 | 3 6     |       | yes | nothing for the node: its zone
15 | a    | node-9 | eTP ext     | 0RL z=a; 1RL z=b; 2R z=a; 3R z=b                                   | 0 2     | 0 1   | yes | the two lists are independent
16 | -    | node-9 | iTP         |                                                                    |         |       | no  | Local with nothing at all
17 | -    | node-9 | iTP         | 0R; 1R                                                             |         |       | yes | Local with endpoints elsewhere only
18 | -    | node-9 | iTP         | 0RL; 1RL                                                           |         | 0 1   | yes | Local with all endpoints here
19 | -    | node-9 | iTP         | 0RL; 1R                                                            |         | 0     | yes | Local with one endpoint here
20 | -    | node-9 |             | 0; 1                                                               |         |       | no  | nothing is ready
21 | -    | node-9 |             | 0; 1R                                                              | 1       |       | yes | one is ready
22 | -    | node-9 |             | 0STL; 1ST                                                          | 0 1     |       | yes | all are going away: they have to do
23 | -    | node-9 | iTP ext     | 0RL; 1R                                                            | 0 1     | 0     | yes | internal Local, external Cluster
24 | -    | node-9 | eTP ext     | 0RL; 1R                                                            | 0 1     | 0     | yes | internal Cluster, external Local
25 | -    | node-9 | iTP eTP ext | 0RL; 1R                                                            | 0 1     | 0     | yes | both Local
26 | -    | node-9 | iTP eTP ext | 0R; 1R                                                             | 0 1     |       | yes | both Local, nothing here
27 | -    | node-9 | iTP eTP ext | 0ST; 1ST                                                           | 0 1     |       | yes | both Local, all elsewhere and going away
28 | -    | node-9 | eTP ext     | 0R; 1L; 2STL; 3ST                                                  | 0       | 2     | yes | each list falls back by itself
29 | -    | node-9 | eTP         | 0R; 1RL                                                            | 0 1     |       | yes | external Local without an external address
30 | -    | node-9 | iTP         | 0R; 1RL                                                            |         | 1     | yes | internal Local, not reachable from outside
31 | -    | node-9 |             |                                                                    |         |       | no  | nothing at all
32 | a    | node-9 |             | 0                                                                  |         |       | no  | one that is neither ready nor serving
"#;

#[test]
fn endpoints_are_selected_as_upstream_selects_them() {
    let rows: Vec<Vec<&str>> = CASES
        .lines()
        .filter(|line| !line.is_empty())
        .skip(1)
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), 32);
    for row in rows {
        let [
            number,
            zone,
            node,
            service,
            endpoints,
            cluster,
            local,
            any,
            what,
        ] = row[..]
        else {
            panic!("{row:?} has {} columns", row.len());
        };
        let endpoints: Vec<Endpoint> = endpoints
            .split(';')
            .filter(|text| !text.trim().is_empty())
            .map(|text| endpoint(text, node))
            .collect();
        let (service, port) = service_of(service);
        let node = Node {
            name: node.into(),
            zone: (zone != "-").then(|| zone.trim_matches('"').into()),
            ..Node::default()
        };
        let desired = Selection {
            cluster: positions(cluster, &endpoints),
            local: positions(local, &endpoints),
            has_endpoints: any == "yes",
        };
        let candidates: Vec<&Endpoint> = endpoints.iter().collect();
        let selected = select(&service, &port, &candidates, &node);
        assert_eq!(selected, desired, "case {number}: {what}");
    }
}

fn address(number: &str) -> IpAddr {
    let octet = number.parse().expect("an endpoint starts with its number");
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, octet))
}

fn positions(numbers: &str, endpoints: &[Endpoint]) -> Vec<usize> {
    let position = |number| {
        let mut endpoints = endpoints.iter();
        endpoints.position(|endpoint| endpoint.address == address(number))
    };
    numbers
        .split_whitespace()
        .map(|number| position(number).expect("expected endpoints are in the row"))
        .collect()
}

fn endpoint(text: &str, this_node: &str) -> Endpoint {
    let mut words = text.split_whitespace();
    let first = words.next().expect("an endpoint has a number");
    let flags = first.trim_start_matches(|c: char| c.is_ascii_digit());
    let mut hints = Hints::default();
    for word in words {
        let (level, names) = word.split_once('=').expect("hints are level=names");
        let names: BTreeSet<Arc<str>> = names.split(',').map(Arc::from).collect();
        match level {
            "z" => hints.zones = names,
            "n" => hints.nodes = names,
            _ => panic!("no hints of level {level:?}"),
        }
    }
    let node = if flags.contains('L') {
        this_node
    } else {
        "elsewhere"
    };
    Endpoint {
        address: address(&first[..first.len() - flags.len()]),
        port: port_80(),
        readiness: Readiness {
            ready: flags.contains('R'),
            serving: flags.contains('S'),
            terminating: flags.contains('T'),
        },
        node: Some(node.into()),
        hints,
    }
}

fn service_of(text: &str) -> (Service, ServicePort) {
    let has = |word| text.split_whitespace().any(|other| other == word);
    let policy = |word| {
        if has(word) {
            TrafficPolicy::Local
        } else {
            TrafficPolicy::Cluster
        }
    };
    let service = Service {
        key: ServiceKey::new("shop", "web"),
        kind: ServiceKind::LoadBalancer,
        cluster_ipv4: None,
        cluster_ipv6: None,
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        source_ranges: Vec::new(),
        affinity: Affinity::None,
        internal_policy: policy("iTP"),
        external_policy: policy("eTP"),
        health_check_node_port: None,
        ports: Vec::new(),
        precedence: Precedence::Ordinary,
        scheduler: None,
    };
    let port = ServicePort {
        name: "".into(),
        protocol: Protocol::Tcp,
        port: port_80(),
        node_port: Port::new(30080).filter(|_| has("ext")),
    };
    (service, port)
}

fn port_80() -> Port {
    Port::new(80).expect("80 is a port")
}
