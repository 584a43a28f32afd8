//! The size of the change of one frontend.

use std::sync::Arc;

use crate::{Claims, Difference, Frontend, FrontendKey, Target};

/// How much of a change is programmed at once: the number of changed frontends plus that of their
/// changed endpoints and source ranges. Removed ones count in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartSize {
    count: usize,
    granularity: Granularity,
}

/// The smallest unit that a backend can program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Granularity {
    /// A frontend with all of its endpoints, which are all rewritten if one of them changes.
    Frontend,
    /// A single endpoint of a frontend; the others stay as they are.
    Endpoint,
}

/// How many endpoints of one element each can be removed in the time that it takes to write one.
/// Most of the work is rendering and comparing, which cost the same for both.
const REMOVED_FOR_ONE: usize = 2;
/// The same for a frontend that is removed with its chains.
const REMOVED_IN_CHAINS: usize = 4;
/// How many unchanged endpoints can be processed in that time.
const KEPT_FOR_ONE: usize = 16;

pub(super) type FrontendDifference<'a> = Difference<'a, FrontendKey, Claims<Arc<Frontend>>>;

// === impl PartSize ===

impl PartSize {
    /// Fits every change.
    pub const UNLIMITED: PartSize = PartSize::new(usize::MAX);

    /// This many frontends, endpoints and source ranges, and at least one frontend.
    pub const fn new(count: usize) -> PartSize {
        PartSize {
            count,
            granularity: Granularity::Frontend,
        }
    }

    /// The same for a backend that writes endpoints of a frontend individually: a frontend with
    /// more endpoints than fit gets and loses them in several parts.
    #[must_use]
    pub const fn by_endpoint(self) -> PartSize {
        PartSize {
            granularity: Granularity::Endpoint,
            ..self
        }
    }

    /// This percentage of the size.
    #[must_use]
    pub const fn percent(self, percent: usize) -> PartSize {
        let count = match percent {
            100 => self.count,
            _ => self.count / 100 * percent + self.count % 100 * percent / 100,
        };
        PartSize { count, ..self }
    }

    pub(super) fn count(self) -> usize {
        self.count
    }

    pub(super) fn granularity(self) -> Granularity {
        self.granularity
    }
}

// === impl Granularity ===

impl Granularity {
    pub(super) fn size_of(self, difference: &FrontendDifference<'_>) -> usize {
        self.size_between(difference.before, difference.after)
    }

    pub(super) fn size_between(
        self,
        before: Option<&Claims<Arc<Frontend>>>,
        after: Option<&Claims<Arc<Frontend>>>,
    ) -> usize {
        let [before, after] =
            [before, after].map(|claims| claims.map(|claims| &**claims.winner().1));
        self.size_of_frontend(before, after)
    }

    /// The size of the change of a frontend that one Service alone claims.
    pub(super) fn size_of_frontend(
        self,
        before: Option<&Frontend>,
        after: Option<&Frontend>,
    ) -> usize {
        1 + match (before, after, self) {
            (Some(before), Some(after), Granularity::Endpoint) => changed(before, after),
            (_, Some(after), _) => written(after),
            (Some(before), None, Granularity::Endpoint) => written(before) / REMOVED_FOR_ONE,
            (Some(before), None, Granularity::Frontend) => written(before) / REMOVED_IN_CHAINS,
            (None, None, _) => 0,
        }
    }
}

/// The number of endpoints and source ranges of a frontend.
fn written(frontend: &Frontend) -> usize {
    frontend.cluster.len() + frontend.local.len() + frontend.source_ranges.len()
}

/// The size of the change from `before` to `after`.
fn changed(before: &Frontend, after: &Frontend) -> usize {
    let lists = [
        (&before.cluster, &after.cluster),
        (&before.local, &after.local),
    ];
    let (mut come, mut gone, mut kept) = (0, 0, 0);
    for (before, after) in lists {
        let new = difference(after, before).len();
        come += new;
        kept += after.len() - new;
        gone += before.len() - (after.len() - new);
    }
    if before.source_ranges != after.source_ranges {
        come += after.source_ranges.len();
    }
    come + gone / REMOVED_FOR_ONE + kept / KEPT_FOR_ONE
}

/// Computes the next state of a frontend on the way from `before` to `after`, if the change exceeds
/// `room`: first, endpoints are removed that `after` does not have, then new ones are added.
/// Returns `None` if the rest fits.
///
/// A frontend that has endpoints before and after has some throughout; the same holds for its
/// endpoints on this node.
pub(super) fn next(
    before: Option<&Frontend>,
    after: Option<&Frontend>,
    room: usize,
) -> Option<Frontend> {
    let (old, new) = (targets(before), targets(after));
    let gone = difference(&old, &new);
    // Each part processes all unchanged endpoints, so longer frontends get larger parts rather than
    // many more of them.
    let room = room.max(old.len() / KEPT_FOR_ONE);
    let removable = room.saturating_mul(REMOVED_FOR_ONE).max(1);
    let picked = picks(&gone, before);
    if gone.len() > removable.saturating_add(picked.len()) {
        let going = difference(&gone, &picked);
        let going = going.into_iter().take(removable);
        return before.map(|before| without(before, &going.collect::<Vec<_>>()));
    }
    let after = after?;
    let come = difference(&new, &old);
    let picked = picks(&come, Some(after));
    let room = room.saturating_sub(gone.len() / REMOVED_FOR_ONE).max(2);
    if come.len() <= room {
        return None;
    }
    let others = difference(&come, &picked);
    let later = others.into_iter().skip(room - picked.len());
    Some(without(after, &later.collect::<Vec<_>>()))
}

/// One endpoint of the whole cluster and one on this node, since a packet may need either. Sorted
/// and distinct.
fn picks(targets: &[Target], frontend: Option<&Frontend>) -> Vec<Target> {
    let first_of = |list: &[Target]| {
        let mut targets = targets.iter();
        targets
            .find(|target| list.binary_search(target).is_ok())
            .copied()
    };
    let lists = frontend.map(|frontend| [&frontend.cluster, &frontend.local]);
    let picks = lists
        .into_iter()
        .flatten()
        .filter_map(|list| first_of(list));
    sorted(picks.collect())
}

/// All endpoints of a frontend, sorted and distinct.
fn targets(frontend: Option<&Frontend>) -> Vec<Target> {
    let lists = frontend.map(|frontend| frontend.cluster.iter().chain(&*frontend.local));
    sorted(lists.into_iter().flatten().copied().collect())
}

fn sorted(mut targets: Vec<Target>) -> Vec<Target> {
    targets.sort();
    targets.dedup();
    targets
}

fn without(frontend: &Frontend, targets: &[Target]) -> Frontend {
    Frontend {
        cluster: difference(&frontend.cluster, targets).into(),
        local: difference(&frontend.local, targets).into(),
        ..frontend.clone()
    }
}

/// The targets in `one` but not in `other`, both sorted. The cost is proportional to both lengths.
fn difference(one: &[Target], other: &[Target]) -> Vec<Target> {
    let mut other = other.iter().peekable();
    let is_missing = |target: &&Target| {
        while other.next_if(|behind| behind < target).is_some() {}
        other.peek() != Some(target)
    };
    one.iter().filter(is_missing).copied().collect()
}
