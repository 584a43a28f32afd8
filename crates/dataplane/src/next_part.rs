//! Divides a large change into parts, so that other changes need not wait for all of it.

mod address_transfer;
mod disputed_addresses;
mod service_changes;
mod size;
mod step;

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::{
    Dataplane, Difference, Family, Frontend, FrontendKey, Port, Protocol, ServiceKey,
    ServicePortName,
};

use address_transfer::Settled;
use service_changes::{Rank, ServiceChange, ServiceChanges};
pub use size::PartSize;
use size::{FrontendDifference, Granularity};
use step::Step;

/// What to program next on the way from one dataplane to another.
#[derive(Debug, Clone)]
pub enum NextPart {
    /// The desired dataplane itself: the rest of the change is small enough.
    Last,
    /// This dataplane, which lies between the two. Another part follows.
    Part(Dataplane),
    /// Like [`NextPart::Part`], consisting only of Services that change little.
    Small(Dataplane),
}

/// Which changes a part may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PartContents {
    /// Only Services that change little, if there are any.
    #[default]
    Small,
    /// Those and, in the remaining room, a part of a larger change.
    Large,
}

/// A Service changes little if the size of its change is at most that of a part divided by this.
const SMALL: usize = 16;

/// One frontend that changes.
struct Piece<'a> {
    port: &'a ServicePortName,
    difference: FrontendDifference<'a>,
    size: usize,
}

// === impl NextPart ===

impl NextPart {
    /// Computes the first part of the change of one family from `programmed` to `desired`.
    ///
    /// Small changes that remove an endpoint from a frontend come first, then Services in the order
    /// of the size of their change. [`Precedence`](crate::Precedence) does not matter here, since its Services may have
    /// any size: a Service with 100,000 addresses delays the only endpoint of another one by at
    /// most one part. But if `programmed` has no Service at all, Services with [`First`](crate::Precedence::First) that
    /// fit into a part come before all others.
    ///
    /// The frontends of a Service port stay together unless they alone exceed `size`. A frontend
    /// that moves between two Services does so in one step. A cluster IP is added after its
    /// frontends and removed before them, so that no packet to it is rejected that is delivered
    /// before or after. A node port is added together with the frontends on its number at the
    /// node's addresses, since it would take their packets. Node and configuration are those of
    /// `desired`. If every second part is one with [`PartContents::Large`], a large change is completed no matter
    /// how many small ones arrive meanwhile.
    ///
    /// An address that one Service gets, or loses, may be taken from others, or given to them, on
    /// thousands of ports ([`Reserved`](crate::Reserved)). It is taken from them before the Service
    /// gets it, and given to them after that has lost it, in parts.
    ///
    /// If an address closes to node ports, frontends that replace one there are in the part that
    /// closes it. If a part would give a frontend to a Service that has it neither before nor after,
    /// or take it from one that has it both before and after, more changes at its address are in that
    /// part: the owners of an address as a load-balancer IP, for example, decide together which
    /// namespaces may have it as an external IP.
    ///
    /// The cost is proportional to the part, plus a few nanoseconds for each frontend of the Services
    /// that change. If node or configuration change, or if the rest fits into a part, it is proportional
    /// to the difference between the two dataplanes.
    pub fn next(
        family: Family,
        programmed: &Dataplane,
        desired: &Dataplane,
        size: PartSize,
        contents: PartContents,
    ) -> NextPart {
        let ends = Ends {
            family,
            programmed,
            desired,
            granularity: size.granularity(),
        };
        let Some(changes) = ServiceChanges::next(&ends, size) else {
            return NextPart::Last;
        };
        let mut divided = divide(changes.next, size, contents);
        divided.has_unlisted = changes.has_unlisted;
        let mut disputed = changes.disputed;
        let mut settled = Settled::default();
        disputed.list_hidden_by_node_ports(&mut divided);
        divided.add_hidden_by_node_ports(desired);
        divided.add_in_place_of_node_ports(programmed, desired);
        disputed.list(&mut divided, &settled);
        divided.take_away_first(desired, size);
        divided.give_back_last(programmed, size);
        loop {
            if divided.later.is_empty() && !divided.has_unlisted {
                return NextPart::Last;
            }
            disputed.list(&mut divided, &settled);
            let step = Step::new(programmed, desired, &divided, &settled);
            let next = step.next(&divided.chosen, &settled);
            let changed = differences(family, programmed, &next);
            let astray = step.astray(&changed);
            if astray.is_empty() {
                // Whether a Service may have an address depends on other Services. If the chosen
                // changes make no progress without the others, all are made together.
                return match (
                    step.comes_nearer(ends.granularity, &changed),
                    divided.is_small,
                ) {
                    (true, true) => NextPart::Small(next),
                    (true, false) => NextPart::Part(next),
                    (false, _) => NextPart::Last,
                };
            }
            if !settled.add(astray) {
                return NextPart::Last;
            }
            disputed.list(&mut divided, &settled);
            divided.add_settled(&settled);
        }
    }
}

fn differences<'a>(
    family: Family,
    before: &'a Dataplane,
    after: &'a Dataplane,
) -> Vec<FrontendDifference<'a>> {
    let mut differences = before.frontends().differences(after.frontends());
    differences.retain(|difference| difference.key.family() == family);
    differences
}

/// The changes that are programmed next, and those that come later.
struct Divided<'a> {
    chosen: Vec<Piece<'a>>,
    later: Vec<Piece<'a>>,
    /// A part of one of the later changes that is programmed next.
    begun: Option<(FrontendKey, Arc<Frontend>)>,
    /// Whether all chosen changes are of Services that change little.
    is_small: bool,
    /// Whether `later` lacks changes of Services that come even later.
    has_unlisted: bool,
}

/// The way that is divided.
#[derive(Clone, Copy)]
struct Ends<'a> {
    family: Family,
    programmed: &'a Dataplane,
    desired: &'a Dataplane,
    granularity: Granularity,
}

/// Chooses as many changes as fit, in order and, where a part may contain large ones, as many ports
/// of the next change as fit. Only that change is sorted, since the rest is processed again for each part.
fn divide(
    changes: Vec<(Rank, ServiceChange<'_>)>,
    limit: PartSize,
    contents: PartContents,
) -> Divided<'_> {
    let (mut chosen, mut later, mut begun) = (Vec::new(), Vec::new(), None);
    let mut room = limit.count();
    let has_first = changes
        .first()
        .is_some_and(|(rank, _)| *rank == Rank::First);
    let mut is_small = contents == PartContents::Small && !has_first;
    for (_, change) in changes {
        let mut pieces = change.pieces;
        let is_next_small = change.size <= limit.count() / SMALL;
        if !later.is_empty() || is_small && !is_next_small && !chosen.is_empty() {
            later.append(&mut pieces);
            continue;
        }
        is_small &= is_next_small;
        if change.size <= room {
            room -= change.size;
        } else {
            pieces.sort_unstable_by_key(|piece| (piece.port, *piece.difference.key));
            let mut count = count_in_whole_ports(&pieces, room);
            if count == 0 && count_in_whole_ports(&pieces, limit.count()) == 0 {
                // The first port alone is too large.
                count = count_that_fit(&pieces, room);
                if let (0, Some(first)) = (count, pieces.first())
                    && first.size > limit.count()
                {
                    begun = match limit.granularity() {
                        Granularity::Endpoint => first.begin(room),
                        Granularity::Frontend => None,
                    };
                    count = usize::from(begun.is_none());
                }
            }
            later = pieces.split_off(count);
        }
        chosen.append(&mut pieces);
    }
    Divided {
        chosen,
        later,
        begun,
        is_small,
        has_unlisted: false,
    }
}

/// The number of `pieces` in the leading Service ports that fit as a whole.
fn count_in_whole_ports(pieces: &[Piece<'_>], room: usize) -> usize {
    let (mut count, mut taken) = (0, 0);
    for port in pieces.chunk_by(|a, b| a.port == b.port) {
        taken += port.iter().map(|piece| piece.size).sum::<usize>();
        if taken > room {
            break;
        }
        count += port.len();
    }
    count
}

/// The number of leading `pieces` that fit.
fn count_that_fit(pieces: &[Piece<'_>], room: usize) -> usize {
    let mut taken = 0;
    let fits = pieces.iter().take_while(|piece| {
        taken += piece.size;
        taken <= room
    });
    fits.count()
}

/// The address of a frontend; `None` for a node port.
fn address_of(key: &FrontendKey) -> Option<IpAddr> {
    match key {
        FrontendKey::Address { address, .. } => Some(*address),
        FrontendKey::NodePort { .. } => None,
    }
}

/// The Services that have other claims on a frontend after than before.
fn claimants<'a>(difference: &FrontendDifference<'a>) -> impl Iterator<Item = &'a ServiceKey> {
    let Difference { before, after, .. } = *difference;
    let both = before.zip(after).into_iter();
    let both = both.flat_map(|(before, after)| before.differing(after));
    let one = before.xor(after).into_iter();
    both.chain(one.flat_map(|claims| claims.iter().map(|(service, _)| service)))
}

// === impl Piece ===

impl Piece<'_> {
    /// The address of the frontend; `None` for a node port.
    fn address(&self) -> Option<IpAddr> {
        address_of(self.difference.key)
    }

    /// The frontend before and after, if any.
    fn winners(&self) -> [Option<&Frontend>; 2] {
        let Difference { before, after, .. } = self.difference;
        [before, after].map(|claims| claims.map(|claims| &**claims.winner().1))
    }

    /// Whether another Service has the frontend after than before, or one has it only after.
    fn changes_owner(&self) -> bool {
        let Difference { before, after, .. } = self.difference;
        let [before, after] = [before, after].map(|claims| claims.map(|c| c.winner().0));
        after.is_some() && before != after
    }

    /// A part of the change, if it alone exceeds `room`. A frontend that several Services claim, or
    /// that moves from one to another, is not divided.
    fn begin(&self, room: usize) -> Option<(FrontendKey, Arc<Frontend>)> {
        let Difference { before, after, key } = self.difference;
        let claims = || before.into_iter().chain(after);
        let owners: BTreeSet<_> = claims().map(|claims| claims.winner().0).collect();
        if owners.len() > 1 || claims().any(|claims| claims.losers().next().is_some()) {
            return None;
        }
        let [before, after] = self.winners();
        let next = size::next(before, after, room)?;
        Some((*key, Arc::new(next)))
    }
}

// === impl Divided ===

impl Divided<'_> {
    /// Adds the frontends at the node's addresses whose protocol and port a chosen node port has that
    /// comes, or moves to another Service. The node port alone would take their packets. The API gives such addresses to few
    /// Services.
    fn add_hidden_by_node_ports(&mut self, desired: &Dataplane) {
        let opened = self.opened_node_ports();
        let is_hidden = |piece: &mut Piece<'_>| match piece.difference.key {
            FrontendKey::Address {
                address,
                protocol,
                port,
            } => opened.contains(&(*protocol, *port)) && desired.has_node_ports_at(*address),
            FrontendKey::NodePort { .. } => false,
        };
        if !opened.is_empty() {
            self.chosen.extend(self.later.extract_if(.., is_hidden));
        }
    }

    /// The node ports of the part that come, or move to another Service.
    fn opened_node_ports(&self) -> HashSet<(Protocol, Port)> {
        let chosen = self.chosen.iter();
        let opened = chosen.filter_map(|piece| match piece.difference.key {
            FrontendKey::NodePort { protocol, port, .. } if piece.changes_owner() => {
                Some((*protocol, *port))
            }
            _ => None,
        });
        opened.collect()
    }

    /// Adds the frontends that come where a node port answers now and, under the configuration of
    /// `desired`, no longer does: every part has that configuration.
    fn add_in_place_of_node_ports(&mut self, programmed: &Dataplane, desired: &Dataplane) {
        let is_closed = |address: IpAddr| {
            programmed.has_node_ports_at(address) && !desired.has_node_ports_at(address)
        };
        let takes_place = |piece: &mut Piece<'_>| match piece.difference.key {
            FrontendKey::Address {
                address,
                protocol,
                port,
            } if piece.difference.before.is_none() && is_closed(*address) => {
                let node_port = FrontendKey::NodePort {
                    family: Family::of(*address),
                    protocol: *protocol,
                    port: *port,
                };
                programmed.frontends().get(&node_port).is_some()
            }
            _ => false,
        };
        if programmed.config() != desired.config() || programmed.node() != desired.node() {
            self.chosen.extend(self.later.extract_if(.., takes_place));
        }
    }
}

#[cfg(test)]
mod tests;
