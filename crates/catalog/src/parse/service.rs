//! Parses a Service object into the Service that is programmed.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use dataplane::{
    Affinity, Family, ObjectKind, Protocol, Scheduler, Service, ServiceKey, ServiceKind,
    ServicePort, TrafficPolicy,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::findings::{Findings, Rejected};
use super::precedence::precedence;
use super::{Parsed, address};
use crate::Unserved;
use crate::object::field::quoted;
use crate::object::{self, Field, Metadata, Object, SERVICE_PROXY_NAME, ServiceSpec};
use crate::shared_names::SharedNames;

#[cfg(test)]
mod tests;

/// The API server's default for `timeoutSeconds`: three hours.
const DEFAULT_AFFINITY_TIMEOUT: Duration = Duration::from_secs(10_800);
/// The maximum that the API server accepts: one day.
const LONGEST_AFFINITY_SECONDS: u64 = 86_400;

/// The maximum number of addresses that are read from `externalIPs`, and from a load balancer's
/// status. The API server limits neither; each address is a frontend for every port.
const MOST_ADDRESSES: usize = 1_000;
/// The maximum number of source ranges that are read. About 20,000 cover a country; an object of
/// etcd's maximum size has four times as many.
const MOST_SOURCE_RANGES: usize = 20_000;
/// The maximum number of ports that are read: as many as the API server accepts in an
/// EndpointSlice.
const MOST_PORTS: usize = 20_000;
/// The maximum number of cluster IPs that are read: the API server accepts one per family.
const MOST_CLUSTER_IPS: usize = 2;

/// Parses the Service. The result has a value only if Signpost serves it: not assigned to another
/// proxy, not headless, not an ExternalName, and with a cluster IP in some family.
pub(crate) fn parse_service(
    object: &object::Service,
    names: &mut SharedNames,
) -> Parsed<Arc<Service>> {
    let key = object.key();
    let mut findings = Findings::new(ObjectKind::Service, &key);
    let service_key = ServiceKey {
        namespace: names.share(&key.namespace),
        name: names.share(&key.name),
    };
    let service = service(object, service_key, names, &mut findings);
    findings.into_parsed(service.map(Arc::new))
}

fn service(
    object: &object::Service,
    key: ServiceKey,
    names: &mut SharedNames,
    findings: &mut Findings<'_>,
) -> Option<Service> {
    if unserved(object).is_some() {
        return None;
    }
    let spec = &object.spec;
    let kind = kind(spec, findings);
    let (cluster_ipv4, cluster_ipv6) = cluster_ips(spec, findings)?;
    let ports = ports(spec, names, findings);
    let precedence = precedence(&key, &object.metadata, &ports);
    Some(Service {
        key,
        kind,
        cluster_ipv4,
        cluster_ipv6,
        external_ips: external_ips(spec, findings),
        load_balancer_ips: load_balancer_ips(&object.status, findings),
        source_ranges: source_ranges(spec, findings),
        affinity: affinity(spec, findings),
        scheduler: scheduler(&object.metadata, findings),
        internal_policy: policy(
            "internalTrafficPolicy",
            &spec.internal_traffic_policy,
            findings,
        ),
        external_policy: policy(
            "externalTrafficPolicy",
            &spec.external_traffic_policy,
            findings,
        ),
        health_check_node_port: findings
            .port(
                format_args!("spec.healthCheckNodePort"),
                &spec.health_check_node_port,
                "health checks of this Service are not answered",
            )
            .unwrap_or(None),
        ports,
        precedence,
    })
}

/// Why Signpost does not serve the Service, if it does not.
pub(crate) fn unserved(object: &object::Service) -> Option<Unserved> {
    let spec = &object.spec;
    let is = |field: &Field<String>, text| field.given().is_some_and(|given| given == text);
    if object.metadata.labels.contains_key(SERVICE_PROXY_NAME) {
        Some(Unserved::AnotherProxy)
    } else if is(&spec.kind, "ExternalName") {
        Some(Unserved::ExternalName)
    } else if is(first_cluster_ip(spec), "None") {
        Some(Unserved::Headless)
    } else {
        None
    }
}

fn kind(spec: &ServiceSpec, findings: &mut Findings<'_>) -> ServiceKind {
    let path = format_args!("spec.type");
    let instead = "the Service is served as a ClusterIP";
    match findings.text(path, &spec.kind, instead) {
        Ok("" | "ClusterIP") | Err(Rejected) => ServiceKind::ClusterIp,
        Ok("NodePort") => ServiceKind::NodePort,
        Ok("LoadBalancer") => ServiceKind::LoadBalancer,
        Ok(other) => {
            findings.reject(path, format!("{} is not a type; {instead}", quoted(other)));
            ServiceKind::ClusterIp
        }
    }
}

/// A hand-written Service may have only one of the two fields; the API server always fills both.
fn first_cluster_ip(spec: &ServiceSpec) -> &Field<String> {
    match (&spec.cluster_ip, spec.cluster_ips.first()) {
        (Field::Absent, Some(first)) => first,
        (cluster_ip, _) => cluster_ip,
    }
}

/// Returns the cluster IP of each family; `None` if the Service has no address.
fn cluster_ips(
    spec: &ServiceSpec,
    findings: &mut Findings<'_>,
) -> Option<(Option<Ipv4Addr>, Option<Ipv6Addr>)> {
    const INSTEAD: &str = "the Service is not served at it";
    let first = first_cluster_ip(spec);
    match first.given().map(String::as_str) {
        Some("") => {
            no_address(findings);
            return None;
        }
        None if *first == Field::Absent => {
            no_address(findings);
            return None;
        }
        _ => {}
    }
    let (mut ipv4, mut ipv6) = (None, None);
    let mut take = |address| match address {
        IpAddr::V4(address) => ipv4 = ipv4.or(Some(address)),
        IpAddr::V6(address) => ipv6 = ipv6.or(Some(address)),
    };
    if spec.cluster_ips.is_empty() {
        let path = format_args!("spec.clusterIP");
        if let Ok(address) = findings.address(path, first, INSTEAD) {
            take(address);
        }
    }
    let list = "spec.clusterIPs";
    let fields = findings.bounded(list, &spec.cluster_ips, MOST_CLUSTER_IPS, "are not served");
    for (i, field) in fields.iter().enumerate() {
        let path = format_args!("{list}[{i}]");
        let Ok(address) = findings.address(path, field, INSTEAD) else {
            continue;
        };
        let family = Family::of(address);
        // Without ipFamilies (an API server from before dual-stack) there is one address, which
        // determines its family.
        let declared = match spec.ip_families.get(i).and_then(Field::given) {
            Some(name) => name.as_str(),
            None if i == 0 && spec.ip_families.is_empty() => family_name(family),
            None => "nothing",
        };
        if declared == family_name(family) {
            take(address);
        } else {
            let message = format!(
                "{address} is of {family}, but spec.ipFamilies[{i}] says {declared}; {INSTEAD}"
            );
            findings.reject(path, message);
        }
    }
    (ipv4.is_some() || ipv6.is_some()).then_some((ipv4, ipv6))
}

/// An API server allocates an address for every Service that is not headless; in a manifest it can
/// be missing.
fn no_address(findings: &mut Findings<'_>) {
    findings.reject(
        format_args!("spec.clusterIP"),
        "there is no address; the Service is not served".to_owned(),
    );
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "IPv4",
        Family::Ipv6 => "IPv6",
    }
}

fn external_ips(spec: &ServiceSpec, findings: &mut Findings<'_>) -> Vec<IpAddr> {
    let list = "spec.externalIPs";
    let fields = findings.bounded(list, &spec.external_ips, MOST_ADDRESSES, "are not served");
    let mut addresses = Vec::with_capacity(fields.len());
    for (i, field) in fields.iter().enumerate() {
        let path = format_args!("{list}[{i}]");
        addresses.extend(findings.address(path, field, "it is not served"));
    }
    each_once(addresses)
}

fn load_balancer_ips(status: &object::ServiceStatus, findings: &mut Findings<'_>) -> Vec<IpAddr> {
    const INSTEAD: &str = "it is not served";
    let list = "status.loadBalancer.ingress";
    let all = &status.load_balancer.ingress;
    let all = findings.bounded(list, all, MOST_ADDRESSES, "are not served");
    let mut addresses = Vec::with_capacity(all.len());
    for (i, ingress) in all.iter().enumerate() {
        // A load balancer with a host name only, or with ipMode Proxy, delivers to node ports;
        // intercepting its address on the node would bypass it (KEP-1860).
        if matches!(&ingress.ip, Field::Absent) || ingress.ip.given().is_some_and(String::is_empty)
        {
            continue;
        }
        let path = format_args!("{list}[{i}].ipMode");
        match findings.text(path, &ingress.ip_mode, INSTEAD) {
            Ok("" | "VIP") => {}
            Ok("Proxy") | Err(Rejected) => continue,
            Ok(other) => {
                let message = format!("{} is not VIP or Proxy; {INSTEAD}", quoted(other));
                findings.reject(path, message);
                continue;
            }
        }
        let path = format_args!("{list}[{i}].ip");
        addresses.extend(findings.address(path, &ingress.ip, INSTEAD));
    }
    each_once(addresses)
}

/// The source ranges that may connect to load-balancer IPs.
///
/// An unreadable range admits no client, and must not admit all: if it leaves a family without any
/// range, which would mean every client, [`no_source`] replaces it.
fn source_ranges(spec: &ServiceSpec, findings: &mut Findings<'_>) -> Vec<IpNet> {
    const INSTEAD: &str = "no client may connect from it";
    let list = "spec.loadBalancerSourceRanges";
    let all = &spec.load_balancer_source_ranges;
    let fields = findings.bounded(list, all, MOST_SOURCE_RANGES, "admit no client");
    let mut ranges = Vec::with_capacity(fields.len());
    let mut unread = fields.len() < all.len();
    for (i, field) in fields.iter().enumerate() {
        let path = format_args!("{list}[{i}]");
        let Ok(text) = findings.text(path, field, INSTEAD) else {
            unread = true;
            continue;
        };
        if let Some(range) = address::parse_cidr(text.trim()) {
            ranges.push(range);
        } else {
            findings.reject(path, format!("{} is not a CIDR; {INSTEAD}", quoted(text)));
            unread = true;
        }
    }
    let mut ranges = each_once(ranges);
    for family in Family::ALL {
        if unread
            && !ranges
                .iter()
                .any(|range| Family::of(range.addr()) == family)
        {
            ranges.push(no_source(family));
        }
    }
    ranges
}

/// A range that contains no client's address: the broadcast or the unspecified address.
fn no_source(family: Family) -> IpNet {
    match family {
        Family::Ipv4 => IpNet::V4(Ipv4Net::from(Ipv4Addr::BROADCAST)),
        Family::Ipv6 => IpNet::V6(Ipv6Net::from(Ipv6Addr::UNSPECIFIED)),
    }
}

/// Whether a range stands for no client, because no range of its family could be read.
pub fn is_no_source(range: &IpNet) -> bool {
    Family::ALL
        .iter()
        .any(|family| *range == no_source(*family))
}

fn affinity(spec: &ServiceSpec, findings: &mut Findings<'_>) -> Affinity {
    let path = format_args!("spec.sessionAffinity");
    let instead = "there is no affinity";
    match findings.text(path, &spec.session_affinity, instead) {
        Ok("ClientIP") => Affinity::ClientIp {
            timeout: affinity_timeout(spec, findings),
        },
        Ok("" | "None") | Err(Rejected) => Affinity::None,
        Ok(other) => {
            let message = format!("{} is not None or ClientIP; {instead}", quoted(other));
            findings.reject(path, message);
            Affinity::None
        }
    }
}

fn affinity_timeout(spec: &ServiceSpec, findings: &mut Findings<'_>) -> Duration {
    let path = format_args!("spec.sessionAffinityConfig.clientIP.timeoutSeconds");
    let instead = "10800 seconds are used";
    let field = &spec.session_affinity_config.client_ip.timeout_seconds;
    let Ok(Some(seconds)) = findings.value(path, field, instead) else {
        return DEFAULT_AFFINITY_TIMEOUT;
    };
    match u64::try_from(*seconds) {
        Ok(seconds @ 1..=LONGEST_AFFINITY_SECONDS) => Duration::from_secs(seconds),
        _ => {
            let message = format!("{seconds} seconds are not between 1 and 86400; {instead}");
            findings.reject(path, message);
            DEFAULT_AFFINITY_TIMEOUT
        }
    }
}

/// The scheduler that the Service requests; `None` if it requests none, or one that does not exist.
fn scheduler(metadata: &Metadata, findings: &mut Findings<'_>) -> Option<Scheduler> {
    let text = metadata.annotations.get(Service::SCHEDULER)?;
    let scheduler = text.parse();
    if let Err(error) = &scheduler {
        let path = format_args!("metadata.annotations[{}]", Service::SCHEDULER);
        let text = quoted(text);
        let message = format!("{text} is {error}; the scheduler of the profile is used");
        findings.reject(path, message);
    }
    scheduler.ok()
}

fn policy(name: &str, field: &Field<String>, findings: &mut Findings<'_>) -> TrafficPolicy {
    let path = format_args!("spec.{name}");
    let instead = "Cluster is used";
    match findings.text(path, field, instead) {
        Ok("" | "Cluster") | Err(Rejected) => TrafficPolicy::Cluster,
        Ok("Local") => TrafficPolicy::Local,
        Ok(other) => {
            let message = format!("{} is not Cluster or Local; {instead}", quoted(other));
            findings.reject(path, message);
            TrafficPolicy::Cluster
        }
    }
}

fn ports(
    spec: &ServiceSpec,
    names: &mut SharedNames,
    findings: &mut Findings<'_>,
) -> Vec<ServicePort> {
    let objects = findings.bounded("spec.ports", &spec.ports, MOST_PORTS, "are not served");
    let mut ports: Vec<ServicePort> = Vec::with_capacity(objects.len());
    let mut known = BTreeSet::new();
    for (i, object) in objects.iter().enumerate() {
        let Ok(port) = port(i, object, names, findings) else {
            continue;
        };
        if !known.insert((Arc::clone(&port.name), port.protocol)) {
            let message = format!(
                "{} is already the name of another {} port; this one is not served",
                quoted(&port.name),
                protocol_name(port.protocol),
            );
            findings.reject(format_args!("spec.ports[{i}].name"), message);
        } else {
            ports.push(port);
        }
    }
    ports
}

fn port(
    i: usize,
    object: &object::ServicePort,
    names: &mut SharedNames,
    findings: &mut Findings<'_>,
) -> Result<ServicePort, Rejected> {
    const INSTEAD: &str = "this port is not served";
    let name = findings.port_name(format_args!("spec.ports[{i}].name"), &object.name, INSTEAD)?;
    let protocol = findings.protocol(
        format_args!("spec.ports[{i}].protocol"),
        &object.protocol,
        INSTEAD,
    )?;
    let path = format_args!("spec.ports[{i}].port");
    let Some(port) = findings.port(path, &object.port, INSTEAD)? else {
        return Err(findings.reject(path, format!("there is no number; {INSTEAD}")));
    };
    let node_port = findings
        .port(
            format_args!("spec.ports[{i}].nodePort"),
            &object.node_port,
            "this port is not served on node addresses",
        )
        .unwrap_or(None);
    Ok(ServicePort {
        name: names.share(name),
        protocol,
        port,
        node_port,
    })
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}

/// Returns `list` in its order without duplicates.
fn each_once<T: Copy + Ord>(mut list: Vec<T>) -> Vec<T> {
    let mut known = BTreeSet::new();
    list.retain(|value| known.insert(*value));
    list
}
