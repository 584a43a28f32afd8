//! Parses an EndpointSlice object into what is kept of it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use dataplane::{EndpointPort, Family, Hints, ObjectKind, Readiness, ServiceKey};

use super::Parsed;
use super::findings::{Findings, Rejected};
use crate::object::field::quoted;
use crate::object::name::{LABEL, is_label};
use crate::object::{
    self, Field, HEADLESS, HintTarget, LAST_CHANGE_TRIGGER_TIME, Object, SERVICE_NAME,
};
use crate::shared_names::SharedNames;
use crate::slice::{Placement, Slice, SliceEndpoint, SlicePort};

#[cfg(test)]
mod tests;

/// The maximum number of endpoints that the API server accepts in one slice.
const MOST_ENDPOINTS: usize = 1_000;
/// The maximum number of ports that it accepts in one slice.
const MOST_PORTS: usize = 20_000;

/// Parses the slice. The result has a value only if the slice contains IP addresses and belongs to
/// a named Service that is not headless.
pub(crate) fn parse_endpoint_slice(
    object: &object::EndpointSlice,
    names: &mut SharedNames,
) -> Parsed<Box<Slice>> {
    let key = object.key();
    let mut findings = Findings::new(ObjectKind::EndpointSlice, &key);
    let slice = slice(object, &key.namespace, names, &mut findings);
    findings.into_parsed(slice)
}

fn slice(
    object: &object::EndpointSlice,
    namespace: &str,
    names: &mut SharedNames,
    findings: &mut Findings<'_>,
) -> Option<Box<Slice>> {
    let labels = &object.metadata.labels;
    let service = labels.get(SERVICE_NAME).filter(|name| !name.is_empty())?;
    if labels.contains_key(HEADLESS) {
        return None;
    }
    if !is_label(service) {
        let message = format!("{} is not {LABEL}; the slice is left out", quoted(service));
        findings.reject(format_args!("metadata.labels[{SERVICE_NAME}]"), message);
        return None;
    }
    let family = family(object, findings)?;
    let all = &object.endpoints;
    let entries = findings.bounded("endpoints", all, MOST_ENDPOINTS, "are left out");
    let mut endpoints: Vec<SliceEndpoint> = Vec::with_capacity(entries.len());
    for (i, entry) in entries.iter().enumerate() {
        if let Ok(endpoint) = endpoint(i, entry, family, names, findings) {
            endpoints.push(endpoint);
        }
    }
    endpoints.sort_unstable();
    endpoints.dedup();
    let entries = findings.bounded("ports", &object.ports, MOST_PORTS, "are left out");
    let mut ports = Vec::with_capacity(entries.len());
    for (i, entry) in entries.iter().enumerate() {
        if let Ok(port) = port(i, entry, names, findings) {
            ports.push(port);
        }
    }
    ports.sort_unstable();
    ports.dedup();
    Some(Box::new(Slice {
        service: ServiceKey {
            namespace: names.share(namespace),
            name: names.share(service),
        },
        trigger: trigger(object, findings),
        ports: names.share_ports(&ports),
        endpoints: endpoints.into(),
    }))
}

/// Returns `None` for host names, to which no packet can be sent.
fn family(object: &object::EndpointSlice, findings: &mut Findings<'_>) -> Option<Family> {
    let path = format_args!("addressType");
    let instead = "the slice is left out";
    match findings.text(path, &object.address_type, instead).ok()? {
        "IPv4" => Some(Family::Ipv4),
        "IPv6" => Some(Family::Ipv6),
        "FQDN" => None,
        "" => {
            findings.reject(path, format!("there is none; {instead}"));
            None
        }
        other => {
            let message = format!("{} is not IPv4, IPv6 or FQDN; {instead}", quoted(other));
            findings.reject(path, message);
            None
        }
    }
}

fn endpoint(
    i: usize,
    object: &object::SliceEndpoint,
    family: Family,
    names: &mut SharedNames,
    findings: &mut Findings<'_>,
) -> Result<SliceEndpoint, Rejected> {
    const INSTEAD: &str = "this endpoint is left out";
    let path = format_args!("endpoints[{i}].addresses[0]");
    // Kubernetes never wrote a second one, and no proxy has ever used it.
    let first = object.addresses.first().unwrap_or(&Field::Absent);
    let address = findings.address(path, first, INSTEAD)?;
    if Family::of(address) != family {
        let message = format!("{address} is not of {family} like the slice; {INSTEAD}");
        return Err(findings.reject(path, message));
    }
    if !is_of_a_host(address) {
        let message = format!("no single host can have {address}; {INSTEAD}");
        return Err(findings.reject(path, message));
    }
    // An unreadable condition must not make an endpoint ready, so the endpoint is rejected.
    let mut condition = |name: &str, field: &Field<bool>, default: bool| {
        let path = format_args!("endpoints[{i}].conditions.{name}");
        let given = findings.value(path, field, INSTEAD)?;
        Ok(given.copied().unwrap_or(default))
    };
    let readiness = Readiness {
        ready: condition("ready", &object.conditions.ready, true)?,
        serving: condition("serving", &object.conditions.serving, true)?,
        terminating: condition("terminating", &object.conditions.terminating, false)?,
    };
    let path = format_args!("endpoints[{i}].nodeName");
    let node = findings.value(path, &object.node_name, INSTEAD)?;
    let node = node.map(|name| names.share(name));
    let hints = Hints {
        zones: targets(
            format_args!("endpoints[{i}].hints.forZones"),
            &object.hints.for_zones,
            names,
            findings,
        ),
        nodes: targets(
            format_args!("endpoints[{i}].hints.forNodes"),
            &object.hints.for_nodes,
            names,
            findings,
        ),
    };
    Ok(SliceEndpoint {
        address,
        readiness,
        placement: names.share_placement(&Placement { node, hints }),
    })
}

/// Whether packets to the address can reach one host, over the routes of any node. The API server
/// accepts broadcast and most multicast addresses of endpoints; the kernel's IPVS does not.
fn is_of_a_host(address: IpAddr) -> bool {
    let is_another = match address {
        // RFC 1122, 3.2.1.3: 0.0.0.0/8 is "this network".
        IpAddr::V4(address) => address.is_broadcast() || address.octets()[0] == 0,
        // Means another host at each interface.
        IpAddr::V6(address) => address.is_unspecified() || address.is_unicast_link_local(),
    };
    !is_another && !address.is_multicast()
}

fn targets(
    path: fmt::Arguments<'_>,
    hints: &[HintTarget],
    names: &mut SharedNames,
    findings: &mut Findings<'_>,
) -> BTreeSet<Arc<str>> {
    let mut targets = BTreeSet::new();
    for (i, hint) in hints.iter().enumerate() {
        let path = format_args!("{path}[{i}].name");
        if let Ok(name) = findings.text(path, &hint.name, "this hint is left out") {
            targets.insert(names.share(name));
        }
    }
    targets
}

fn port(
    i: usize,
    object: &object::SlicePort,
    names: &mut SharedNames,
    findings: &mut Findings<'_>,
) -> Result<SlicePort, Rejected> {
    const INSTEAD: &str = "this port is left out";
    // The API server writes the name of an unnamed port as "", and kube-proxy skips a port whose
    // name is null. A manifest simply omits the name and means "".
    let name = findings.port_name(format_args!("ports[{i}].name"), &object.name, INSTEAD)?;
    let protocol = findings.protocol(
        format_args!("ports[{i}].protocol"),
        &object.protocol,
        INSTEAD,
    )?;
    let path = format_args!("ports[{i}].port");
    let Some(port) = findings.port(path, &object.port, INSTEAD)? else {
        let message =
            format!("there is no number, and all ports at once cannot be served; {INSTEAD}");
        return Err(findings.reject(path, message));
    };
    Ok(SlicePort {
        name: EndpointPort {
            name: names.share(name),
            protocol,
        },
        port,
    })
}

fn trigger(object: &object::EndpointSlice, findings: &mut Findings<'_>) -> Option<SystemTime> {
    let text = object.metadata.annotations.get(LAST_CHANGE_TRIGGER_TIME)?;
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Some(time.into());
    }
    findings.reject(
        format_args!("metadata.annotations[{LAST_CHANGE_TRIGGER_TIME}]"),
        format!(
            "{} is not a time in RFC 3339; how long this change takes is not measured",
            quoted(text)
        ),
    );
    None
}
