//! Which flows may be stale. Pure.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use dataplane::{
    Claims, Dataplane, Family, Frontend, FrontendKey, Port, Protocol, is_ipv6_link_local,
};

/// The maximum number of recorded destinations: about 2 MiB. Only passes that keep failing while
/// Services keep being removed reach it.
const MOST_REMEMBERED: usize = 1 << 16;
/// Represents every IPv6 link-local address among the recorded destinations: if node ports are open
/// on all addresses, the node's link-local ones are not listed.
const IPV6_LINK_LOCAL: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0));

/// The flows of one family that may be stale, because they contradict what is programmed.
///
/// Grows with every step from one dataplane to the next and never shrinks: flows that a step put in
/// doubt stay so when the next step reverts it. Only a complete pass clears the doubts. Bounded.
#[derive(Debug, Clone)]
pub struct StaleCandidates {
    family: Family,
    /// The protocols that may have stale flows.
    protocols: BTreeSet<Protocol>,
    /// The addresses of frontends that were removed since the last complete pass.
    left: BTreeSet<(IpAddr, Protocol, Port)>,
    memory: Memory,
}

/// Whether all removed frontends are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Complete,
    /// Removals are missing: those before the start, and those while it was unknown what was
    /// programmed.
    Patchy,
}

type Frontends = Claims<Arc<Frontend>>;

// === impl StaleCandidates ===

impl StaleCandidates {
    /// No flow of `family` may be stale.
    pub fn none(family: Family) -> StaleCandidates {
        StaleCandidates {
            family,
            protocols: BTreeSet::new(),
            left: BTreeSet::new(),
            memory: Memory::Complete,
        }
    }

    /// Every flow of `family` may be stale.
    pub fn everything(family: Family) -> StaleCandidates {
        let mut stale_candidates = StaleCandidates::none(family);
        stale_candidates.add_everything();
        stale_candidates
    }

    /// Records that it is unknown what was programmed: every flow may be stale. Recorded frontends
    /// stay recorded.
    pub fn add_everything(&mut self) {
        self.protocols.extend(Protocol::ALL);
        self.memory = Memory::Patchy;
    }

    /// Adds the flows that a step of the kernel from `before` to `after` may have made stale. The
    /// cost depends on the difference between the two.
    pub fn add_step(&mut self, before: &Dataplane, after: &Dataplane) {
        let family = self.family;
        let opened = LazyCell::new(|| node_port_addresses(before, family));
        for difference in before.frontends().differences(after.frontends()) {
            if difference.key.family() != family {
                continue;
            }
            if makes_stale(difference.before, difference.after) {
                self.protocols.insert(difference.key.protocol());
            }
            if difference.after.is_none() {
                self.remember(difference.key, || &*opened);
            }
        }
        // In most steps both are unchanged, and a node can have thousands of addresses.
        if Arc::ptr_eq(before.node(), after.node()) && Arc::ptr_eq(before.config(), after.config())
        {
            return;
        }
        let open = node_port_addresses(after, family);
        if *opened != open {
            let closed = opened.difference(&open).copied().collect();
            for key in node_ports(before, family) {
                self.protocols.insert(key.protocol());
                self.remember(key, || &closed);
            }
            self.protocols
                .extend(node_ports(after, family).map(FrontendKey::protocol));
        }
    }

    /// Whether no flow can be stale.
    pub fn is_empty(&self) -> bool {
        self.protocols.is_empty()
    }

    /// The family of the flows.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The protocols that may have stale flows.
    pub(crate) fn protocols(&self) -> &BTreeSet<Protocol> {
        &self.protocols
    }

    /// Whether a destination that is no frontend of `programmed` was one: another port of a cluster
    /// IP, or a recorded removal. If removals are missing from the record, every address in the
    /// Service CIDRs counts, because only a proxy redirects those. Flows to other addresses and to
    /// node ports may have been redirected by any program (a pod's hostPort).
    pub(crate) fn was_frontend(
        &self,
        address: IpAddr,
        protocol: Protocol,
        port: Port,
        programmed: &Dataplane,
    ) -> bool {
        let mut cidrs = programmed.config().service_cidrs.iter();
        programmed.cluster_ips().get(&address).is_some()
            || self
                .left
                .contains(&(remembered_as(address), protocol, port))
            || self.memory == Memory::Patchy && cidrs.any(|cidr| cidr.contains(&address))
    }

    fn remember<'a>(
        &mut self,
        key: &FrontendKey,
        node_ports_at: impl FnOnce() -> &'a BTreeSet<IpAddr>,
    ) {
        let (protocol, port) = (key.protocol(), key.port());
        match key {
            FrontendKey::Address { address, .. } => self.insert(*address, protocol, port),
            FrontendKey::NodePort { .. } => {
                for address in node_ports_at() {
                    self.insert(*address, protocol, port);
                }
            }
        }
    }

    fn insert(&mut self, address: IpAddr, protocol: Protocol, port: Port) {
        if self.left.len() < MOST_REMEMBERED {
            self.left.insert((remembered_as(address), protocol, port));
        } else {
            self.add_everything();
        }
    }
}

/// Whether a flow that agreed with `before` can contradict `after`.
fn makes_stale(before: Option<&Frontends>, after: Option<&Frontends>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => {
            let serves = |claims: &Frontends| !claims.winner().1.serving.is_empty();
            // Without endpoints or a frontend, packets may have bypassed Signpost's rules, and
            // would continue to (kubernetes#48370).
            if !serves(before) && serves(after) {
                return true;
            }
            before.unshared_equals(after).any(|(old, new)| {
                let new = new.map_or(&[][..], |new| &new.serving);
                let mut answering = old.serving.iter();
                answering.any(|target| new.binary_search(target).is_err())
            })
        }
        (None, Some(_)) | (Some(_), None) => true,
        (None, None) => false,
    }
}

fn node_port_addresses(dataplane: &Dataplane, family: Family) -> BTreeSet<IpAddr> {
    let listed = dataplane.config().node_ports.of(family);
    let unlisted = listed.is_none().then_some(&IPV6_LINK_LOCAL);
    let addresses = listed.unwrap_or(&dataplane.node().local_addresses).iter();
    addresses
        .chain(unlisted)
        .filter(|address| Family::of(**address) == family)
        .filter(|address| dataplane.has_node_ports_at(**address))
        .copied()
        .collect()
}

fn remembered_as(address: IpAddr) -> IpAddr {
    if is_ipv6_link_local(address) {
        IPV6_LINK_LOCAL
    } else {
        address
    }
}

fn node_ports(dataplane: &Dataplane, family: Family) -> impl Iterator<Item = &FrontendKey> {
    let keys = dataplane.frontends().iter().map(|(key, _)| key);
    keys.filter(move |key| matches!(key, FrontendKey::NodePort { .. }) && key.family() == family)
}

#[cfg(test)]
mod tests;
