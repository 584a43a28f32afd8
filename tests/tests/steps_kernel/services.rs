//! The Services of these tests.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use dataplane::{Dataplane, Endpoints, Family, Service};
use ipnet::IpNet;
use testkit::address_plan as addresses;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

/// The serving pods and the port of their servers.
pub(crate) const SERVING: [u8; 2] = [5, 6];
pub(crate) const SERVED: u16 = 8080;
/// The port of all Services that are asked.
pub(crate) const SERVICE_PORT: u16 = 80;
/// The node port of `shop/web`, over TCP and UDP.
pub(crate) const NODE_PORT: u16 = 30_080;
/// Cluster IPs by their host numbers.
pub(crate) const API_SERVER: u8 = 1;
pub(crate) const WEB: u8 = 10;
pub(crate) const STICKY: u8 = 11;
const EMPTY: u8 = 12;
const OF_GUARDED: u8 = 13;
/// The load-balancer IP of `shop/guarded` by its host number.
pub(crate) const GUARDED: u8 = 7;
/// The outside clients that its source ranges admit, in the desired state and before.
pub(crate) const ADMITTED: [u8; 2] = [3, 5];
const ADMITTED_BEFORE: [u8; 2] = [3, 4];
/// All outside clients.
pub(crate) const OUTSIDERS: [u8; 4] = [2, 3, 4, 5];
/// Other Services by the host numbers of their cluster IPs: those before a change, and those after
/// it.
const OTHERS_BEFORE: RangeInclusive<u8> = 21..=28;
const OTHERS: RangeInclusive<u8> = 25..=32;
/// The number of Services that come at once.
const CROWD: u16 = 3_000;

/// Returns the desired state of all transitions.
pub(crate) fn expected() -> Dataplane {
    compile(OTHERS, &SERVING)
}

/// Returns the state without Services.
pub(crate) fn none() -> Dataplane {
    Dataplane::new(mk_node(1).build(), mk_config().build())
}

/// Returns the state before other Services were added and removed, with one endpoint of `shop/web`.
pub(crate) fn earlier() -> Dataplane {
    compile(OTHERS_BEFORE, &SERVING[..1])
}

/// Returns the desired state with more Services than a kernel that is short of memory takes.
pub(crate) fn crowded() -> Dataplane {
    let mut dataplane = expected();
    let endpoints = endpoints(&SERVING);
    for number in 0..CROWD {
        let [high, low] = number.to_be_bytes();
        let service = mk_service(&format!("crowd/{number}"))
            .cluster_ip(&format!("10.96.{}.{low}", 16 + high))
            .port("web", SERVICE_PORT)
            .build();
        let (node, config) = (dataplane.node(), dataplane.config());
        let rules = dataplane::compile(&service, &endpoints, node, config);
        dataplane.set(rules.into());
    }
    dataplane
}

/// Returns a Service that admits only some sources.
pub(crate) fn guarded() -> Dataplane {
    compile_guarded(&ADMITTED, &SERVING)
}

/// Returns the same Service with one endpoint when it admitted other sources.
pub(crate) fn guarded_for_others() -> Dataplane {
    compile_guarded(&ADMITTED_BEFORE, &SERVING[..1])
}

/// Returns the same Service when it admitted all sources.
pub(crate) fn unguarded() -> Dataplane {
    compile_guarded(&[], &SERVING)
}

fn compile_guarded(admitted: &[u8], pods: &[u8]) -> Dataplane {
    let mut dataplane = none();
    let mut service = mk_service("shop/guarded").port("web", SERVICE_PORT);
    for family in Family::ALL {
        let balancer = addresses::load_balancer_ip(GUARDED, family).to_string();
        let cluster_ip = addresses::cluster_ip(OF_GUARDED, family).to_string();
        service = service.cluster_ip(&cluster_ip).load_balancer_ip(&balancer);
        for client in admitted {
            let range = IpNet::from(addresses::outside_client(*client, family));
            service = service.source_range(&range.to_string());
        }
    }
    let (node, config) = (dataplane.node(), dataplane.config());
    let rules = dataplane::compile(&service.build(), &endpoints(pods), node, config);
    dataplane.set(rules.into());
    dataplane
}

fn compile(others: impl Iterator<Item = u8>, of_web: &[u8]) -> Dataplane {
    let mut dataplane = none();
    let mut set = |service: Service, endpoints: Endpoints| {
        let (node, config) = (dataplane.node(), dataplane.config());
        let rules = dataplane::compile(&service, &endpoints, node, config);
        dataplane.set(rules.into());
    };
    let at = |name: &str, number| {
        let ips = Family::ALL.map(|family| addresses::cluster_ip(number, family).to_string());
        ips.iter()
            .fold(mk_service(name), |service, ip| service.cluster_ip(ip))
    };
    let api_server = at("default/kubernetes", API_SERVER)
        .port("web", SERVICE_PORT)
        .first();
    set(api_server.build(), endpoints(&SERVING));
    let web = at("shop/web", WEB)
        .port("web", SERVICE_PORT)
        .node_port(NODE_PORT);
    let web = web.udp("web-udp", SERVICE_PORT).node_port(NODE_PORT);
    set(web.build(), endpoints(of_web));
    let sticky = at("shop/sticky", STICKY).client_ip_affinity(Duration::from_secs(60));
    set(
        sticky.port("web", SERVICE_PORT).build(),
        endpoints(&SERVING),
    );
    set(
        at("shop/empty", EMPTY).port("web", SERVICE_PORT).build(),
        endpoints(&[]),
    );
    for number in others {
        let other = at(&format!("others/{number}"), number).port("web", SERVICE_PORT);
        let other = other.node_port(NODE_PORT + u16::from(number));
        set(other.build(), endpoints(&SERVING));
    }
    dataplane
}

fn endpoints(pods: &[u8]) -> Endpoints {
    let add = |mut endpoints: testkit::EndpointsBuilder| {
        for pod in pods {
            for family in Family::ALL {
                let address = addresses::pod_address(1, *pod, family);
                let address = SocketAddr::new(address, SERVED).to_string();
                endpoints = endpoints.ready(&address, addresses::NODE);
            }
        }
        endpoints
    };
    add(add(mk_endpoints().tcp("web")).udp("web-udp")).build()
}
