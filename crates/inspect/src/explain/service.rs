//! Explains one Service, with the frontends that a question is about. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use catalog::{View, is_no_source};
use dataplane::{
    Affinity, Dataplane, Family, Frontend, FrontendKey, ObjectKind, Protocol, Service, ServiceKey,
    ServiceKind, ServicePort, ServiceRules, TrafficPolicy,
};

use super::answer::{FrontendAnswer, HealthCheckAnswer, PieceState, PortAnswer, ServiceAnswer};
use super::comparison::Comparison;
use super::endpoints::explain_endpoints;
use super::{Evidence, Unknown, connections};
use crate::ServiceState;

/// Returns the frontends of a Service. With `port`, returns those of the ports with that name,
/// number or node port.
pub(super) fn frontends_of(
    service: &Service,
    port: Option<&str>,
    evidence: &Evidence<'_>,
) -> Result<Vec<FrontendKey>, Unknown> {
    let ports = service.ports.iter();
    let meant: Vec<&ServicePort> = ports
        .filter(|candidate| port.is_none_or(|port| is_called(candidate, port)))
        .collect();
    if let (true, Some(port)) = (meant.is_empty(), port) {
        let has: Vec<String> = service.ports.iter().map(describe_port).collect();
        return Err(Unknown::Port {
            service: service.key.clone(),
            port: port.to_owned(),
            has: has.join(", "),
        });
    }
    // A Service without rules has just arrived and is not compiled yet.
    let rules = evidence.dataplane.services().get(&service.key);
    let frontends = rules.into_iter().flat_map(|rules| &rules.frontends);
    let meant: BTreeSet<PortName<'_>> = meant.into_iter().map(name_of).collect();
    let keys = frontends.filter(|(_, frontend)| meant.contains(&name_behind(frontend)));
    Ok(keys.map(|(key, _)| *key).collect())
}

/// `http (80/tcp, node port 30080)`.
fn describe_port(port: &ServicePort) -> String {
    let number = format!("{}/{}", port.port, port.protocol);
    let numbers = match port.node_port {
        Some(node_port) => format!("{number}, node port {node_port}"),
        None => number,
    };
    match &*port.name {
        "" => numbers,
        name => format!("{name} ({numbers})"),
    }
}

/// Returns whether `name` is the name or number of `port`. Names contain a letter, numbers do not.
fn is_called(port: &ServicePort, name: &str) -> bool {
    let mut numbers = [Some(port.port), port.node_port].into_iter().flatten();
    *port.name == *name || numbers.any(|number| number.to_string() == name)
}

/// Identifies a port within one Service.
type PortName<'a> = (&'a str, Protocol);

fn name_of(port: &ServicePort) -> PortName<'_> {
    (&port.name, port.protocol)
}

fn name_behind(frontend: &Frontend) -> PortName<'_> {
    (&frontend.service_port.port, frontend.service_port.protocol)
}

/// Explains a Service with these frontends. Returns `None` if the source has no such Service.
pub(super) fn explain_service(
    service: &ServiceKey,
    keys: &[FrontendKey],
    evidence: &Evidence<'_>,
) -> Option<ServiceAnswer> {
    let Some(ServiceState::Served { view, slices }) = evidence.reported.services.get(service)
    else {
        return None;
    };
    let rules = evidence.dataplane.services().get(service);
    let comparisons = compare(rules, evidence);
    let object = &view.service;
    let keys: BTreeSet<&FrontendKey> = keys.iter().collect();
    let meant: Vec<&(FrontendKey, Arc<Frontend>)> = rules
        .iter()
        .flat_map(|rules| &rules.frontends)
        .filter(|(key, _)| keys.contains(key))
        .collect();
    let mut unsupported_fields = rejected(service, slices, evidence);
    unsupported_fields.extend(refused(service, &meant, evidence));
    let is_external = object
        .ports
        .iter()
        .any(|port| object.externally_accessible(port));
    let is_meant = |family| is_meant(family, rules, &meant);
    let compared = comparisons.iter().filter(|(family, _)| is_meant(**family));
    let memberships = compared.flat_map(|(_, comparison)| comparison.memberships());
    // A leftover member may belong to another Service. The set of the node's own addresses is
    // shared by all Services: only what is missing in it is shown.
    let memberships = memberships.filter(|piece| match piece.state {
        PieceState::Leftover => false,
        PieceState::Missing => true,
        _ => !piece.piece.starts_with("nodeport-addresses"),
    });
    Some(ServiceAnswer {
        service: service.to_string(),
        kind: match object.kind {
            ServiceKind::ClusterIp => "ClusterIP",
            ServiceKind::NodePort => "NodePort",
            ServiceKind::LoadBalancer => "LoadBalancer",
        },
        internal_traffic_policy: policy(object.internal_policy),
        external_traffic_policy: is_external.then(|| policy(object.effective_external_policy())),
        affinity_seconds: match object.affinity {
            Affinity::None => None,
            Affinity::ClientIp { timeout } => Some(timeout.as_secs()),
        },
        source_ranges: object
            .source_ranges
            .iter()
            .map(|range| match is_no_source(range) {
                // A range that the user did not write.
                true => format!("{}: no client", Family::of(range.addr())),
                false => range.to_string(),
            })
            .collect(),
        health_check: rules
            .and_then(|rules| rules.health_check)
            .map(|check| HealthCheckAnswer {
                port: check.port.get(),
                local_endpoints: check.local_endpoints.total(),
            }),
        ports: ports_behind(view, &meant, is_meant, evidence),
        frontends: meant
            .iter()
            .map(|(key, frontend)| {
                let comparison = comparisons.get(&key.family());
                explain_frontend(service, key, frontend, comparison, evidence)
            })
            .collect(),
        memberships: memberships.collect(),
        unsupported_fields,
    })
}

/// Returns the ports of a Service, each with all of its endpoints.
pub(super) fn explain_ports(service: &ServiceKey, evidence: &Evidence<'_>) -> Vec<PortAnswer> {
    let rules = evidence.dataplane.services().get(service);
    match (rules, evidence.reported.services.get(service)) {
        (Some(rules), Some(ServiceState::Served { view, .. })) => {
            let all: Vec<_> = rules.frontends.iter().collect();
            ports_behind(view, &all, |_| true, evidence)
        }
        _ => Vec::new(),
    }
}

/// Returns whether the question is about `family`. It is not if `meant` contains only frontends of
/// the other family. A family in which the Service has no frontend is part of the answer.
fn is_meant(
    family: Family,
    rules: Option<&Arc<ServiceRules>>,
    meant: &[&(FrontendKey, Arc<Frontend>)],
) -> bool {
    let frontends = rules.into_iter().flat_map(|rules| &rules.frontends);
    let mut of_family = frontends.filter(|(key, _)| key.family() == family);
    meant.iter().any(|(key, _)| key.family() == family) || of_family.next().is_none()
}

/// Returns the ports with frontends in `meant`, each with all of its endpoints of the families in
/// question.
fn ports_behind(
    view: &View,
    meant: &[&(FrontendKey, Arc<Frontend>)],
    families: impl Fn(Family) -> bool,
    evidence: &Evidence<'_>,
) -> Vec<PortAnswer> {
    let mut by_port: BTreeMap<PortName<'_>, Vec<&Frontend>> = BTreeMap::new();
    for (_, frontend) in meant {
        let frontends = by_port.entry(name_behind(frontend)).or_default();
        frontends.push(frontend);
    }
    let ports = view.service.ports.iter();
    ports
        .filter_map(|port| Some((port, by_port.get(&name_of(port))?)))
        .map(|(port, frontends)| PortAnswer {
            name: port.name.to_string(),
            port: format!("{}/{}", port.port, port.protocol),
            node_port: port.node_port.map(|number| number.get()),
            endpoints: Family::ALL
                .into_iter()
                .filter(|family| families(*family))
                .flat_map(|family| {
                    explain_endpoints(
                        family,
                        &view.service,
                        port,
                        view.endpoints.of(&port.name, port.protocol),
                        frontends.iter().copied(),
                        evidence.dataplane.node(),
                    )
                })
                .collect(),
        })
        .collect()
}

fn explain_frontend(
    service: &ServiceKey,
    key: &FrontendKey,
    frontend: &Frontend,
    comparison: Option<&Comparison>,
    evidence: &Evidence<'_>,
) -> FrontendAnswer {
    let claims = evidence.dataplane.frontends().get(key);
    let winner = claims.map(|claims| claims.winner().0);
    let refused = evidence.dataplane.refusal(service, key);
    let served_for = winner.filter(|winner| *winner != service);
    let mut answer = FrontendAnswer {
        address: key.to_string(),
        kind: frontend.kind.to_string(),
        port: frontend.service_port.port.to_string(),
        policy: policy(frontend.policy),
        connections: connections::describe(frontend),
        served_for: served_for.map(ToString::to_string),
        refused: refused.map(|refused| refused.reserved.to_string()),
        elements: Vec::new(),
        chains: Vec::new(),
    };
    if served_for.is_some() || refused.is_some() {
        answer.connections.clear();
    } else if let Some(comparison) = comparison {
        answer.elements = comparison.elements(key);
        answer.chains = comparison.chains(key);
    }
    answer
}

/// Compares this Service alone with the kernel, for each family.
fn compare(
    rules: Option<&Arc<ServiceRules>>,
    evidence: &Evidence<'_>,
) -> BTreeMap<Family, Comparison> {
    let all = evidence.dataplane;
    let mut alone = Dataplane::new(Arc::clone(all.node()), Arc::clone(all.config()));
    if let Some(rules) = rules {
        alone.set(Arc::clone(rules));
    }
    let compare = |family: Family| (family, Comparison::new(family, &alone, evidence));
    Family::ALL.map(compare).into()
}

/// Returns what of a Service and its EndpointSlices is not honoured, in sentences.
pub(super) fn rejected(
    service: &ServiceKey,
    slices: &[Arc<str>],
    evidence: &Evidence<'_>,
) -> Vec<String> {
    let rejections = evidence.rejections.iter();
    rejections
        .filter(|rejection| {
            let object = &rejection.object;
            object.namespace == service.namespace
                && match object.kind {
                    ObjectKind::Service => object.name == service.name,
                    ObjectKind::EndpointSlice => slices.contains(&object.name),
                    _ => false,
                }
        })
        .map(|rejection| match rejection.object.kind {
            ObjectKind::Service => format!("{}: {}", rejection.field, rejection.message),
            _ => rejection.to_string(),
        })
        .collect()
}

/// Returns what the kernel refuses for a Service, and what the mode does not support for it.
fn refused(
    service: &ServiceKey,
    meant: &[&(FrontendKey, Arc<Frontend>)],
    evidence: &Evidence<'_>,
) -> Vec<String> {
    let mut sentences = Vec::new();
    let meant: BTreeSet<FrontendKey> = meant.iter().map(|(key, _)| *key).collect();
    for status in evidence.families {
        let family = status.family;
        for quarantined in status.quarantined.iter().filter(|q| q.service == *service) {
            sentences.push(format!(
                "the {family} kernel refuses it: {}",
                quarantined.error
            ));
        }
        for unsupported_field in status.unsupported_fields.iter() {
            if unsupported_field.service == *service && meant.contains(&unsupported_field.frontend)
            {
                let (field, message) = (unsupported_field.field, &unsupported_field.message);
                sentences.push(format!(
                    "{field}: {message} ({})",
                    unsupported_field.frontend
                ));
            }
        }
    }
    sentences
}

fn policy(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
}
