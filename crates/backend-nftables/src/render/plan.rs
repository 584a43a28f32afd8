//! Where packets to one frontend are led.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::{Affinity, Frontend, FrontendKind, Target, TrafficPolicy};
use netlink::nf_tables::Verdict;

use crate::chains::{Job, NumberedChain, Placement, REFUSE};
use crate::layout::{self, Keyed};

/// Numbered chains that frontends lead to, each with its name, which all of these share.
pub(super) type NeededChains = BTreeMap<NumberedChain, Arc<str>>;

/// The elements of one frontend, before its endpoints have slots.
#[derive(Default)]
pub(super) struct Plan<'a> {
    pub(super) service: Option<Verdict>,
    pub(super) short_circuit: Option<Verdict>,
    pub(super) local: Option<Verdict>,
    pub(super) refusal: Option<Verdict>,
    pub(super) affinity: Option<Verdict>,
    pub(super) targets: &'a [Target],
    pub(super) local_targets: &'a [Target],
}

// === impl Plan ===

impl<'a> Plan<'a> {
    /// Adds what it leads to to `chains`.
    pub(super) fn of(keyed: Keyed, frontend: &'a Frontend, chains: &mut NeededChains) -> Plan<'a> {
        let refuse = || {
            Some(if frontend.has_endpoints {
                Verdict::Drop
            } else {
                Verdict::Goto(layout::name(REFUSE))
            })
        };
        // An address that refuses must not be looked up as a node port of someone else's next.
        let ends_here = (keyed == Keyed::Address).then_some(Verdict::Accept);
        let mut goto_numbered = |placement, job, number| {
            (number > 0).then(|| {
                let chain = NumberedChain {
                    keyed,
                    placement,
                    job,
                    number,
                };
                let name = chains.entry(chain).or_insert_with(|| chain.name());
                Verdict::Goto(Arc::clone(name))
            })
        };
        let (placement, affinity) = match frontend.affinity {
            Affinity::None => (Placement::Anew, None),
            Affinity::ClientIp { timeout } => {
                let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
                let learn = goto_numbered(Placement::Anew, Job::Learn, seconds);
                (Placement::Sticky, learn)
            }
        };
        let mut goto = |job, targets: &[Target]| {
            let number = u32::try_from(targets.len()).unwrap_or(u32::MAX);
            goto_numbered(placement, job, number)
        };
        let plan = match (frontend.kind, frontend.policy) {
            (FrontendKind::ClusterIp, policy) => {
                let targets = match policy {
                    TrafficPolicy::Cluster => &*frontend.cluster,
                    TrafficPolicy::Local => &*frontend.local,
                };
                Plan {
                    service: goto(Job::Cluster, targets),
                    targets,
                    ..Plan::default()
                }
            }
            (_, TrafficPolicy::Cluster) => Plan {
                service: goto(Job::External, &frontend.cluster),
                targets: &frontend.cluster,
                ..Plan::default()
            },
            (_, TrafficPolicy::Local) => {
                let short_circuit = goto(Job::Balance, &frontend.cluster);
                let local = goto(Job::Local, &frontend.local);
                let any = short_circuit.is_some() || local.is_some();
                let chain = format!("{}external-local", keyed.prefix());
                Plan {
                    service: any.then(|| Verdict::Goto(chain.into())),
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
            refusal: nothing_for_strangers.then(refuse).flatten(),
            affinity,
            ..plan
        }
    }
}
