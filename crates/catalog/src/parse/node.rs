//! Parses a Node object into what is kept of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::{Family, ObjectKind};
use ipnet::IpNet;

use super::findings::Findings;
use super::{Parsed, address};
use crate::object::field::quoted;
use crate::object::{self, Object, TO_BE_DELETED, ZONE};
use crate::shared_names::SharedNames;
use crate::{LastKnownAddresses, NodeLifecycle, OwnNode};

#[cfg(test)]
mod tests;

/// The maximum number of pod ranges that are read. The API server accepts one per family.
const MOST_POD_CIDRS: usize = 100;

/// Parses a Node; the result always has a value. What `before` has and the object no longer does is
/// kept, too, and reported.
pub(crate) fn parse_node(
    object: &object::Node,
    before: Option<&OwnNode>,
    names: &mut SharedNames,
) -> Parsed<OwnNode> {
    let key = object.key();
    let mut findings = Findings::new(ObjectKind::Node, &key);
    let labels = &object.metadata.labels;
    let zone = labels.get(ZONE).filter(|zone| !zone.is_empty());
    let (ipv4, ipv6) = addresses(object, &mut findings);
    let last = before.map_or_else(LastKnownAddresses::default, |before| before.last_given);
    let node = OwnNode {
        name: names.share(&key.name),
        labels: labels.clone(),
        zone: zone.map(|zone| names.share(zone)),
        ipv4,
        ipv6,
        last_given: LastKnownAddresses {
            ipv4: ipv4.or(last.ipv4),
            ipv6: ipv6.or(last.ipv6),
        },
        pod_cidrs: with_last(pod_cidrs(object, &mut findings), before, &mut findings),
        lifecycle: lifecycle(object),
    };
    for family in Family::ALL {
        if node.address(family).is_none()
            && let Some(last) = node.last_given.address(family)
        {
            let message = format!(
                "there is no {family} address any more; {last}, the last one, counts for as long as \
                 an interface of this node has it"
            );
            findings.reject(format_args!("status.addresses"), message);
        }
    }
    findings.into_parsed(Some(node))
}

/// Returns `cidrs`, plus the previously known ranges of each family without any. A node keeps its
/// pods while its object is created again, and without their range their packets would be
/// masqueraded.
fn with_last(
    mut cidrs: Vec<IpNet>,
    before: Option<&OwnNode>,
    findings: &mut Findings<'_>,
) -> Vec<IpNet> {
    for family in Family::ALL {
        let of_family = |cidr: &&IpNet| Family::of(cidr.addr()) == family;
        if cidrs.iter().any(|cidr| of_family(&cidr)) {
            continue;
        }
        let known = before.map_or(&[][..], |before| &before.pod_cidrs);
        for cidr in known.iter().filter(of_family) {
            let message = format!(
                "there is no {family} range any more; pods in {cidr}, the last one, still count as \
                 this node's"
            );
            findings.reject(format_args!("spec.podCIDRs"), message);
            cidrs.push(*cidr);
        }
    }
    cidrs
}

fn addresses(
    object: &object::Node,
    findings: &mut Findings<'_>,
) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    const INSTEAD: &str = "it is ignored";
    let (mut ipv4, mut ipv6) = (None, None);
    for kind_of_address in ["InternalIP", "ExternalIP"] {
        for (i, entry) in object.status.addresses.iter().enumerate() {
            if entry
                .kind
                .given()
                .is_none_or(|kind| kind != kind_of_address)
            {
                continue;
            }
            let path = format_args!("status.addresses[{i}].address");
            let Ok(address) = findings.address(path, &entry.address, INSTEAD) else {
                continue;
            };
            // Written by a component that does not know the node's address yet; such an address
            // cannot be reached.
            if address.is_unspecified() || address.is_loopback() || address.is_multicast() {
                let message = format!("no other node can reach {address}; {INSTEAD}");
                findings.reject(path, message);
                continue;
            }
            match address {
                IpAddr::V4(address) => ipv4 = ipv4.or(Some(address)),
                IpAddr::V6(address) => ipv6 = ipv6.or(Some(address)),
            }
        }
    }
    (ipv4, ipv6)
}

fn pod_cidrs(object: &object::Node, findings: &mut Findings<'_>) -> Vec<IpNet> {
    const INSTEAD: &str = "pods in it do not count as this node's";
    let mut cidrs = Vec::new();
    let list = "spec.podCIDRs";
    let fields = findings.bounded(list, &object.spec.pod_cidrs, MOST_POD_CIDRS, "do not count");
    for (i, field) in fields.iter().enumerate() {
        let path = format_args!("{list}[{i}]");
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

fn lifecycle(object: &object::Node) -> NodeLifecycle {
    let marked = |taint: &object::Taint| taint.key.given().is_some_and(|key| key == TO_BE_DELETED);
    if object.metadata.deletion_timestamp.is_some() {
        NodeLifecycle::BeingDeleted
    } else if object.spec.taints.iter().any(marked) {
        NodeLifecycle::MarkedByAutoscaler
    } else {
        NodeLifecycle::Staying
    }
}
