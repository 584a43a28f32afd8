//! The printed form of the model.

use dataplane::{Choice, Endpoints, Target, Verdict};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service, port};

use crate::dataplane_of;

#[test]
fn a_dataplane_prints_each_service_with_its_frontends_and_targets() {
    let web = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .cluster_ip("fd00:10:96::10")
        .load_balancer_ip("192.0.2.1")
        .source_range("203.0.113.0/24")
        .port("http", 80)
        .node_port(30080)
        .external_local()
        .health_check_node_port(32000)
        .client_ip_affinity(std::time::Duration::from_secs(10_800))
        .build();
    let endpoints = mk_endpoints()
        .tcp("http")
        .ready("10.0.2.7:8080", "node-2")
        .ready("10.0.1.5:8080", "node-1")
        .build();
    let other = mk_service("shop/zoo")
        .cluster_ip("10.96.0.20")
        .external_ip("192.0.2.1")
        .external_ip("2001:db8:51::1")
        .port("", 80)
        .internal_local()
        .build();
    let elsewhere = mk_endpoints()
        .tcp("")
        .ready("10.0.2.9:80", "node-2")
        .build();
    let services = [(other, elsewhere), (web, endpoints)];
    let dataplane = dataplane_of(&mk_node(1).build(), &mk_config().build(), &services);
    assert_eq!(
        dataplane.to_string(),
        "\
shop/web
  10.96.0.10:80/tcp: cluster IP, port http, policy Cluster, affinity 10800s
    cluster: 10.0.1.5:8080, 10.0.2.7:8080
  192.0.2.1:80/tcp: load-balancer IP, port http, policy Local, affinity 10800s, only from 203.0.113.0/24
    cluster: 10.0.1.5:8080, 10.0.2.7:8080
    local: 10.0.1.5:8080
  [fd00:10:96::10]:80/tcp: cluster IP, port http, policy Cluster, affinity 10800s
    cluster: none, reject
  node IPv4:30080/tcp: node port, port http, policy Local, affinity 10800s
    cluster: 10.0.1.5:8080, 10.0.2.7:8080
    local: 10.0.1.5:8080
  node IPv6:30080/tcp: node port, port http, policy Local, affinity 10800s
    cluster: none, reject
    local: none, reject
  hairpin 10.0.1.5:8080/tcp
  health check on 32000: 1 local endpoints
shop/zoo
  10.96.0.20:80/tcp: cluster IP, policy Local
    local: none, drop
  192.0.2.1:80/tcp: external IP, policy Cluster, not served here: shop/web has it
    cluster: 10.0.2.9:80
  rejected spec.externalIPs: 2001:db8:51::1 is not served, because the Service has no IPv6 cluster IP
"
    );
}

#[test]
fn a_dataplane_without_services_prints_nothing() {
    let none: [(_, Endpoints); 0] = [];
    let dataplane = dataplane_of(&mk_node(1).build(), &mk_config().build(), &none);
    assert_eq!(dataplane.to_string(), "");
}

#[test]
fn a_verdict_says_which_of_its_choices_are_masqueraded_and_which_weigh_more() {
    let choice = |last, weight, masquerade| Choice {
        target: Target {
            address: [10, 0, 1, last].into(),
            port: port(80),
        },
        weight,
        masquerade,
    };
    let deliver = |choices: &[Choice]| Verdict::Deliver(choices.to_vec()).to_string();
    assert_eq!(
        deliver(&[choice(2, 1, false), choice(3, 2, false)]),
        "10.0.1.2:80, 10.0.1.3:80 x2"
    );
    assert_eq!(
        deliver(&[choice(2, 1, true), choice(3, 1, true)]),
        "10.0.1.2:80, 10.0.1.3:80 masqueraded"
    );
    assert_eq!(
        deliver(&[choice(2, 1, true), choice(3, 1, false)]),
        "10.0.1.3:80; 10.0.1.2:80 masqueraded"
    );
    let words = [Verdict::Reject, Verdict::Drop, Verdict::Untouched];
    assert_eq!(
        words.map(|verdict| verdict.to_string()),
        ["reject", "drop", "untouched"]
    );
}
