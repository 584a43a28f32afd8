//! The Services that change, in the order in which they do, as many as fit into a part.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::disputed_addresses::DisputedAddresses;
use super::{Ends, FrontendDifference, Granularity, PartSize, Piece, SMALL, differences};
use crate::{
    Claims, Dataplane, Difference, Frontend, FrontendKey, Precedence, ServiceKey, ServiceRules,
    is_ipv6_link_local,
};

/// What a part is chosen from.
pub(super) struct ServiceChanges<'a> {
    /// The changes that come next, and the first that does not fit into a part with them. All of them, if
    /// nothing is [unlisted](ServiceChanges::has_unlisted).
    pub(super) next: Vec<(Rank, ServiceChange<'a>)>,
    /// Whether there are more changes.
    pub(super) has_unlisted: bool,
    /// Where the part may concern others.
    pub(super) disputed: DisputedAddresses<'a>,
}

/// The frontends of one Service that change.
#[derive(Default)]
pub(super) struct ServiceChange<'a> {
    pub(super) size: usize,
    pub(super) pieces: Vec<Piece<'a>>,
}

/// The rank of a Service's change. Ranks come in this order, regardless of the size of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// The API server and DNS, if no Service is served yet.
    First,
    /// Packets are sent to an endpoint that no longer exists.
    Urgent,
    Ordinary,
}

/// The change of the rules of one Service.
struct RulesChange<'a> {
    rank: Rank,
    /// That of the frontends that it claims, as if it had all of them.
    size: usize,
    rules: Difference<'a, ServiceKey, Arc<ServiceRules>>,
}

type ByService<'a> = HashMap<&'a ServiceKey, ServiceChange<'a>>;
type Entry = (FrontendKey, Arc<Frontend>);
type ChangedEntry<'a> = (
    &'a FrontendKey,
    Option<&'a Arc<Frontend>>,
    Option<&'a Arc<Frontend>>,
);

// === impl ServiceChanges ===

impl<'a> ServiceChanges<'a> {
    /// Returns `None` if all changes fit into a part.
    ///
    /// The rules of Services tell their order without a look at what others claim. So the rest of a
    /// change of a million frontends costs each part little.
    pub(super) fn next(ends: &Ends<'a>, limit: PartSize) -> Option<ServiceChanges<'a>> {
        let (programmed, desired) = (ends.programmed, ends.desired);
        let is_start = programmed.services().is_empty();
        if programmed.node() != desired.node() || programmed.config() != desired.config() {
            return ServiceChanges::all(ends, limit, is_start);
        }
        let mut link_local = Vec::new();
        let rules = programmed.services().differences(desired.services());
        let changes = rules.into_iter();
        let changes = changes.map(|rules| RulesChange::new(ends, rules, limit, &mut link_local));
        let mut changes: Vec<RulesChange<'a>> = changes.collect();
        let left = changes.iter().map(|change| change.size);
        // One Service may take an address from others on thousands of ports.
        if left.fold(0, usize::saturating_add) <= limit.count() {
            return ServiceChanges::all(ends, limit, is_start);
        }
        changes.retain(|change| change.size > 0);
        changes.sort_unstable_by_key(|change| (change.rank, change.size, change.rules.key));
        let (mut by_service, mut contested) = (ByService::new(), HashSet::new());
        let mut services = HashSet::new();
        let mut size = 0;
        let mut changes = changes.into_iter();
        while size <= limit.count()
            && let Some(change) = changes.next()
        {
            services.insert(change.rules.key);
            for piece in change.pieces(ends, &mut contested) {
                // A frontend of another Service, which has its own place in the order, may be of any size.
                if piece.port.service == *change.rules.key {
                    size += piece.size;
                }
                add(&mut by_service, piece);
            }
        }
        Some(ServiceChanges {
            next: by_rank(by_service, limit, is_start),
            // If all of them fit, the rest is what they take from others, or give back.
            has_unlisted: changes.next().is_some() || size <= limit.count(),
            disputed: DisputedAddresses::new(*ends, services, link_local),
        })
    }

    fn all(ends: &Ends<'a>, limit: PartSize, is_start: bool) -> Option<ServiceChanges<'a>> {
        let differences = differences(ends.family, ends.programmed, ends.desired);
        let mut by_service = ByService::new();
        for difference in differences {
            if let Some(piece) = Piece::new(difference, ends.granularity) {
                add(&mut by_service, piece);
            }
        }
        let left: usize = by_service.values().map(|change| change.size).sum();
        (left > limit.count()).then(|| ServiceChanges {
            next: by_rank(by_service, limit, is_start),
            has_unlisted: false,
            disputed: DisputedAddresses::NONE,
        })
    }
}

/// Adds the change of a frontend to those of the Service that has it.
fn add<'a>(by_service: &mut ByService<'a>, piece: Piece<'a>) {
    let change = by_service.entry(&piece.port.service).or_default();
    change.size += piece.size;
    change.pieces.push(piece);
}

/// Sorts the changes into their order.
fn by_rank<'a>(
    changes: ByService<'a>,
    limit: PartSize,
    is_start: bool,
) -> Vec<(Rank, ServiceChange<'a>)> {
    let ranked = changes.into_iter().map(|(service, change)| {
        let (is_first, is_urgent) = (|| change.is_first(), || change.is_urgent());
        let rank = Rank::of(change.size, limit, is_start, is_first, is_urgent);
        ((rank, change.size, service), change)
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_unstable_by_key(|(rank, _)| *rank);
    let changes = ranked.into_iter();
    changes.map(|((rank, ..), change)| (rank, change)).collect()
}

// === impl Rank ===

impl Rank {
    /// The precedence of a large change is ignored, or a label would make all other Services wait for it.
    fn of(
        size: usize,
        limit: PartSize,
        is_start: bool,
        is_first: impl FnOnce() -> bool,
        is_urgent: impl FnOnce() -> bool,
    ) -> Rank {
        match is_start {
            true if size <= limit.count() && is_first() => Rank::First,
            false if size <= limit.count() / SMALL && is_urgent() => Rank::Urgent,
            _ => Rank::Ordinary,
        }
    }
}

// === impl RulesChange ===

impl<'a> RulesChange<'a> {
    /// Adds the frontends at link-local addresses that change to `link_local`: no list of the node's
    /// addresses has these.
    fn new(
        ends: &Ends<'a>,
        rules: Difference<'a, ServiceKey, Arc<ServiceRules>>,
        limit: PartSize,
        link_local: &mut Vec<&'a FrontendKey>,
    ) -> RulesChange<'a> {
        let is_start = ends.programmed.services().is_empty();
        let small = limit.count() / SMALL;
        let (mut size, mut is_urgent, mut is_first) = (0_usize, false, false);
        // Hundreds of addresses have the same frontend.
        let mut sizes: HashMap<[*const Frontend; 2], usize> = HashMap::new();
        for (key, before, after) in changed_entries(ends, &rules) {
            size = size.saturating_add(match (before, after) {
                (Some(before), Some(after)) => *sizes
                    .entry([Arc::as_ptr(before), Arc::as_ptr(after)])
                    .or_insert_with(|| {
                        ends.granularity.size_of_frontend(Some(before), Some(after))
                    }),
                _ => {
                    let [before, after] = [before, after].map(|at| at.map(|at| &**at));
                    ends.granularity.size_of_frontend(before, after)
                }
            });
            if let (Some(before), Some(after)) = (before, after)
                && size <= small
            {
                is_urgent = is_urgent || before.loses_endpoint(after);
            }
            is_first |= after.is_some_and(|after| after.precedence == Precedence::First);
            if let FrontendKey::Address { address, .. } = key
                && is_ipv6_link_local(*address)
            {
                link_local.push(key);
            }
        }
        RulesChange {
            rank: Rank::of(size, limit, is_start, || is_first, || is_urgent),
            size,
            rules,
        }
    }

    /// The frontends that change with the claims of this Service, without those in `contested`, to which
    /// it adds what other Services claim, too.
    fn pieces(&self, ends: &Ends<'a>, contested: &mut HashSet<FrontendKey>) -> Vec<Piece<'a>> {
        let entries = changed_entries(ends, &self.rules);
        let pieces = entries.filter_map(|(key, ..)| ends.piece(key));
        let is_new = |piece: &Piece<'a>| {
            let Difference { key, before, after } = piece.difference;
            let mut claims = before.into_iter().chain(after).flat_map(Claims::iter);
            claims.all(|(service, _)| service == self.rules.key) || contested.insert(*key)
        };
        pieces.filter(is_new).collect()
    }
}

/// The frontends of a Service that it has only before, or only after, or otherwise.
fn changed_entries<'a>(
    ends: &Ends<'a>,
    rules: &Difference<'a, ServiceKey, Arc<ServiceRules>>,
) -> impl Iterator<Item = ChangedEntry<'a>> + use<'a> {
    let Ends { family, .. } = *ends;
    let entries = |rules: Option<&'a Arc<ServiceRules>>, at: &'a Dataplane| {
        let entries = rules.into_iter().flat_map(|rules| &rules.frontends);
        let entries = entries.filter(move |(key, _)| key.family() == family);
        let service = rules.map(|rules| &rules.service);
        let has = move |(key, _): &&Entry| {
            service.is_some_and(|service| at.refusal(service, key).is_none())
        };
        entries.filter(has).peekable()
    };
    let mut before = entries(rules.before, ends.programmed);
    let mut after = entries(rules.after, ends.desired);
    let pairs = std::iter::from_fn(move || {
        let order = match (before.peek(), after.peek()) {
            (Some((old, _)), Some((new, _))) => old.cmp(new),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        let old = order.is_le().then(|| before.next()).flatten();
        let new = order.is_ge().then(|| after.next()).flatten();
        let (key, _) = old.or(new)?;
        let [before, after] = [old, new].map(|entry| entry.map(|(_, frontend)| frontend));
        Some((key, before, after))
    });
    pairs.filter(|(_, before, after)| before != after)
}

// === impl ServiceChange ===

impl ServiceChange<'_> {
    fn is_first(&self) -> bool {
        let mut frontends = self.pieces.iter().filter_map(|piece| piece.winners()[1]);
        frontends.any(|frontend| frontend.precedence == Precedence::First)
    }

    fn is_urgent(&self) -> bool {
        self.pieces.iter().any(|piece| match piece.winners() {
            [Some(before), Some(after)] => before.loses_endpoint(after),
            _ => false,
        })
    }
}

// === impl Ends ===

impl<'a> Ends<'a> {
    /// The change of one frontend, if it changes.
    pub(super) fn piece(&self, key: &'a FrontendKey) -> Option<Piece<'a>> {
        let [before, after] =
            [self.programmed, self.desired].map(|at: &'a Dataplane| at.frontends().get(key));
        let difference = Difference { key, before, after };
        (before != after).then_some(())?;
        Piece::new(difference, self.granularity)
    }
}

// === impl Piece ===

impl<'a> Piece<'a> {
    fn new(difference: FrontendDifference<'a>, granularity: Granularity) -> Option<Piece<'a>> {
        let claims = difference.after.or(difference.before)?;
        let (_, frontend) = claims.winner();
        Some(Piece {
            port: &frontend.service_port,
            size: granularity.size_of(&difference),
            difference,
        })
    }
}
