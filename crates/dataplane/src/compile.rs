//! Compiles one Service with its endpoints into rules for this node.

mod capacity;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

pub use self::capacity::MOST_ELEMENTS;
use self::capacity::{Capacity, left_out, limit, limited};
use crate::{
    Config, Endpoint, Endpoints, ExternalIps, Family, Frontend, FrontendKey, FrontendKind, Hairpin,
    HealthCheck, LocalEndpoints, Mode, Node, ObjectKind, ObjectName, Rejection, Scheduler, Service,
    ServiceKind, ServicePort, ServicePortName, ServiceRules, Target, TrafficPolicy, select,
};

/// How many rejections of one Service are kept.
const MOST_REJECTIONS: usize = 100;

/// Computes what `service` requires of `node`. Never fails: what is not supported is listed in
/// [`ServiceRules::rejections`], and everything else is compiled.
pub fn compile(
    service: &Service,
    endpoints: &Endpoints,
    node: &Node,
    config: &Config,
) -> ServiceRules {
    let mut draft = Draft::default();
    for (field, message) in left_out(service, endpoints) {
        draft.reject(service, field, message);
    }
    let external_ips = honoured_external_ips(service, config, &mut draft);
    let scheduler = honoured_scheduler(service, config, &mut draft);
    for family in Family::ALL {
        let Some(cluster_ip) = service.cluster_ip(family) else {
            draft.reject_addresses(service, family, &external_ips);
            continue;
        };
        draft.cluster_ips.insert(cluster_ip);
        let mut capacity = Capacity::new(config.mode);
        let addresses = Addresses {
            cluster_ip,
            load_balancer_ips: of_family(&service.load_balancer_ips, family),
            external_ips: of_family(&external_ips, family),
            source_ranges: source_ranges(service, node, family),
        };
        for port in &service.ports {
            let place = (node, config.mode);
            let port_endpoints =
                PortEndpoints::new(service, port, endpoints, place, family, scheduler);
            if let Some(count) = port_endpoints.limited {
                let chosen_by = (config.mode, scheduler);
                let message = limited(port, (family, count), chosen_by);
                draft.reject(service, "spec.ports", message);
            }
            draft.hairpins.extend(&port_endpoints.hairpins);
            draft.add_port(service, port, &addresses, &port_endpoints, &mut capacity);
        }
        if let Some(message) = capacity.message() {
            draft.reject(service, "spec", message);
        }
    }
    draft.finish(service, endpoints, node)
}

/// The rules under construction.
#[derive(Default)]
struct Draft {
    frontends: BTreeMap<FrontendKey, Arc<Frontend>>,
    cluster_ips: BTreeSet<IpAddr>,
    hairpins: BTreeSet<Hairpin>,
    rejections: BTreeSet<Rejection>,
    /// The number of rejections that were not kept.
    unnamed: usize,
}

/// The addresses of a Service in one family.
struct Addresses {
    cluster_ip: IpAddr,
    load_balancer_ips: Vec<IpAddr>,
    external_ips: Vec<IpAddr>,
    source_ranges: Arc<[IpNet]>,
}

/// The endpoints of a Service port in one family.
struct PortEndpoints {
    family: Family,
    scheduler: Scheduler,
    cluster: Arc<[Target]>,
    local: Arc<[Target]>,
    serving: Arc<[Target]>,
    hairpins: BTreeSet<Hairpin>,
    has_endpoints: bool,
    /// The number of usable endpoints, if they are more than the mode takes.
    limited: Option<usize>,
}

// === impl Draft ===

impl Draft {
    /// Adds every frontend of `port` in one family. If two have the same key, the first one gets
    /// it. Load-balancer IPs come before external IPs: otherwise their source ranges would be lost.
    fn add_port(
        &mut self,
        service: &Service,
        port: &ServicePort,
        addresses: &Addresses,
        port_endpoints: &PortEndpoints,
        capacity: &mut Capacity,
    ) {
        let no_ranges: Arc<[IpNet]> = Arc::default();
        let frontend = |kind, policy, source_ranges: &Arc<[IpNet]>| {
            Arc::new(port_endpoints.frontend(
                service,
                port,
                kind,
                policy,
                Arc::clone(source_ranges),
            ))
        };
        let at = |address| FrontendKey::Address {
            address,
            protocol: port.protocol,
            port: port.port,
        };
        let internal = service.internal_policy;
        let external = service.effective_external_policy();

        self.add(
            service,
            "spec.ports",
            at(addresses.cluster_ip),
            &frontend(FrontendKind::ClusterIp, internal, &no_ranges),
            capacity,
        );
        let load_balancer = frontend(
            FrontendKind::LoadBalancerIp,
            external,
            &addresses.source_ranges,
        );
        for address in &addresses.load_balancer_ips {
            self.add(
                service,
                "status.loadBalancer.ingress",
                at(*address),
                &load_balancer,
                capacity,
            );
        }
        let external_ip = frontend(FrontendKind::ExternalIp, external, &no_ranges);
        for address in &addresses.external_ips {
            self.add(
                service,
                "spec.externalIPs",
                at(*address),
                &external_ip,
                capacity,
            );
        }
        if let Some(node_port) = port.node_port {
            let key = FrontendKey::NodePort {
                family: port_endpoints.family,
                protocol: port.protocol,
                port: node_port,
            };
            self.add(
                service,
                "spec.ports",
                key,
                &frontend(FrontendKind::NodePort, external, &no_ranges),
                capacity,
            );
        }
    }

    fn add(
        &mut self,
        service: &Service,
        field: &str,
        key: FrontendKey,
        frontend: &Arc<Frontend>,
        capacity: &mut Capacity,
    ) {
        let first = capacity
            .is_left()
            .then(|| self.frontends.get(&key))
            .flatten();
        // A duplicate use of a key costs work, too.
        let needed = first.map_or_else(|| capacity.elements(frontend), |_| 1);
        if !capacity.take(key, needed) {
            return;
        }
        if let Some(first) = first {
            let message = format!(
                "{key} is already served for port {} of this Service, as its {}; this use of it is left out",
                port_text(&first.service_port),
                first.kind,
            );
            self.reject(service, field, message);
        } else {
            self.frontends.insert(key, Arc::clone(frontend));
        }
    }

    /// Rejects every address in a family in which the Service has no cluster IP.
    fn reject_addresses(&mut self, service: &Service, family: Family, external_ips: &[IpAddr]) {
        let fields = [
            ("spec.externalIPs", external_ips),
            ("status.loadBalancer.ingress", &service.load_balancer_ips),
        ];
        for (field, addresses) in fields {
            for address in of_family(addresses, family) {
                let message = format!(
                    "{address} is not served, because the Service has no {family} cluster IP"
                );
                self.reject(service, field, message);
            }
        }
    }

    fn reject(&mut self, service: &Service, field: &str, message: String) {
        if self.rejections.len() >= MOST_REJECTIONS {
            self.unnamed += 1;
            return;
        }
        self.rejections.insert(Rejection {
            object: ObjectName {
                kind: ObjectKind::Service,
                namespace: Arc::clone(&service.key.namespace),
                name: Arc::clone(&service.key.name),
            },
            field: field.to_owned(),
            message,
        });
    }

    fn finish(mut self, service: &Service, endpoints: &Endpoints, node: &Node) -> ServiceRules {
        if self.unnamed > 0
            && let Some(last) = self.rejections.pop_last()
        {
            let unnamed = self.unnamed;
            let message = format!("{}; {unnamed} more are not served", last.message);
            self.rejections.insert(Rejection { message, ..last });
        }
        ServiceRules {
            service: service.key.clone(),
            frontends: self.frontends.into_iter().collect(),
            cluster_ips: self.cluster_ips.into_iter().collect(),
            hairpins: self.hairpins.into_iter().collect(),
            health_check: health_check(service, endpoints, node),
            rejections: self.rejections.into_iter().collect(),
        }
    }
}

// === impl PortEndpoints ===

impl PortEndpoints {
    fn new(
        service: &Service,
        port: &ServicePort,
        endpoints: &Endpoints,
        (node, mode): (&Node, Mode),
        family: Family,
        scheduler: Scheduler,
    ) -> PortEndpoints {
        let candidates: Vec<&Endpoint> = endpoints
            .of(&port.name, port.protocol)
            .iter()
            .filter(|endpoint| Family::of(endpoint.address) == family)
            .collect();
        let selection = select(service, port, &candidates, node);
        let chosen = |positions: &[usize]| -> Vec<&Endpoint> {
            positions
                .iter()
                .filter_map(|position| candidates.get(*position).copied())
                .collect()
        };
        let (cluster, local) = (chosen(&selection.cluster), chosen(&selection.local));
        let mut limited = None;
        let [cluster_targets, local_targets] = [&cluster, &local].map(|list| {
            let mut targets = targets(list);
            let before = limit(&mut targets, mode, scheduler, node);
            limited = limited.max(before);
            shared(targets)
        });
        let is_target = |endpoint: &&&Endpoint| {
            let target = target(endpoint);
            let lists = [&cluster_targets, &local_targets];
            lists.iter().any(|list| list.binary_search(&target).is_ok())
        };
        let hairpins = cluster
            .iter()
            .chain(&local)
            .filter(|endpoint| node.hosts(endpoint))
            .filter(is_target)
            .map(|endpoint| Hairpin {
                address: endpoint.address,
                protocol: port.protocol,
                port: endpoint.port,
            })
            .collect();
        let (cluster, local) = (cluster_targets, local_targets);
        PortEndpoints {
            family,
            scheduler,
            serving: serving(&candidates, [&cluster, &local]),
            cluster,
            local,
            hairpins,
            has_endpoints: selection.has_endpoints,
            limited,
        }
    }

    fn frontend(
        &self,
        service: &Service,
        port: &ServicePort,
        kind: FrontendKind,
        policy: TrafficPolicy,
        source_ranges: Arc<[IpNet]>,
    ) -> Frontend {
        // With external policy Local, pods of this node and the node itself still reach the whole
        // cluster; with internal policy Local no client does.
        let uses_cluster = kind != FrontendKind::ClusterIp || policy == TrafficPolicy::Cluster;
        let uses_local = policy == TrafficPolicy::Local;
        Frontend {
            service_port: ServicePortName {
                service: service.key.clone(),
                port: Arc::clone(&port.name),
                protocol: port.protocol,
            },
            kind,
            policy,
            cluster: if uses_cluster {
                Arc::clone(&self.cluster)
            } else {
                Arc::default()
            },
            local: if uses_local {
                Arc::clone(&self.local)
            } else {
                Arc::default()
            },
            serving: Arc::clone(&self.serving),
            has_endpoints: self.has_endpoints,
            affinity: service.affinity,
            scheduler: self.scheduler,
            source_ranges,
            precedence: service.precedence,
        }
    }
}

/// The addresses and ports of endpoints, sorted and distinct.
fn targets(endpoints: &[&Endpoint]) -> Vec<Target> {
    let mut targets: Vec<Target> = endpoints.iter().map(|endpoint| target(endpoint)).collect();
    // Endpoints of one list are sorted already.
    targets.sort();
    targets.dedup();
    targets
}

fn target(endpoint: &Endpoint) -> Target {
    Target {
        address: endpoint.address,
        port: endpoint.port,
    }
}

/// Empty lists share one allocation: nearly every Service has some.
fn shared<T>(list: Vec<T>) -> Arc<[T]> {
    match list.is_empty() {
        true => Arc::default(),
        false => list.into(),
    }
}

/// The endpoints that may still answer. Returns a list of `chosen` if it is equal, as it nearly
/// always is, to save memory.
fn serving(candidates: &[&Endpoint], chosen: [&Arc<[Target]>; 2]) -> Arc<[Target]> {
    // An endpoint that is published although not ready gets connections, and must keep them.
    let answering: Vec<&Endpoint> = candidates
        .iter()
        .filter(|endpoint| endpoint.readiness.serving || endpoint.readiness.ready)
        .copied()
        .collect();
    let serving = shared(targets(&answering));
    let shared = chosen.into_iter().find(|list| ***list == *serving);
    shared.map_or(serving, Arc::clone)
}

fn honoured_external_ips(service: &Service, config: &Config, draft: &mut Draft) -> Vec<IpAddr> {
    match config.external_ips {
        ExternalIps::Honoured => service.external_ips.clone(),
        ExternalIps::Ignored => {
            if !service.external_ips.is_empty() {
                let message = "external IPs are not served, because this cluster is configured to ignore them";
                draft.reject(service, "spec.externalIPs", message.to_owned());
            }
            Vec::new()
        }
    }
}

/// The scheduler that is used. If the mode lacks the configuration's scheduler, the status of
/// the node's own object reports the replacement.
fn honoured_scheduler(service: &Service, config: &Config, draft: &mut Draft) -> Scheduler {
    let mode = config.mode;
    let Some(asked) = service.scheduler else {
        return config.scheduler.nearest_in(mode);
    };
    if let Some(used) = asked.replacement_in(mode) {
        let field = format!("metadata.annotations[{}]", Service::SCHEDULER);
        let message =
            format!("mode {mode} does not have scheduler {asked}: {used} is used instead");
        draft.reject(service, &field, message);
    }
    asked.nearest_in(mode)
}

/// The sources that may connect to load-balancer IPs of `family`. Empty: all sources.
fn source_ranges(service: &Service, node: &Node, family: Family) -> Arc<[IpNet]> {
    let mut ranges: Vec<IpNet> = service
        .source_ranges
        .iter()
        .filter(|range| Family::of(range.addr()) == family)
        .copied()
        .collect();
    let includes_node = node
        .address(family)
        .is_some_and(|address| ranges.iter().any(|range| range.contains(&address)));
    if includes_node {
        // A process on this node that connects to the address of a load balancer has that address
        // as its source if the address is also bound to the node.
        let own = of_family(&service.load_balancer_ips, family);
        ranges.extend(own.into_iter().map(IpNet::from));
    }
    // Disjoint and as short as possible, as the kernel's interval sets require.
    let mut ranges = IpNet::aggregate(&ranges);
    ranges.sort();
    if ranges.iter().any(|range| range.prefix_len() == 0) {
        ranges.clear();
    }
    shared(ranges)
}

fn health_check(service: &Service, endpoints: &Endpoints, node: &Node) -> Option<HealthCheck> {
    let counts = service.kind == ServiceKind::LoadBalancer
        && service.external_policy == TrafficPolicy::Local;
    let port = service.health_check_node_port.filter(|_| counts)?;
    let addresses: BTreeSet<IpAddr> = endpoints
        .by_port
        .values()
        .flatten()
        .filter(|endpoint| endpoint.readiness.ready && node.hosts(endpoint))
        .map(|endpoint| endpoint.address)
        .collect();
    let count = |family| {
        let of_family = addresses.iter().filter(|a| Family::of(**a) == family);
        of_family.count()
    };
    Some(HealthCheck {
        port,
        local_endpoints: LocalEndpoints {
            ipv4: count(Family::Ipv4),
            ipv6: count(Family::Ipv6),
        },
    })
}

fn of_family(addresses: &[IpAddr], family: Family) -> Vec<IpAddr> {
    addresses
        .iter()
        .filter(|address| Family::of(**address) == family)
        .copied()
        .collect()
}

fn port_text(port: &ServicePortName) -> String {
    match &*port.port {
        "" => format!("without a name ({})", port.protocol),
        name => format!("{name} ({})", port.protocol),
    }
}
