//! How much there is to do for a change of one frontend.

use std::sync::Arc;

use crate::{Claims, Difference, Frontend, FrontendKey, Target};

/// How much of a change is programmed at once: the number of frontends that change and of their
/// endpoints and source ranges together; of what goes, a part of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkSize {
    count: usize,
    grain: Grain,
}

/// What is programmed at once in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Grain {
    /// A frontend with all of its endpoints, which are written anew if one of them changes.
    Frontend,
    /// An endpoint of a frontend: the others stay as they are.
    Endpoint,
}

/// How many endpoints of an element each are removed in the time in which one is written: rendering and
/// comparing, which is most of the work, cost as much for both.
const REMOVED_FOR_ONE: usize = 2;
/// The same where a frontend goes with its chains.
const REMOVED_IN_CHAINS: usize = 4;
/// How many endpoints that stay are looked at in that time.
const KEPT_FOR_ONE: usize = 16;

pub(super) type FrontendDifference<'a> = Difference<'a, FrontendKey, Claims<Arc<Frontend>>>;

// === impl ChunkSize ===

impl ChunkSize {
    /// Every change fits.
    pub const UNLIMITED: ChunkSize = ChunkSize::new(usize::MAX);

    /// This many frontends, endpoints and source ranges; one frontend in any case.
    pub const fn new(count: usize) -> ChunkSize {
        ChunkSize {
            count,
            grain: Grain::Frontend,
        }
    }

    /// The same where endpoints of a frontend can be written one by one: a frontend with more endpoints
    /// than fit gets them, and loses them, in several parts.
    #[must_use]
    pub const fn by_endpoint(self) -> ChunkSize {
        ChunkSize {
            grain: Grain::Endpoint,
            ..self
        }
    }

    /// This percentage of it.
    #[must_use]
    pub const fn percent(self, percent: usize) -> ChunkSize {
        let count = match percent {
            100 => self.count,
            _ => self.count / 100 * percent + self.count % 100 * percent / 100,
        };
        ChunkSize { count, ..self }
    }

    pub(super) fn count(self) -> usize {
        self.count
    }

    pub(super) fn grain(self) -> Grain {
        self.grain
    }
}

// === impl Grain ===

impl Grain {
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
        1 + match (before, after, self) {
            (Some(before), Some(after), Grain::Endpoint) => changed(before, after),
            (_, Some(after), _) => written(after),
            (Some(before), None, Grain::Endpoint) => written(before) / REMOVED_FOR_ONE,
            (Some(before), None, Grain::Frontend) => written(before) / REMOVED_IN_CHAINS,
            (None, None, _) => 0,
        }
    }
}

/// How much a frontend has.
fn written(frontend: &Frontend) -> usize {
    frontend.cluster.len() + frontend.local.len() + frontend.source_ranges.len()
}

/// How much of it changes.
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

/// The frontend on the way from `before` to `after` that comes next where all of it is more than `room`:
/// first the endpoints go that `after` does not have, then come the others. `None` where the rest fits.
///
/// As long as it has had endpoints and is to have some, it has: of those of this node, too.
pub(super) fn next(
    before: Option<&Frontend>,
    after: Option<&Frontend>,
    room: usize,
) -> Option<Frontend> {
    let (old, new) = (targets(before), targets(after));
    let gone = difference(&old, &new);
    // A part looks at all that stays, so a longer frontend gets longer parts, not many more of them.
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

/// One of the whole cluster and one of this node: a packet may need either. Sorted, each once.
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

/// All of a frontend's endpoints, sorted, each once.
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

/// What of a sorted list is not in another. Costs the length of both.
fn difference(one: &[Target], other: &[Target]) -> Vec<Target> {
    let mut other = other.iter().peekable();
    let is_missing = |target: &&Target| {
        while other.next_if(|behind| behind < target).is_some() {}
        other.peek() != Some(target)
    };
    one.iter().filter(is_missing).copied().collect()
}
