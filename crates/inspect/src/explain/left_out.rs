//! Names the Services that ask for an address or node port, and of which nothing is served: beyond
//! the limit of their namespace, or too large. Pure.

use std::net::IpAddr;

use dataplane::{Dataplane, Family, Port, Protocol, Service, ServiceKey, ServicePort};

use super::{Evidence, Question, service};
use crate::ServiceState;

/// Returns whether a Service asks for an address or node port, whatever becomes of it on this node.
pub fn asks_for(question: &Question, service: &Service, dataplane: &Dataplane) -> bool {
    let mut ports = service.ports.iter();
    match question {
        Question::Address {
            address,
            port,
            protocol,
        } => {
            let is_meant = |number: Option<Port>, port_of: &ServicePort| {
                port.is_none_or(|port| number == Some(port)) && is_of(*protocol, port_of)
            };
            let has_node_ports = port.is_some()
                && dataplane.has_node_ports_at(*address)
                && service.cluster_ip(Family::of(*address)).is_some();
            ports.any(|port_of| {
                has_address(service, *address) && is_meant(Some(port_of.port), port_of)
                    || has_node_ports && is_meant(port_of.node_port, port_of)
            })
        }
        Question::NodePort { port, protocol } => {
            ports.any(|port_of| port_of.node_port == Some(*port) && is_of(*protocol, port_of))
        }
        Question::Service { .. } | Question::Mark { .. } => false,
    }
}

fn is_of(protocol: Option<Protocol>, port: &ServicePort) -> bool {
    protocol.is_none_or(|protocol| protocol == port.protocol)
}

fn has_address(service: &Service, address: IpAddr) -> bool {
    service.cluster_ip(Family::of(address)) == Some(address)
        || service.external_ips.contains(&address)
        || service.load_balancer_ips.contains(&address)
}

/// Returns whether nothing of a Service is served.
pub(super) fn is_left_out(service: &ServiceKey, dataplane: &Dataplane) -> bool {
    let rules = dataplane.services().get(service);
    rules.is_some_and(|rules| rules.is_refused())
}

/// Says which Services ask for a place or have it as an endpoint and are left out, and why.
pub(super) fn remarks(question: &Question, evidence: &Evidence<'_>) -> Vec<String> {
    let mut remarks = Vec::new();
    for (name, state) in &evidence.reported.services {
        let ServiceState::Served { view, .. } = state else {
            continue;
        };
        if !is_left_out(name, evidence.dataplane) {
            continue;
        }
        let object = &view.service;
        if asks_for(question, object, evidence.dataplane) {
            remarks.push(format!(
                "Service {name} asks for {question}, and is not programmed"
            ));
        } else if has_endpoint(question, view) {
            remarks.push(format!(
                "{question} is an endpoint of Service {name}, which is not programmed"
            ));
        } else {
            continue;
        }
        remarks.extend(service::rejected(name, &[], evidence));
    }
    remarks
}

fn has_endpoint(question: &Question, view: &catalog::View) -> bool {
    let Question::Address { address, port, .. } = question else {
        return false;
    };
    let mut endpoints = view.endpoints.by_port.values().flatten();
    endpoints.any(|endpoint| {
        endpoint.address == *address && port.is_none_or(|port| port == endpoint.port)
    })
}
