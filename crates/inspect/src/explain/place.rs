//! Answers questions about an address or a node port: which Services have it, as a frontend or as
//! an endpoint. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use dataplane::{Dataplane, Family, FrontendKey, Port, Protocol, ServiceKey, Target};

use super::answer::{EndpointAnswer, EndpointOf, FrontendAnswer};
use super::comparison::Comparison;
use super::{Evidence, Question, count, left_out, service};

/// Returns the Services with a frontend at an address or node port. The cost is proportional to the
/// cluster.
pub fn services_at(question: &Question, dataplane: &Dataplane) -> BTreeSet<ServiceKey> {
    frontends_at(question, dataplane).into_keys().collect()
}

/// Returns the frontends at an address or node port, by Service, including those of Services that
/// lost it to another Service.
pub(super) fn frontends_at(
    question: &Question,
    dataplane: &Dataplane,
) -> BTreeMap<ServiceKey, Vec<FrontendKey>> {
    let mut found: BTreeMap<ServiceKey, Vec<FrontendKey>> = BTreeMap::new();
    for (key, claims) in dataplane.frontends().sorted() {
        if is_at(question, key, dataplane) {
            let claimants = [claims.winner()].into_iter().chain(claims.losers());
            for (service, _) in claimants {
                found.entry(service.clone()).or_default().push(*key);
            }
        }
    }
    found
}

/// Returns whether packets to the address or node port match `key`. An address of the node also
/// matches node ports.
fn is_at(question: &Question, key: &FrontendKey, dataplane: &Dataplane) -> bool {
    if question.is_about(key) {
        return true;
    }
    let Question::Address {
        address,
        port,
        protocol,
    } = question
    else {
        return false;
    };
    let Some(port) = port else { return false };
    let on_node = Question::NodePort {
        port: *port,
        protocol: *protocol,
    };
    key.family() == Family::of(*address)
        && dataplane.has_node_ports_at(*address)
        && on_node.is_about(key)
}

/// Returns the Services that have the address as an endpoint, in any condition.
pub(super) fn endpoint_of(question: &Question, evidence: &Evidence<'_>) -> Vec<EndpointOf> {
    let Question::Address { address, port, .. } = question else {
        return Vec::new();
    };
    let mut uses = Vec::new();
    let services = evidence.reported.services.keys();
    for name in services.filter(|name| !left_out::is_left_out(name, evidence.dataplane)) {
        for service_port in service::explain_ports(name, evidence) {
            let endpoints = service_port.endpoints.into_iter();
            let meant = endpoints.filter(|endpoint| is_endpoint(endpoint, *address, *port));
            uses.extend(meant.map(|endpoint| EndpointOf {
                service: name.to_string(),
                port: service_port.name.clone(),
                endpoint,
            }));
        }
    }
    uses
}

fn is_endpoint(endpoint: &EndpointAnswer, address: IpAddr, port: Option<Port>) -> bool {
    let text = &endpoint.address;
    match port {
        Some(port) => *text == Target { address, port }.to_string(),
        None => text
            .parse()
            .is_ok_and(|socket: std::net::SocketAddr| socket.ip() == address),
    }
}

/// Returns general remarks on an address or node port.
pub(super) fn remarks(
    question: &Question,
    asked: &BTreeMap<ServiceKey, Vec<FrontendKey>>,
    uses: &[EndpointOf],
    evidence: &Evidence<'_>,
) -> Vec<String> {
    let mut remarks = Vec::new();
    if !uses.is_empty() {
        let services: BTreeSet<&str> = uses.iter().map(|u| u.service.as_str()).collect();
        let services = count(services.len(), "Service");
        remarks.push(format!("{question} is an endpoint of {services}"));
    }
    let left_out = left_out::remarks(question, evidence);
    let is_left_out = !left_out.is_empty();
    remarks.extend(left_out);
    if !asked.is_empty() || !uses.is_empty() || is_left_out {
        return remarks;
    }
    let dataplane = evidence.dataplane;
    if let Question::NodePort { .. } = question {
        remarks.push(format!("no Service has {question} as a node port"));
        return remarks;
    }
    if let Question::Address { address, port, .. } = question {
        if let Some(remark) = remark_on_own(*address, *port, dataplane) {
            remarks.push(remark);
            return remarks;
        }
        if let Some(claims) = dataplane.cluster_ips().get(address) {
            let (owner, ()) = claims.winner();
            remarks.push(format!(
                "{address} is a cluster IP of Service {owner}, which has nothing at {question}: \
                 connections are refused"
            ));
            return remarks;
        }
        let mut ranges = dataplane.config().service_cidrs.iter();
        if let Some(range) = ranges.find(|range| range.contains(address)) {
            remarks.push(format!(
                "{address} is inside the Service range {range}, and no Service has it: connections \
                 are dropped"
            ));
            return remarks;
        }
    }
    remarks.push(format!(
        "no Service has {question}, as an address or as an endpoint"
    ));
    remarks
}

/// Returns a remark if `address` is the node's own.
fn remark_on_own(address: IpAddr, port: Option<Port>, dataplane: &Dataplane) -> Option<String> {
    let node_port = |protocol| {
        let (family, port) = (Family::of(address), port?);
        let key = FrontendKey::NodePort {
            family,
            protocol,
            port,
        };
        Some(dataplane.frontends().get(&key)?.winner().0)
    };
    let owner = Protocol::ALL.into_iter().find_map(node_port);
    let place = match port {
        Some(port) => SocketAddr::new(address, port.get()).to_string(),
        None => address.to_string(),
    };
    if address.is_loopback() {
        let owner = owner?;
        return Some(format!(
            "{place} is a node port of Service {owner} on localhost, where no rule of the kernel \
             applies: the agent itself answers there if the profile has nodePorts.localhost: \
             userspace"
        ));
    }
    if dataplane.has_node_ports_at(address) {
        return Some(match port {
            Some(port) => format!(
                "{place} is at this node, which takes node ports there, and no Service has node \
                 port {port}"
            ),
            None => format!(
                "{place} is an address of this node, which has node ports there: ask for one with node:PORT"
            ),
        });
    }
    if !dataplane.node().local_addresses.contains(&address) {
        return None;
    }
    let mut remark = format!(
        "{place} is at this node, which takes no node ports there: the profile's \
         nodePorts.addresses leaves it out"
    );
    if let (Some(owner), Some(port)) = (owner, port) {
        remark.push_str(&format!("; Service {owner} has node port {port}"));
    }
    Some(remark)
}

/// Returns what the kernel has for an address and port that no Service has.
pub(super) fn explain_unclaimed(
    question: &Question,
    asked: &BTreeMap<ServiceKey, Vec<FrontendKey>>,
    evidence: &Evidence<'_>,
) -> Option<FrontendAnswer> {
    let key = question.frontend().filter(|_| asked.is_empty())?;
    let dataplane = evidence.dataplane;
    let nothing = Dataplane::new(dataplane.node().clone(), dataplane.config().clone());
    let comparison = Comparison::new(key.family(), &nothing, evidence);
    let elements = comparison.elements(&key);
    (!elements.is_empty()).then(|| FrontendAnswer::unclaimed(&key, elements))
}
