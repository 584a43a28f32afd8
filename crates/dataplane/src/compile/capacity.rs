//! The limit on kernel resources of one Service, and the messages about what exceeds it.

use std::collections::HashSet;
use std::sync::Arc;

use crate::maglev::{hash, seed_of};
use crate::{
    Basis, Config, EndpointPort, Endpoints, Family, Frontend, FrontendKey, Mode, Node, Omitted,
    Scheduler, Service, ServicePort, ServiceRules, Target,
};

/// The most elements that the frontends of one Service may take in one family: one for each
/// frontend, each of its endpoints and each of its source ranges. This is as many as 50,000
/// Services with five endpoints have, which a kernel accepts in seconds; all other Services wait
/// for that long.
pub const MOST_ELEMENTS: usize = 1 << 18;

/// The most endpoints that a frontend sends packets to in modes iptables and ipvs. In mode iptables
/// they are the rules of one chain, which is written in one transaction and which each first packet
/// walks; a chain of 100,000 rules is longer than a transaction may be. In mode ipvs the kernel looks
/// through all destinations for each that is added (`ip_vs_lookup_dest`).
pub(super) const MOST_TARGETS: usize = 5_000;

/// The elements left for the frontends of one family.
#[derive(Debug)]
pub(super) struct Capacity {
    mode: Mode,
    left: usize,
    /// The first frontend that did not fit, and the number of those that did not.
    excess: Option<(FrontendKey, usize)>,
}

impl ServiceRules {
    /// The approximate number of set elements, or of rules in chains, that the Service takes, and of
    /// endpoints that this node keeps for it. Without what its author has no part in: Maglev's
    /// tables where the configuration chooses that scheduler. In mode ipvs the kernel makes them,
    /// and they are no elements.
    pub fn elements(&self, config: &Config) -> usize {
        let mode = config.mode;
        let configured = config.scheduler.nearest_in(mode);
        let mut kept = HashSet::new();
        let mut of = |frontend: &Frontend| {
            let slots = |list: &[Target]| match frontend.scheduler {
                chosen if chosen == configured || mode == Mode::Ipvs => list.len(),
                chosen => chosen.slots(list.len()),
            };
            let chosen = [&frontend.cluster, &frontend.local];
            // All addresses of a port share the list of those that answer, which often is a chosen one.
            let serving = &frontend.serving;
            let is_another = !chosen.into_iter().any(|list| Arc::ptr_eq(list, serving));
            let answering = match is_another && kept.insert(Arc::as_ptr(serving)) {
                true => serving.len(),
                false => 0,
            };
            let chosen = chosen.into_iter().map(|list| slots(list));
            1 + chosen.sum::<usize>() + answering + frontend.source_ranges.len()
        };
        let frontends = self.frontends.iter();
        frontends.map(|(_, frontend)| of(frontend)).sum()
    }
}

/// Removes those of `targets` that are too many for the mode; returns how many there were before,
/// if any is removed. Which stay depends on the node, so that the nodes together use all of them, and
/// those of one node change no more than they must. With a scheduler that must choose alike on
/// all nodes, they are the same on all.
pub(super) fn limit(
    targets: &mut Vec<Target>,
    mode: Mode,
    scheduler: Scheduler,
    node: &Node,
) -> Option<usize> {
    let count = targets.len();
    let most = match mode {
        Mode::Nftables => return None,
        Mode::Iptables | Mode::Ipvs => MOST_TARGETS,
    };
    if count <= most {
        return None;
    }
    let seed = match scheduler.basis() {
        Basis::Source => 0,
        Basis::Chance | Basis::Turn | Basis::Load => seed_of(&node.name),
    };
    let mut ranked: Vec<_> = targets
        .drain(..)
        .map(|target| (hash(&target, seed), target))
        .collect();
    let _ = ranked.select_nth_unstable(most);
    ranked.truncate(most);
    targets.extend(ranked.into_iter().map(|(_, target)| target));
    targets.sort();
    Some(count)
}

/// The message about a port of which [`limit`] has removed endpoints.
pub(super) fn limited(
    port: &ServicePort,
    (family, count): (Family, usize),
    (mode, scheduler): (Mode, Scheduler),
) -> String {
    let others = match scheduler.basis() {
        Basis::Source => "all nodes use the same, and the others get none",
        Basis::Chance | Basis::Turn | Basis::Load => "other nodes use other endpoints",
    };
    format!(
        "port {:?} has {count} usable {family} endpoints: in mode {mode} this node sends packets to \
         {MOST_TARGETS} of them; {others}",
        port.name
    )
}

/// Messages about what is missing in the `endpoints` of `service`, each with the field concerned.
pub(super) fn left_out(service: &Service, endpoints: &Endpoints) -> Vec<(&'static str, String)> {
    let Omitted { slices, ports } = &endpoints.left_out;
    let mut said = Vec::new();
    if *slices > 0 {
        let message = format!(
            "{slices} EndpointSlices of this Service are too many, the last by name; their endpoints \
             are left out"
        );
        said.push(("metadata.name", message));
    }
    let is_left_out = |port: &&ServicePort| {
        ports.contains(&EndpointPort {
            name: Arc::clone(&port.name),
            protocol: port.protocol,
        })
    };
    let mut left_out = service.ports.iter().filter(is_left_out);
    if let Some(first) = left_out.next() {
        let message = format!(
            "port {:?} and {} others have more endpoints than all ports of a Service may have; they \
             are served as if they had none",
            first.name,
            left_out.count(),
        );
        said.push(("spec.ports", message));
    }
    said
}

// === impl Capacity ===

impl Capacity {
    pub(super) fn new(mode: Mode) -> Capacity {
        Capacity {
            mode,
            left: MOST_ELEMENTS,
            excess: None,
        }
    }

    /// Whether any element is left.
    pub(super) fn is_left(&self) -> bool {
        self.left > 0
    }

    /// The approximate number of set elements, or rules in chains, that `frontend` takes. In mode ipvs
    /// the kernel makes the tables of schedulers, and they are no elements.
    pub(super) fn elements(&self, frontend: &Frontend) -> usize {
        let slots = |list: &[Target]| match self.mode {
            Mode::Ipvs => list.len(),
            Mode::Nftables | Mode::Iptables => frontend.scheduler.slots(list.len()),
        };
        let lists = [&frontend.cluster, &frontend.local].map(|list| slots(list));
        1 + lists.into_iter().sum::<usize>() + frontend.source_ranges.len()
    }

    /// Takes `elements` for `key` if they fit. After the first frontend that does not fit, nothing
    /// fits: a smaller one after it could be the same address without its source ranges.
    pub(super) fn take(&mut self, key: FrontendKey, elements: usize) -> bool {
        let rest = self.left.checked_sub(elements);
        self.left = rest.unwrap_or_default();
        if rest.is_none() {
            self.excess.get_or_insert((key, 0)).1 += 1;
        }
        rest.is_some()
    }

    /// The message about the frontends that did not fit.
    pub(super) fn message(self) -> Option<String> {
        let (first, number) = self.excess?;
        Some(format!(
            "{first} and what follows it, {number} uses of addresses and node ports in all, are not \
             served: a Service may take {MOST_ELEMENTS} elements a family, for its addresses and node \
             ports with their ports, endpoints and source ranges"
        ))
    }
}
