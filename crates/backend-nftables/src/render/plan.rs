//! Plans which elements a frontend has.

use std::collections::BTreeSet;

use dataplane::{Affinity, Frontend, FrontendKind, Scheduler, Target, TrafficPolicy};
use nftables_model::AffinityTimeout;

use crate::chains::{ChainId, ChainRole, Counter, NumberedChain, Placement, SlotChoice};
use crate::layout::{AffinityMap, Keyed};
use crate::slots;

/// The numbered chains that frontends need.
pub(super) type NeededChains = BTreeSet<NumberedChain>;

/// How a frontend without a usable endpoint refuses packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoEndpointAction {
    /// It drops them: it has endpoints on other nodes.
    Drop,
    /// It rejects them: it has no endpoint at all.
    Reject,
}

/// The elements of one frontend, before its endpoints are assigned to slots.
#[derive(Default)]
pub(super) struct Plan<'a> {
    pub(super) service: Option<ChainId>,
    pub(super) short_circuit: Option<ChainId>,
    pub(super) local: Option<ChainId>,
    pub(super) no_endpoint_action: Option<NoEndpointAction>,
    pub(super) affinity: Option<ChainId>,
    pub(super) targets: &'a [Target],
    pub(super) local_targets: &'a [Target],
    pub(super) scheduler: Scheduler,
}

/// How one of `number` slots is chosen.
fn draw_of(scheduler: Scheduler, counter: Counter, number: u32) -> SlotChoice {
    match scheduler {
        Scheduler::RoundRobin if number > Counter::MOST_ENDPOINTS => {
            SlotChoice::RoundRobin(Counter::Shared)
        }
        Scheduler::RoundRobin => SlotChoice::RoundRobin(counter),
        Scheduler::SourceHash | Scheduler::Maglev => SlotChoice::Source,
        _ => SlotChoice::Random,
    }
}

// === impl Plan ===

impl<'a> Plan<'a> {
    /// Plans `frontend` and adds the chains it needs to `chains`. With affinity, `affinity_map` holds its
    /// clients; with round robin, `counter` counts.
    pub(super) fn of(
        keyed: Keyed,
        frontend: &'a Frontend,
        affinity_map: AffinityMap,
        counter: Counter,
        chains: &mut NeededChains,
    ) -> Plan<'a> {
        let refuse = || {
            Some(match frontend.has_endpoints {
                true => NoEndpointAction::Drop,
                false => NoEndpointAction::Reject,
            })
        };
        // A packet to an address that refuses must not be looked up as a node port afterwards.
        let ends_here = (keyed == Keyed::Address).then_some(ChainId::Accept);
        let mut goto_numbered = |placement, slot_choice, role, number| {
            (number > 0).then(|| {
                let chain = NumberedChain {
                    keyed,
                    placement,
                    role,
                    slot_choice,
                    number,
                    affinity_map: match (role, placement) {
                        (ChainRole::Learn, _) | (_, Placement::Sticky) => affinity_map,
                        (_, Placement::Independent) => AffinityMap::Shared,
                    },
                };
                chains.insert(chain);
                ChainId::Numbered(chain)
            })
        };
        let (placement, affinity) = match frontend.affinity {
            Affinity::None => (Placement::Independent, None),
            Affinity::ClientIp { timeout } => {
                let learn = goto_numbered(
                    Placement::Independent,
                    SlotChoice::Random,
                    ChainRole::Learn,
                    AffinityTimeout::covering(timeout).seconds(),
                );
                (Placement::Sticky, learn)
            }
        };
        let mut goto = |role, targets: &[Target]| {
            let number = slots::count(frontend.scheduler, targets.len());
            goto_numbered(
                placement,
                draw_of(frontend.scheduler, counter, number),
                role,
                number,
            )
        };
        let plan = match (frontend.kind, frontend.policy) {
            (FrontendKind::ClusterIp, policy) => {
                let targets = match policy {
                    TrafficPolicy::Cluster => &*frontend.cluster,
                    TrafficPolicy::Local => &*frontend.local,
                };
                Plan {
                    service: goto(ChainRole::Cluster, targets),
                    targets,
                    ..Plan::default()
                }
            }
            (_, TrafficPolicy::Cluster) => Plan {
                service: goto(ChainRole::External, &frontend.cluster),
                targets: &frontend.cluster,
                ..Plan::default()
            },
            (_, TrafficPolicy::Local) => {
                let short_circuit = goto(ChainRole::Balance, &frontend.cluster);
                let local = goto(ChainRole::Local, &frontend.local);
                let any = short_circuit.is_some() || local.is_some();
                Plan {
                    service: any.then_some(ChainId::ExternalLocal(keyed)),
                    short_circuit,
                    local,
                    targets: &frontend.cluster,
                    local_targets: &frontend.local,
                    ..Plan::default()
                }
            }
        };
        let nothing_for_strangers = match (frontend.is_external(), frontend.policy) {
            (true, TrafficPolicy::Local) => plan.local.is_none(),
            _ => plan.service.is_none(),
        };
        Plan {
            service: plan.service.or(ends_here),
            no_endpoint_action: nothing_for_strangers.then(refuse).flatten(),
            affinity,
            scheduler: frontend.scheduler,
            ..plan
        }
    }
}
