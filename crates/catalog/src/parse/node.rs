//! A Node object into what is kept of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::ObjectKind;
use ipnet::IpNet;

use super::findings::Findings;
use super::{Parsed, address};
use crate::object::field::quoted;
use crate::object::{self, Object, TO_BE_DELETED, ZONE};
use crate::shared_names::SharedNames;
use crate::{NodeStanding, OwnNode};

#[cfg(test)]
mod tests;

/// What is kept of a Node; there is none that would be left out.
pub(crate) fn parse_node(object: &object::Node, names: &mut SharedNames) -> Parsed<OwnNode> {
    let key = object.key();
    let mut findings = Findings::new(ObjectKind::Node, &key);
    let labels = &object.metadata.labels;
    let zone = labels.get(ZONE).filter(|zone| !zone.is_empty());
    let (ipv4, ipv6) = addresses(object, &mut findings);
    let node = OwnNode {
        name: names.share(&key.name),
        labels: labels.clone(),
        zone: zone.map(|zone| names.share(zone)),
        ipv4,
        ipv6,
        pod_cidrs: pod_cidrs(object, &mut findings),
        standing: standing(object),
    };
    findings.into_parsed(Some(node))
}

fn addresses(
    object: &object::Node,
    findings: &mut Findings<'_>,
) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    let (mut ipv4, mut ipv6) = (None, None);
    for wanted in ["InternalIP", "ExternalIP"] {
        for (i, entry) in object.status.addresses.iter().enumerate() {
            if entry.kind.given().is_none_or(|kind| kind != wanted) {
                continue;
            }
            let path = format_args!("status.addresses[{i}].address");
            match findings.address(path, &entry.address, "it is passed over") {
                Ok(IpAddr::V4(address)) => ipv4 = ipv4.or(Some(address)),
                Ok(IpAddr::V6(address)) => ipv6 = ipv6.or(Some(address)),
                Err(_) => {}
            }
        }
    }
    (ipv4, ipv6)
}

fn pod_cidrs(object: &object::Node, findings: &mut Findings<'_>) -> Vec<IpNet> {
    const INSTEAD: &str = "pods in it do not count as this node's";
    let mut cidrs = Vec::new();
    for (i, field) in object.spec.pod_cidrs.iter().enumerate() {
        let path = format_args!("spec.podCIDRs[{i}]");
        let Ok(text) = findings.text(path, field, INSTEAD) else {
            continue;
        };
        match address::parse_cidr(text) {
            Some(cidr) => cidrs.push(cidr),
            None => {
                findings.reject(path, format!("{} is not a CIDR; {INSTEAD}", quoted(text)));
            }
        }
    }
    cidrs
}

fn standing(object: &object::Node) -> NodeStanding {
    let marked = |taint: &object::Taint| taint.key.given().is_some_and(|key| key == TO_BE_DELETED);
    if object.metadata.deletion_timestamp.is_some() {
        NodeStanding::BeingDeleted
    } else if object.spec.taints.iter().any(marked) {
        NodeStanding::MarkedByAutoscaler
    } else {
        NodeStanding::Staying
    }
}
