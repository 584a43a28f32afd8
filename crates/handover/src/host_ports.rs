//! Host ports of Pods that are ports of Services, too, and that a takeover gives from one to the
//! other.
//!
//! The agent sees no Pods, but the rules of CNI plugin portmap in its kernel. Where it is certain that
//! another one of the two answers afterwards, that is a warning; where the order in which programs
//! attached their rules decides, a note (decision 0079).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crds::condition::{IPV4_PROGRAMMED, IPV6_PROGRAMMED};
use crds::host_ports::{Change, GIVE_ANOTHER_PORT, Kind, OwnRules, Proxy, Tables};
use dataplane::{
    Dataplane, Family, Frontend, FrontendKey, FrontendKind, Port, ServiceKey, TrafficPolicy,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use modes::profile_mode::to_profile;
use runtime::chain;
use xtables::Variant;

use super::preflight::{Point, some_of};
use super::server::SignpostSide;
use crate::ServingState;
use foreign_proxy::Found;
use foreign_proxy::host_ports::{Backend, HostPort, observe_host_ports};

const BACKENDS: [Backend; 3] = [
    Backend::Iptables(Variant::NfTables),
    Backend::Iptables(Variant::Legacy),
    Backend::Nftables,
];

/// The Services of external IPs that are the node's addresses: Signpost serves none there.
type External<'a> = BTreeMap<FrontendKey, (&'a ServiceKey, &'a Frontend)>;

/// Returns whether Signpost's rules of `family` are there before a takeover.
pub(super) fn own_rules(
    serving_state: ServingState,
    conditions: &[Condition],
    family: Family,
) -> OwnRules {
    let programmed = match family {
        Family::Ipv4 => IPV4_PROGRAMMED,
        Family::Ipv6 => IPV6_PROGRAMMED,
    };
    match serving_state {
        ServingState::HandedBack => OwnRules::Absent,
        ServingState::Serving | ServingState::ReleasingPorts => {
            OwnRules::in_family(conditions, programmed)
        }
    }
}

/// Returns the host ports that change hands if kube-proxy's rules, which are `found`, are removed. Host
/// ports that cannot be read are a note.
pub(super) fn observe_points(
    found: &Found,
    own_rules: impl Fn(Family) -> OwnRules,
    signpost: &SignpostSide,
) -> Vec<Point> {
    let Some(desired) = &signpost.desired else {
        return Vec::new();
    };
    let mut points = Vec::new();
    let mut host_ports = Vec::new();
    for family in Family::ALL {
        for backend in BACKENDS {
            let Some(change) = change_of(found, backend, family, own_rules(family), signpost)
            else {
                continue;
            };
            match observe_host_ports(backend, family) {
                Ok(found) => host_ports.extend(found.into_iter().map(|port| (port, change))),
                Err(error) => points.push(Point::note(format!(
                    "{family}: unable to compare the host ports of Pods with ports of Services: {}",
                    chain(&error)
                ))),
            }
        }
    }
    points.extend(check(desired, &host_ports));
    points
}

/// Returns what a takeover changes for the host ports of one family and backend; `None` where
/// kube-proxy has no rules of that family. A takeover that was cut short may have removed them.
fn change_of(
    found: &Found,
    backend: Backend,
    family: Family,
    own_rules: OwnRules,
    signpost: &SignpostSide,
) -> Option<Change> {
    Some(Change {
        from: Proxy {
            mode: to_profile(found.mode(family)?),
            tables: tables(backend, |variant| found.has_chains(variant, family)),
        },
        to: Proxy {
            mode: signpost.mode,
            // Where the variant is not known, neither is which one answers.
            tables: tables(backend, |variant| signpost.variant == Some(variant)),
        },
        own_rules,
    })
}

/// Returns whether a proxy has its rules in the table of the host ports of `backend`: in the variants
/// that `is_used` accepts.
fn tables(backend: Backend, is_used: impl Fn(Variant) -> bool) -> Tables {
    match backend {
        Backend::Iptables(variant) if is_used(variant) => Tables::Shared,
        Backend::Iptables(_) | Backend::Nftables => Tables::Separate,
    }
}

/// Returns a warning or a note for each way in which ports change hands. Pure.
fn check(desired: &Dataplane, host_ports: &[(HostPort, Change)]) -> Vec<Point> {
    let external = match host_ports.is_empty() {
        true => External::new(),
        false => external(desired),
    };
    let mut clashes: BTreeMap<(Kind, Change), BTreeSet<String>> = BTreeMap::new();
    for (host_port, change) in host_ports {
        for (kind, service) in services_at(desired, &external, host_port) {
            if change.moves(kind) {
                let alike = clashes.entry((kind, *change)).or_default();
                let pod = host_port.pod;
                alike.insert(format!("{host_port} (Pod at {pod}, Service {service})"));
            }
        }
    }
    let points = clashes.into_iter().map(|((kind, change), alike)| {
        let alike: Vec<String> = alike.into_iter().collect();
        let text = format!(
            "a host port is also {} of a Service: {}; {}: {GIVE_ANOTHER_PORT}",
            kind.in_words(),
            some_of(&alike),
            change.in_words(kind)
        );
        match change.is_certain(kind) {
            true => Point::warning(text),
            false => Point::note(text),
        }
    });
    points.collect()
}

/// Returns the Services that have a host port's number at an address of the node where the host port
/// is, and that redirect packets of clients outside. Where the Pod is one of the endpoints, clients find
/// the same program before and after.
fn services_at<'a>(
    desired: &'a Dataplane,
    external: &External<'a>,
    host_port: &HostPort,
) -> BTreeSet<(Kind, &'a ServiceKey)> {
    let (protocol, number) = host_port.port;
    let Some(port) = Port::new(number) else {
        return BTreeSet::new();
    };
    let family = Family::of(host_port.pod.ip());
    let own = desired.node().local_addresses.iter();
    let own = own.filter(|address| {
        Family::of(**address) == family && host_port.address.is_none_or(|only| only == **address)
    });
    let at_address = own.filter_map(|address| {
        let by_address = FrontendKey::Address {
            address: *address,
            protocol,
            port,
        };
        let by_node_port = FrontendKey::NodePort {
            family,
            protocol,
            port,
        };
        let is_open = desired.has_node_ports_at(*address);
        let served = desired.frontends().get(&by_address);
        let served = served.or_else(|| desired.frontends().get(&by_node_port).filter(|_| is_open));
        let (service, frontend) = match served {
            Some(claims) => {
                let (service, frontend) = claims.winner();
                (service, &**frontend)
            }
            None => *external.get(&by_address)?,
        };
        let mut endpoints = frontend.serving.iter();
        let is_same = endpoints
            .any(|target| SocketAddr::new(target.address, target.port.get()) == host_port.pod);
        let is_other = redirects(frontend) && !is_same;
        Some((kind_of(frontend).filter(|_| is_other)?, service))
    });
    at_address.collect()
}

/// Whether packets of clients outside are redirected. Where the policy allows no endpoint, both proxies
/// leave their destination as it is, and the host port follows.
fn redirects(frontend: &Frontend) -> bool {
    match frontend.policy {
        TrafficPolicy::Cluster => frontend.has_endpoints,
        TrafficPolicy::Local => !frontend.local.is_empty(),
    }
}

fn kind_of(frontend: &Frontend) -> Option<Kind> {
    match frontend.kind {
        FrontendKind::NodePort => Some(Kind::NodePort),
        FrontendKind::LoadBalancerIp if frontend.source_ranges.is_empty() => {
            Some(Kind::LoadBalancer)
        }
        FrontendKind::LoadBalancerIp => Some(Kind::LoadBalancerWithRanges),
        FrontendKind::ExternalIp => Some(Kind::External),
        FrontendKind::ClusterIp => None,
    }
}

fn external(desired: &Dataplane) -> External<'_> {
    let own = &desired.node().local_addresses;
    let is_own = |key: &FrontendKey| match key {
        FrontendKey::Address { address, .. } => own.contains(address),
        FrontendKey::NodePort { .. } => false,
    };
    let services = desired.services().iter();
    let claims = services.flat_map(|(service, rules)| {
        let claims = rules.frontends.iter();
        claims.map(move |(key, frontend)| (service, key, frontend))
    });
    let external = claims
        .filter(|(_, key, frontend)| frontend.kind == FrontendKind::ExternalIp && is_own(key));
    let external = external.map(|(service, key, frontend)| (*key, (service, &**frontend)));
    external.collect()
}

#[cfg(test)]
mod tests;
