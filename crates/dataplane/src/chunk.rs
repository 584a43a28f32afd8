//! A large change in parts, so that other changes need not wait for all of it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::{
    Claims, Dataplane, Difference, Family, Frontend, FrontendKey, Hairpin, Protocol, ServiceKey,
    ServicePortName, ServiceRules, Target,
};

/// How much of a change is programmed at once: the number of frontends that change and of their
/// endpoints and source ranges together; of a frontend that goes, a quarter of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkSize(usize);

/// What to program next on the way from one dataplane to another.
#[derive(Debug, Clone)]
pub enum Chunk {
    /// The desired dataplane itself: what is left of the change is small enough.
    Last,
    /// This dataplane, which lies between the two, and then the next chunk.
    Part(Dataplane),
    /// As [`Chunk::Part`], and all that differs on the way there is small.
    Small(Dataplane),
}

/// What a chunk may consist of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Turn {
    /// The Services that change little and nothing else, if there are any.
    #[default]
    Small,
    /// Those, and in what room they leave a part of what is larger.
    Large,
}

/// A Service changes little whose change is at most this part of a chunk.
const SMALL: usize = 16;
/// How many endpoints are removed with their frontend in the time in which one is written.
const REMOVED_FOR_ONE: usize = 4;

type FrontendDifference<'a> = Difference<'a, FrontendKey, Claims<Arc<Frontend>>>;

/// One frontend that changes.
struct Piece<'a> {
    port: &'a ServicePortName,
    difference: FrontendDifference<'a>,
    size: usize,
}

/// The frontends of one Service that change.
#[derive(Default)]
struct ServiceChange<'a> {
    size: usize,
    pieces: Vec<Piece<'a>>,
}

/// From one dataplane to another.
struct Way<'a> {
    programmed: &'a Dataplane,
    desired: &'a Dataplane,
    /// The addresses of frontends that have their turn later.
    unfinished: HashSet<IpAddr>,
}

// === impl ChunkSize ===

impl ChunkSize {
    /// Every change fits.
    pub const UNLIMITED: ChunkSize = ChunkSize(usize::MAX);

    /// This many frontends, endpoints and source ranges; one frontend in any case.
    pub const fn new(count: usize) -> ChunkSize {
        ChunkSize(count)
    }

    /// This percentage of it.
    #[must_use]
    pub const fn percent(self, percent: usize) -> ChunkSize {
        match percent {
            100 => self,
            _ => ChunkSize(self.0 / 100 * percent + self.0 % 100 * percent / 100),
        }
    }
}

// === impl Chunk ===

impl Chunk {
    /// The first part of the change of one family from `programmed` to `desired`.
    ///
    /// Services that change least come first, whatever their [`Precedence`](crate::Precedence), which a
    /// label can ask for: a Service with 100,000 addresses delays another one's only endpoint by one
    /// chunk. The frontends of a Service
    /// port stay together unless they alone exceed `size`. A frontend that moves between two Services
    /// does so in one step. A cluster IP comes after the frontends at it and goes before them, so that
    /// no packet to it is rejected that is delivered before or after. Both dataplanes are of one
    /// configuration. Where every second turn is [`Turn::Large`], a large change comes to its end however
    /// many small ones come meanwhile.
    ///
    /// Costs what differs between the two.
    pub fn next(
        family: Family,
        programmed: &Dataplane,
        desired: &Dataplane,
        size: ChunkSize,
        turn: Turn,
    ) -> Chunk {
        let differences = differences(family, programmed, desired);
        let left: usize = differences.iter().map(size_of).sum();
        if left <= size.0 {
            return Chunk::Last;
        }
        let changes = by_service(differences);
        let Divided {
            chosen,
            later,
            is_small,
        } = divide(changes, size, turn);
        if later.is_empty() {
            return Chunk::Last;
        }
        let mut keys: BTreeMap<&ServiceKey, BTreeSet<FrontendKey>> = BTreeMap::new();
        for Piece { difference, .. } in &chosen {
            for service in claimants(difference) {
                keys.entry(service).or_default().insert(*difference.key);
            }
        }
        let cluster_ips = cluster_ips_of(keys.keys(), [programmed, desired]);
        let unfinished = later.iter().filter_map(|piece| match piece.difference.key {
            FrontendKey::Address { address, .. } => Some(*address),
            FrontendKey::NodePort { .. } => None,
        });
        let way = Way {
            programmed,
            desired,
            unfinished: unfinished
                .filter(|address| cluster_ips.contains(address))
                .collect(),
        };
        let mut next = programmed.clone();
        next.set_node(Arc::clone(desired.node()), Arc::clone(desired.config()));
        for (service, keys) in keys {
            match way.rules(service, &keys) {
                Some(rules) => next.set(rules),
                None => next.remove(service),
            };
        }
        // Whether a Service may have an address depends on others. Where what is chosen leads nowhere
        // without them, all go together.
        match (way.comes_nearer(family, &next), is_small) {
            (true, true) => Chunk::Small(next),
            (true, false) => Chunk::Part(next),
            (false, _) => Chunk::Last,
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

/// What is programmed next, and what later.
struct Divided<'a> {
    chosen: Vec<Piece<'a>>,
    later: Vec<Piece<'a>>,
    /// Whether all that is chosen is of Services that change little.
    is_small: bool,
}

/// Takes the Services that change least, as many as fit, and in turn of what is large as many ports of
/// the one behind them as do. Only that one is sorted: what comes later is looked at again for each part.
fn divide<'a>(
    changes: HashMap<&'a ServiceKey, ServiceChange<'a>>,
    limit: ChunkSize,
    turn: Turn,
) -> Divided<'a> {
    let mut changes: Vec<_> = changes.into_iter().collect();
    changes.sort_unstable_by(|(a, one), (b, other)| (one.size, a).cmp(&(other.size, b)));
    let (mut chosen, mut later) = (Vec::new(), Vec::new());
    let mut room = limit.0;
    let mut is_small = turn == Turn::Small;
    for (_, change) in changes {
        let mut pieces = change.pieces;
        let is_next_small = change.size <= limit.0 / SMALL;
        if !later.is_empty() || is_small && !is_next_small && !chosen.is_empty() {
            later.append(&mut pieces);
            continue;
        }
        is_small &= is_next_small;
        if change.size <= room {
            room -= change.size;
        } else {
            pieces.sort_unstable_by_key(|piece| (piece.port, *piece.difference.key));
            let count = match count_in_whole_ports(&pieces, room) {
                // The first port alone is too large.
                0 if chosen.is_empty() => count_that_fit(&pieces, room),
                count => count,
            };
            later = pieces.split_off(count);
        }
        chosen.append(&mut pieces);
    }
    Divided {
        chosen,
        later,
        is_small,
    }
}

/// How many of `pieces` there are in the first Service ports, as many of these as fit whole.
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

/// How many of `pieces` fit; one in any case.
fn count_that_fit(pieces: &[Piece<'_>], room: usize) -> usize {
    let mut taken = 0;
    let fits = pieces.iter().take_while(|piece| {
        taken += piece.size;
        taken <= room
    });
    fits.count().max(1)
}

/// The frontends that change, by the Service that has them.
fn by_service<'a>(
    differences: Vec<FrontendDifference<'a>>,
) -> HashMap<&'a ServiceKey, ServiceChange<'a>> {
    let mut changes: HashMap<&ServiceKey, ServiceChange<'a>> = HashMap::new();
    for difference in differences {
        let Some(claims) = difference.after.or(difference.before) else {
            continue;
        };
        let (_, frontend) = claims.winner();
        let port = &frontend.service_port;
        let size = size_of(&difference);
        let change = changes.entry(&port.service).or_default();
        change.size += size;
        change.pieces.push(Piece {
            port,
            difference,
            size,
        });
    }
    changes
}

/// Every cluster IP of these Services.
fn cluster_ips_of<'a>(
    services: impl Iterator<Item = &'a &'a ServiceKey>,
    dataplanes: [&Dataplane; 2],
) -> HashSet<IpAddr> {
    let mut cluster_ips = HashSet::new();
    for service in services {
        for dataplane in dataplanes {
            if let Some(rules) = dataplane.services().get(service) {
                cluster_ips.extend(rules.cluster_ips.iter().copied());
            }
        }
    }
    cluster_ips
}

/// The Services that claim a frontend before or after.
fn claimants<'a>(difference: &FrontendDifference<'a>) -> impl Iterator<Item = &'a ServiceKey> {
    let claims = [difference.before, difference.after].into_iter().flatten();
    claims.flat_map(|claims| {
        let losers = claims.losers().map(|(service, _)| service);
        std::iter::once(claims.winner().0).chain(losers)
    })
}

fn size_of(difference: &FrontendDifference<'_>) -> usize {
    size_between(difference.before, difference.after)
}

fn size_between(
    before: Option<&Claims<Arc<Frontend>>>,
    after: Option<&Claims<Arc<Frontend>>>,
) -> usize {
    let size = |claims: &Claims<Arc<Frontend>>| {
        let (_, frontend) = claims.winner();
        frontend.cluster.len() + frontend.local.len() + frontend.source_ranges.len()
    };
    let written = after.map(size);
    let removed = before.map(|claims| size(claims) / REMOVED_FOR_ONE);
    1 + written.or(removed).unwrap_or_default()
}

// === impl Way ===

impl<'a> Way<'a> {
    /// Whether less differs between `next` and the end than between the beginning and the end. Only
    /// what `next` changes can tell.
    fn comes_nearer(&self, family: Family, next: &Dataplane) -> bool {
        let (mut before, mut after) = (0, 0);
        for difference in differences(family, self.programmed, next) {
            let wanted = self.desired.frontends().get(difference.key);
            let left = |claims: Option<&Claims<Arc<Frontend>>>| match claims == wanted {
                true => 0,
                false => size_between(claims, wanted),
            };
            before += left(difference.before);
            after += left(difference.after);
        }
        after < before
    }

    /// The rules of one Service with the frontends at `keys` as they are in the end, and the others as
    /// they are in the beginning; `None` where nothing is left of it.
    fn rules(
        &self,
        service: &ServiceKey,
        keys: &BTreeSet<FrontendKey>,
    ) -> Option<Arc<ServiceRules>> {
        let before = self.programmed.services().get(service);
        let after = self.desired.services().get(service);
        let frontends = |rules: Option<&'a Arc<ServiceRules>>, is_chosen| {
            let all = rules.into_iter().flat_map(|rules| &rules.frontends);
            all.filter(move |(key, _)| keys.contains(key) == is_chosen)
        };
        let mut mixed: Vec<_> = frontends(after, true)
            .chain(frontends(before, false))
            .cloned()
            .collect();
        mixed.sort_unstable_by_key(|(key, _)| *key);
        let cluster_ips = self.cluster_ips(before, after);
        if mixed == after.map_or(&[][..], |rules| &rules.frontends)
            && cluster_ips == after.map_or(&[][..], |rules| &rules.cluster_ips)
        {
            return after.cloned();
        }
        let rules = after.or(before)?;
        Some(Arc::new(ServiceRules {
            service: service.clone(),
            cluster_ips,
            hairpins: hairpins(before, after, frontends(after, true)),
            frontends: mixed,
            health_check: rules.health_check,
            rejections: rules.rejections.clone(),
        }))
    }

    /// One that comes is there once all frontends at it are, and one that goes is gone at once. One that
    /// only changes its Service is there all the time.
    fn cluster_ips(
        &self,
        before: Option<&Arc<ServiceRules>>,
        after: Option<&Arc<ServiceRules>>,
    ) -> Vec<IpAddr> {
        let list = |rules: Option<&Arc<ServiceRules>>| -> BTreeSet<IpAddr> {
            let ips = rules.into_iter().flat_map(|rules| &rules.cluster_ips);
            ips.copied().collect()
        };
        let (old, new) = (list(before), list(after));
        let is_kept = |ip: &IpAddr| {
            let both = [self.programmed, self.desired];
            both.iter().all(|at| at.cluster_ips().get(ip).is_some())
        };
        let is_there = |ip: &&IpAddr| match self.unfinished.contains(ip) {
            true => is_kept(ip) && (old.contains(ip) || new.contains(ip)),
            false => new.contains(ip),
        };
        old.union(&new).filter(is_there).copied().collect()
    }
}

/// Those that were there, and those that the `chosen` frontends need.
fn hairpins<'a>(
    before: Option<&Arc<ServiceRules>>,
    after: Option<&Arc<ServiceRules>>,
    chosen: impl Iterator<Item = &'a (FrontendKey, Arc<Frontend>)>,
) -> Vec<Hairpin> {
    let targets: HashSet<(Protocol, Target)> = chosen
        .flat_map(|(key, frontend)| {
            let targets = frontend.cluster.iter().chain(&*frontend.local);
            targets.map(|target| (key.protocol(), *target))
        })
        .collect();
    let is_needed = |hairpin: &&Hairpin| {
        let (address, port) = (hairpin.address, hairpin.port);
        targets.contains(&(hairpin.protocol, Target { address, port }))
    };
    let old = before.into_iter().flat_map(|rules| &rules.hairpins);
    let new = after.into_iter().flat_map(|rules| &rules.hairpins);
    let all: BTreeSet<Hairpin> = old.chain(new.filter(is_needed)).copied().collect();
    all.into_iter().collect()
}
