//! Plans which virtual servers a Service needs, and which of its frontends lead to which.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use dataplane::{
    Affinity, Basis, Dataplane, Family, Frontend, FrontendKey, FrontendKind, Protocol, Scheduler,
    ServiceKey, ServicePortName, Target, TrafficPolicy,
};
use netlink::ipvs::{Destination, SchedulerName, VirtualServer, VirtualServerFlags, Weight};
use netlink::nf_tables::{Bytes, jhash};
use nftables_model::AffinityTimeout;

use crate::layout::SetName;
use crate::missing_schedulers::MissingSchedulers;
use crate::rules::{Server, destination, socket_address};

/// Identifies a virtual server, which keeps its mark as long as its owner stays the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner {
    pub(crate) port: ServicePortName,
    pub(crate) scope: Scope,
    /// Distinguishes frontends of one port and scope with different endpoints, as with two ports of
    /// one name. Usually 0.
    pub(crate) variant: u16,
}

/// The schedulers of IPVS that are hashes.
const HASHES: [&str; 3] = ["sh", "mh", "dh"];

/// The endpoints that a virtual server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Scope {
    /// Those of the whole cluster.
    Cluster,
    /// Those of this node.
    Local,
}

/// The required state of a virtual server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VirtualServerSpec {
    pub(crate) server: VirtualServer,
    /// The scheduler that the Service asks for.
    pub(crate) asked: Scheduler,
    /// The endpoints for new connections.
    pub(crate) chosen: Arc<[Target]>,
    /// The endpoints that may keep existing connections.
    pub(crate) serving: Arc<[Target]>,
    /// The affinity timeout, if any.
    pub(crate) remembered: Option<AffinityTimeout>,
}

/// How a frontend without a usable endpoint refuses packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoEndpointAction {
    /// It drops them: it has endpoints on other nodes.
    Drop,
    /// It rejects them: it has no endpoint at all.
    Reject,
}

/// The elements of one frontend.
#[derive(Debug, Clone)]
pub(crate) struct FrontendPlan {
    pub(crate) key: FrontendKey,
    pub(crate) frontend: Arc<Frontend>,
    /// The maps that contain it, and the owner of its mark in each.
    pub(crate) leads: Vec<(SetName, Owner)>,
    pub(crate) no_endpoint_action: Option<NoEndpointAction>,
}

/// The virtual servers and elements of one Service.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServicePlan {
    pub(crate) needs: BTreeMap<Owner, VirtualServerSpec>,
    pub(crate) frontends: Vec<FrontendPlan>,
}

// === impl Owner ===

impl Owner {
    /// The value stored in the table: two hashes, by which an agent that starts recognizes its
    /// marks. If owners agree in both, all but the first get a new mark then.
    pub(crate) fn hash(&self) -> Bytes {
        let Owner {
            port,
            scope,
            variant,
        } = self;
        let protocol = port.protocol;
        let text = format!(
            "{}\0{}\0{}\0{protocol}\0{scope:?}\0{variant}",
            port.service.namespace, port.service.name, port.port
        );
        let hash = |seed| jhash(text.as_bytes(), seed).to_ne_bytes();
        Bytes::new().with(&hash(0)).with(&hash(1))
    }
}

// === impl VirtualServerSpec ===

impl VirtualServerSpec {
    /// The destinations of a virtual server that is `before` in the kernel. An endpoint that is
    /// removed but still serving gets weight 0, and leaves when it stops serving.
    pub(crate) fn destinations(
        &self,
        before: Option<&Server>,
    ) -> BTreeMap<SocketAddr, Destination> {
        let mut destinations = BTreeMap::new();
        let had =
            |address: &SocketAddr| before.is_some_and(|b| b.destinations.contains_key(address));
        let draining = self.serving.iter().map(socket_address).filter(had);
        destinations.extend(draining.map(|address| (address, destination(Weight::DRAINING))));
        for target in self.chosen.iter() {
            let chosen = destinations.entry(socket_address(target));
            chosen
                .and_modify(|chosen| chosen.weight.0 += 1)
                .or_insert_with(|| destination(Weight(1)));
        }
        destinations
    }

    /// Whether another virtual server takes its place when its destinations change: if a hash
    /// selects them. Not for UDP, whose flows are not kept while the first one drains, and not with
    /// affinity, which remembers the mark.
    pub(crate) fn is_replaced_by_change(&self, owner: &Owner) -> bool {
        let hashes = HASHES.contains(&self.server.scheduler.as_str());
        hashes && owner.port.protocol != Protocol::Udp && self.remembered.is_none()
    }
}

// === impl ServicePlan ===

impl ServicePlan {
    /// Plans the frontends that `service` holds against all competing claims, for a kernel that lacks
    /// `missing`.
    pub(crate) fn of(
        dataplane: &Dataplane,
        service: &ServiceKey,
        family: Family,
        missing: &MissingSchedulers,
    ) -> ServicePlan {
        let mut plan = ServicePlan::default();
        let Some(rules) = dataplane.services().get(service) else {
            return plan;
        };
        for (key, _) in &rules.frontends {
            if key.family() != family {
                continue;
            }
            let claims = dataplane.frontends().get(key);
            let winner = claims.map(|claims| claims.winner());
            if let Some((_, frontend)) = winner.filter(|(owner, _)| *owner == service) {
                plan.add(*key, frontend, missing);
            }
        }
        plan
    }

    fn add(&mut self, key: FrontendKey, frontend: &Arc<Frontend>, missing: &MissingSchedulers) {
        let (cluster, local) = (&frontend.cluster, &frontend.local);
        let server = virtual_server(missing.used(frontend.scheduler));
        let by_port = matches!(key, FrontendKey::NodePort { .. });
        let desired = match (frontend.kind, frontend.policy) {
            (FrontendKind::ClusterIp, TrafficPolicy::Cluster) => {
                vec![(SetName::Services, Scope::Cluster, cluster)]
            }
            (FrontendKind::ClusterIp, TrafficPolicy::Local) => {
                vec![(SetName::Services, Scope::Local, local)]
            }
            (_, TrafficPolicy::Cluster) => {
                let set = match by_port {
                    true => SetName::NodePorts,
                    false => SetName::Externals,
                };
                vec![(set, Scope::Cluster, cluster)]
            }
            (_, TrafficPolicy::Local) => {
                let [short_circuits, locals] = match by_port {
                    true => [SetName::NodePortShortCircuits, SetName::NodePortLocals],
                    false => [SetName::ShortCircuits, SetName::Locals],
                };
                vec![
                    (short_circuits, Scope::Cluster, cluster),
                    (locals, Scope::Local, local),
                ]
            }
        };
        // The last one is for clients outside the cluster, or for all clients if it is the only
        // one.
        let refuses = desired
            .last()
            .is_some_and(|(.., targets)| targets.is_empty());
        let leads = desired
            .into_iter()
            .filter(|(.., targets)| !targets.is_empty())
            .map(|(set, scope, targets)| (set, self.owner(frontend, &server, scope, targets)))
            .collect();
        self.frontends.push(FrontendPlan {
            key,
            frontend: Arc::clone(frontend),
            leads,
            no_endpoint_action: refuses.then_some(match frontend.has_endpoints {
                true => NoEndpointAction::Drop,
                false => NoEndpointAction::Reject,
            }),
        });
    }

    /// The owner of the virtual server for `targets`.
    fn owner(
        &mut self,
        frontend: &Frontend,
        server: &VirtualServer,
        scope: Scope,
        targets: &Arc<[Target]>,
    ) -> Owner {
        let need = VirtualServerSpec {
            server: server.clone(),
            asked: frontend.scheduler,
            chosen: Arc::clone(targets),
            serving: Arc::clone(&frontend.serving),
            remembered: match frontend.affinity {
                Affinity::None => None,
                Affinity::ClientIp { timeout } => Some(AffinityTimeout::covering(timeout)),
            },
        };
        let mut owner = Owner {
            port: frontend.service_port.clone(),
            scope,
            variant: 0,
        };
        while let Some(other) = self.needs.get(&owner) {
            if *other == need || owner.variant == u16::MAX {
                return owner;
            }
            owner.variant += 1;
        }
        self.needs.insert(owner.clone(), need);
        owner
    }
}

/// The scheduler and its flags. If a hash selects a draining endpoint, it falls back to another
/// one.
pub(crate) fn virtual_server(scheduler: Scheduler) -> VirtualServer {
    VirtualServer {
        scheduler: scheduler_name(scheduler),
        flags: match scheduler.basis() {
            Basis::Source => VirtualServerFlags::FALLBACK,
            Basis::Chance | Basis::Turn | Basis::Load => VirtualServerFlags::default(),
        },
    }
}

/// The name of a scheduler that IPVS has.
pub(crate) fn scheduler_name(scheduler: Scheduler) -> SchedulerName {
    let name = scheduler.ipvs_name().unwrap_or("rr");
    SchedulerName::new(name).expect("it is a short word")
}
