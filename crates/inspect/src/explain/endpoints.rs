//! Explains why each endpoint of a port is used or not used. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::{
    Endpoint, Family, Frontend, FrontendKind, Node, Service, ServicePort, Target, TopologyLevel,
    TrafficPolicy, select, topology_level,
};

use super::answer::{EndpointAnswer, Usage};

/// Which endpoint lists the frontends of a port use.
#[derive(Debug, Clone, Copy)]
struct InUse {
    cluster: bool,
    local: bool,
}

/// The endpoints to which the frontends of a port send packets. In modes iptables and ipvs these are
/// not all that are selected, where there are too many.
struct Programmed<'a> {
    cluster: Vec<&'a Arc<[Target]>>,
    local: Vec<&'a Arc<[Target]>>,
}

/// Why a selected endpoint is not among them.
const LIMITED: &str =
    "in this mode the port has too many endpoints, and this node sends packets to others of them";

/// Explains every endpoint of `port` in one family, in order. `frontends` are the frontends of the
/// port.
pub(super) fn explain_endpoints<'a>(
    family: Family,
    service: &Service,
    port: &ServicePort,
    endpoints: &[Endpoint],
    frontends: impl Iterator<Item = &'a Frontend> + Clone,
    node: &Node,
) -> Vec<EndpointAnswer> {
    let candidates: Vec<&Endpoint> = endpoints
        .iter()
        .filter(|endpoint| Family::of(endpoint.address) == family)
        .collect();
    if service.cluster_ip(family).is_none() {
        let because = format!("the Service has no {family} cluster IP");
        let unused =
            |endpoint: &&Endpoint| answer(endpoint, node, Usage::Unused, Some(because.clone()));
        return candidates.iter().map(unused).collect();
    }
    let in_use = InUse::of(frontends.clone());
    let programmed = Programmed::of(frontends);
    let selection = select(service, port, &candidates, node);
    let [chosen, chosen_here] = [selection.cluster, selection.local]
        .map(|list| -> BTreeSet<usize> { list.into_iter().collect() });
    let topology_level = topology_level(&candidates, node);
    let explain = |(position, endpoint): (usize, &&Endpoint)| {
        let selected = [
            in_use.cluster && chosen.contains(&position),
            in_use.local && chosen_here.contains(&position),
        ];
        let [cluster, local] = programmed.among(selected, endpoint);
        let (usage, because) = judge(in_use, (cluster, local), endpoint, topology_level, node);
        let because = match [cluster, local] == selected {
            true => because,
            false => Some(LIMITED.to_owned()),
        };
        answer(endpoint, node, usage, because)
    };
    candidates.iter().enumerate().map(explain).collect()
}

/// Returns how an endpoint is used that was selected for the lists `cluster` and `local`, and why.
fn judge(
    in_use: InUse,
    (cluster, local): (bool, bool),
    endpoint: &Endpoint,
    topology_level: TopologyLevel,
    node: &Node,
) -> (Usage, Option<String>) {
    let not_in_cluster = || why_not_in_cluster(endpoint, topology_level).map(str::to_owned);
    let not_local = || why_not_local(endpoint, node).map(str::to_owned);
    match (cluster, local) {
        (false, false) if in_use.cluster => (Usage::Unused, not_in_cluster()),
        (false, false) if in_use.local => (Usage::Unused, not_local()),
        (false, false) => (Usage::Unused, Some("no frontend uses this port".to_owned())),
        chosen if chosen == (in_use.cluster, in_use.local) => {
            let because = (!endpoint.readiness.ready)
                .then(|| "it still serves, and no usable endpoint is ready".to_owned());
            (Usage::Used, because)
        }
        (true, _) => (Usage::UsedUnlessLocal, not_local()),
        (false, true) => (Usage::UsedIfLocal, not_in_cluster()),
    }
}

fn why_not_in_cluster(endpoint: &Endpoint, topology_level: TopologyLevel) -> Option<&'static str> {
    match topology_level {
        _ if !endpoint.readiness.ready => why_not_ready(endpoint),
        TopologyLevel::SameNode => Some("it is not hinted for this node, and other endpoints are"),
        TopologyLevel::SameZone => {
            Some("it is not hinted for this node's zone, and other endpoints are")
        }
        TopologyLevel::Anywhere => None,
    }
}

fn why_not_local(endpoint: &Endpoint, node: &Node) -> Option<&'static str> {
    if node.hosts(endpoint) {
        why_not_ready(endpoint)
    } else {
        Some("it is not on this node")
    }
}

/// Returns the reason if the endpoint is terminating. If it is not usable at all, the printed
/// conditions are reason enough.
fn why_not_ready(endpoint: &Endpoint) -> Option<&'static str> {
    let draining = endpoint.readiness.draining();
    draining.then_some("it is terminating, and other endpoints are ready")
}

fn target(endpoint: &Endpoint) -> Target {
    Target {
        address: endpoint.address,
        port: endpoint.port,
    }
}

fn answer(
    endpoint: &Endpoint,
    node: &Node,
    usage: Usage,
    because: Option<String>,
) -> EndpointAnswer {
    let zones = endpoint
        .hints
        .zones
        .iter()
        .map(|zone| format!("zone {zone}"));
    let nodes = endpoint
        .hints
        .nodes
        .iter()
        .map(|node| format!("node {node}"));
    EndpointAnswer {
        address: target(endpoint).to_string(),
        node: endpoint.node.as_deref().map(str::to_owned),
        here: node.hosts(endpoint),
        ready: endpoint.readiness.ready,
        serving: endpoint.readiness.serving,
        terminating: endpoint.readiness.terminating,
        hinted_for: zones.chain(nodes).collect(),
        usage,
        because,
    }
}

// === impl InUse ===

impl InUse {
    fn of<'a>(mut frontends: impl Iterator<Item = &'a Frontend> + Clone) -> InUse {
        let local = |frontend: &Frontend| frontend.policy == TrafficPolicy::Local;
        InUse {
            local: frontends.clone().any(local),
            cluster: frontends
                .any(|frontend| frontend.kind != FrontendKind::ClusterIp || !local(frontend)),
        }
    }
}

// === impl Programmed ===

impl<'a> Programmed<'a> {
    fn of(frontends: impl Iterator<Item = &'a Frontend>) -> Programmed<'a> {
        let mut programmed = Programmed {
            cluster: Vec::new(),
            local: Vec::new(),
        };
        for frontend in frontends {
            for (lists, list) in [
                (&mut programmed.cluster, &frontend.cluster),
                (&mut programmed.local, &frontend.local),
            ] {
                // Frontends share their lists.
                if !lists.iter().any(|known| Arc::ptr_eq(known, list)) {
                    lists.push(list);
                }
            }
        }
        programmed
    }

    /// In which of the lists, cluster and local, an endpoint is that is `selected` for them.
    fn among(&self, selected: [bool; 2], endpoint: &Endpoint) -> [bool; 2] {
        let target = target(endpoint);
        let is_in = |lists: &[&Arc<[Target]>]| {
            let mut lists = lists.iter();
            lists.any(|list| list.binary_search(&target).is_ok())
        };
        let [cluster, local] = selected;
        [cluster && is_in(&self.cluster), local && is_in(&self.local)]
    }
}
