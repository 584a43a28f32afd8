//! Whether detection by podCIDRs recognises the Pods of this node, before a takeover. Pure.
//!
//! Network plugins with their own address management ignore podCIDRs. The agent sees no Pods, but
//! endpoints: one that is on this node, and whose address is not the node's own, is a Pod.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crds::profile::detect_local::DetectLocalMode;
use dataplane::{Dataplane, Family};

use super::preflight::Point;

/// What to set instead.
const DETECT_OTHERWISE: &str = concat!(
    "set detectLocal of the profile as the network plugin requires (",
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/main/docs/migrate.md): mode ClusterCIDR with clusterCIDRs, the addresses of all Pods, or mode InterfaceNamePrefix \
     with interfaceNamePrefix"
);

/// Returns a warning if detection is by podCIDRs, and an endpoint on this node is outside of them.
pub(super) fn check(mode: DetectLocalMode, desired: &Dataplane) -> Option<Point> {
    if mode != DetectLocalMode::NodeCidr {
        return None;
    }
    let detection = &desired.config().local_detection;
    let own = &desired.node().local_addresses;
    let is_outside = |address: &IpAddr| {
        let range = detection.source(Family::of(*address));
        !own.contains(address) && range.is_none_or(|range| !range.contains(address))
    };
    let endpoints = desired.hairpins().iter();
    let addresses = endpoints.map(|(endpoint, _)| endpoint.address);
    let outside: BTreeSet<IpAddr> = addresses.filter(is_outside).collect();
    let address = outside.first()?;
    let family = Family::of(*address);
    let (range, effect) = match detection.source(family) {
        Some(range) => (
            format!("outside of its podCIDR {range}"),
            "traffic of its Pods to cluster IPs would be masqueraded",
        ),
        None => (
            format!("on a Node without {family} podCIDRs"),
            "traffic of its Pods would not count as local",
        ),
    };
    let more = match outside.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(Point::warning(format!(
        "{family}: detectLocal.mode is NodeCIDR, and endpoint {address} of this node{more} is {range}, so {effect}: \
         {DETECT_OTHERWISE}"
    )))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dataplane::{Config, compile};
    use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

    use super::*;
    use crate::preflight::Severity;

    /// Node 1, with endpoints of one Service on it and on node 2.
    fn desired(config: Arc<Config>, here: &[&str]) -> Dataplane {
        let mut dataplane = Dataplane::new(mk_node(1).build(), config);
        let elsewhere = mk_endpoints().tcp("http").ready("10.8.0.9:8080", "node-2");
        let endpoints = here.iter();
        let endpoints = endpoints.fold(elsewhere, |list, address| list.ready(address, "node-1"));
        let service = mk_service("shop/web")
            .cluster_ip("10.96.0.10")
            .cluster_ip("fd00:10:96::10")
            .port("http", 80)
            .build();
        let (node, config) = (dataplane.node(), dataplane.config());
        let rules = compile(&service, &endpoints.build(), node, config);
        dataplane.set(rules.into());
        dataplane
    }

    fn by_cidr(ranges: &[&str]) -> Arc<Config> {
        mk_config().detect_by_source(ranges).build()
    }

    /// Failure story T197.
    #[test]
    fn t197_an_endpoint_of_the_node_outside_of_its_pod_cidrs_speaks_against_a_takeover() {
        let config = by_cidr(&["10.0.1.0/24", "fd00:10:0:1::/64"]);
        let here = ["10.0.1.5:8080", "10.8.0.7:8080", "10.8.0.8:8080"];
        let point = check(DetectLocalMode::NodeCidr, &desired(config, &here));
        let point = point.expect("a warning");
        assert_eq!(point.weight, Severity::Warning);
        let expected = "IPv4: detectLocal.mode is NodeCIDR, and endpoint 10.8.0.7 of this node (and 1 more) is outside of \
                        its podCIDR 10.0.1.0/24, so traffic of its Pods to cluster IPs would be masqueraded: set detectLocal";
        assert!(point.text.starts_with(expected), "{point}");
        assert!(!point.text.contains('\n'), "it becomes a condition");
    }

    #[test]
    fn t197_a_family_without_pod_cidrs_is_named() {
        let config = by_cidr(&["10.0.1.0/24"]);
        let here = ["10.0.1.5:8080", "[fd00:8::7]:8080"];
        let point = check(DetectLocalMode::NodeCidr, &desired(config, &here));
        let point = point.expect("a warning");
        let expected = "endpoint fd00:8::7 of this node is on a Node without IPv6 podCIDRs";
        assert!(point.text.contains(expected), "{point}");
    }

    #[test]
    fn pods_inside_and_processes_of_the_node_and_other_modes_are_no_warning() {
        let node = mk_node(1).build();
        let own = node.ipv4.expect("it has one");
        let own = format!("{own}:8080");
        let here = ["10.0.1.5:8080", &own];
        let range = ["10.0.1.0/24"];
        let inside = desired(by_cidr(&range), &here);
        assert_eq!(check(DetectLocalMode::NodeCidr, &inside), None);
        let outside = desired(by_cidr(&range), &["10.8.0.7:8080"]);
        for other in [
            DetectLocalMode::ClusterCidr,
            DetectLocalMode::BridgeInterface,
            DetectLocalMode::InterfaceNamePrefix,
        ] {
            assert_eq!(check(other, &outside), None, "{other:?}");
        }
    }
}
