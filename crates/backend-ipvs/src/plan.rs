//! Which virtual servers a Service needs, and which of its frontends lead to which.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::{
    Affinity, Basis, Dataplane, Family, Frontend, FrontendKey, FrontendKind, Mechanism, Scheduler,
    ServiceKey, ServicePortName, Target, TrafficPolicy,
};
use netlink::ipvs::{SchedulerName, VirtualServer, VirtualServerFlags};
use netlink::nf_tables::{Bytes, jhash};

use crate::layout::SetName;

/// What a virtual server is for. It keeps its mark as long as this is the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner {
    pub(crate) port: ServicePortName,
    pub(crate) scope: Scope,
    /// Frontends of one port and scope have the same endpoints, and this is 0. Where they do not, as
    /// with two ports of one name, they are told apart by it.
    pub(crate) variant: u16,
}

/// The endpoints that a virtual server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Scope {
    /// Those of the whole cluster.
    Cluster,
    /// Those of this node.
    Local,
}

/// What a virtual server has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) server: VirtualServer,
    /// New connections go here.
    pub(crate) chosen: Arc<[Target]>,
    /// Connections that were made before may stay here.
    pub(crate) serving: Arc<[Target]>,
    /// For how many seconds a client is remembered, if it is.
    pub(crate) remembered: Option<u32>,
}

/// How a frontend without an endpoint refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has endpoints elsewhere, and says nothing.
    Drop,
    /// It has none at all, and says so.
    Reject,
}

/// What one frontend comes to.
#[derive(Debug, Clone)]
pub(crate) struct FrontendPlan {
    pub(crate) key: FrontendKey,
    pub(crate) frontend: Arc<Frontend>,
    /// The maps that contain it, and the owner of its mark in each.
    pub(crate) leads: Vec<(SetName, Owner)>,
    pub(crate) refusal: Option<Refusal>,
}

/// What one Service comes to.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServicePlan {
    pub(crate) needs: BTreeMap<Owner, Need>,
    pub(crate) frontends: Vec<FrontendPlan>,
}

// === impl Owner ===

impl Owner {
    /// What the table says of it: two hashes, so that an agent that starts tells its marks apart. Of
    /// owners that agree in both, all but the first get a new mark then.
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

// === impl ServicePlan ===

impl ServicePlan {
    /// What the frontends of `service` come to that it has against all other claims.
    pub(crate) fn of(dataplane: &Dataplane, service: &ServiceKey, family: Family) -> ServicePlan {
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
                plan.add(*key, frontend);
            }
        }
        plan
    }

    fn add(&mut self, key: FrontendKey, frontend: &Arc<Frontend>) {
        let (cluster, local) = (&frontend.cluster, &frontend.local);
        let by_port = matches!(key, FrontendKey::NodePort { .. });
        let wanted = match (frontend.kind, frontend.policy) {
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
        // The last is for clients outside the cluster, and the only one where all clients are treated alike.
        let refuses = wanted
            .last()
            .is_some_and(|(.., targets)| targets.is_empty());
        let leads = wanted
            .into_iter()
            .filter(|(.., targets)| !targets.is_empty())
            .map(|(set, scope, targets)| (set, self.owner(frontend, scope, targets)))
            .collect();
        self.frontends.push(FrontendPlan {
            key,
            frontend: Arc::clone(frontend),
            leads,
            refusal: refuses.then_some(match frontend.has_endpoints {
                true => Refusal::Drop,
                false => Refusal::Reject,
            }),
        });
    }

    /// The owner of the virtual server that leads to `targets`.
    fn owner(&mut self, frontend: &Frontend, scope: Scope, targets: &Arc<[Target]>) -> Owner {
        let need = Need {
            server: virtual_server(frontend.scheduler),
            chosen: Arc::clone(targets),
            serving: Arc::clone(&frontend.serving),
            remembered: match frontend.affinity {
                Affinity::None => None,
                Affinity::ClientIp { timeout } => {
                    Some(u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX))
                }
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

/// How endpoints are chosen. A hash that leads to an endpoint that is draining leads on to another one.
fn virtual_server(scheduler: Scheduler) -> VirtualServer {
    // The compiler has replaced what IPVS does not have, unless it compiled for another mechanism.
    let scheduler = scheduler.nearest_in(Mechanism::Ipvs);
    let name = scheduler.ipvs_name().unwrap_or("rr");
    VirtualServer {
        scheduler: SchedulerName::new(name).expect("it is a short word"),
        flags: match scheduler.basis() {
            Basis::Source => VirtualServerFlags::FALLBACK,
            Basis::Chance | Basis::Turn | Basis::Load => VirtualServerFlags::default(),
        },
    }
}
