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
}

/// How many endpoints are removed with their frontend in the time in which one is written.
const REMOVED_FOR_ONE: usize = 4;

type FrontendDifference<'a> = Difference<'a, FrontendKey, Claims<Arc<Frontend>>>;

/// One frontend that changes, with what decides when its turn comes.
struct Piece<'a> {
    /// The size of the whole change of its Service.
    service_size: usize,
    port: &'a ServicePortName,
    difference: FrontendDifference<'a>,
    size: usize,
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
    /// configuration.
    ///
    /// Costs what differs between the two.
    pub fn next(
        family: Family,
        programmed: &Dataplane,
        desired: &Dataplane,
        size: ChunkSize,
    ) -> Chunk {
        let differences = differences(family, programmed, desired);
        let left: usize = differences.iter().map(size_of).sum();
        if left <= size.0 {
            return Chunk::Last;
        }
        let pieces = in_order(differences);
        let (chosen, later) = pieces.split_at(count_that_fit(&pieces, size));
        if later.is_empty() {
            return Chunk::Last;
        }
        let mut keys: BTreeMap<&ServiceKey, BTreeSet<FrontendKey>> = BTreeMap::new();
        for Piece { difference, .. } in chosen {
            for service in claimants(difference) {
                keys.entry(service).or_default().insert(*difference.key);
            }
        }
        let unfinished = later.iter().filter_map(|piece| match piece.difference.key {
            FrontendKey::Address { address, .. } => Some(*address),
            FrontendKey::NodePort { .. } => None,
        });
        let way = Way {
            programmed,
            desired,
            unfinished: unfinished.collect(),
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
        let still_left: usize = self::differences(family, &next, desired)
            .iter()
            .map(size_of)
            .sum();
        match still_left < left {
            true => Chunk::Part(next),
            false => Chunk::Last,
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

/// How many of `pieces` are programmed together: whole Service ports, unless the first one alone is
/// too large.
fn count_that_fit(pieces: &[Piece<'_>], ChunkSize(limit): ChunkSize) -> usize {
    let (mut count, mut taken) = (0, 0);
    for port in pieces.chunk_by(|a, b| a.port == b.port) {
        let size: usize = port.iter().map(|piece| piece.size).sum();
        if taken + size <= limit {
            (count, taken) = (count + port.len(), taken + size);
            continue;
        }
        if count == 0 {
            let fits = port.iter().take_while(|piece| {
                taken += piece.size;
                taken <= limit
            });
            count = fits.count().max(1);
        }
        break;
    }
    count
}

/// The frontends that change, in the order in which they are programmed.
fn in_order(differences: Vec<FrontendDifference<'_>>) -> Vec<Piece<'_>> {
    let mut sizes: HashMap<&ServiceKey, usize> = HashMap::new();
    let owned: Vec<_> = differences
        .into_iter()
        .filter_map(|difference| {
            let (_, frontend) = difference.after.or(difference.before)?.winner();
            let size = size_of(&difference);
            *sizes.entry(&frontend.service_port.service).or_default() += size;
            Some((difference, frontend, size))
        })
        .collect();
    let mut pieces: Vec<Piece<'_>> = owned
        .into_iter()
        .map(|(difference, frontend, size)| Piece {
            service_size: sizes
                .get(&frontend.service_port.service)
                .copied()
                .unwrap_or(size),
            port: &frontend.service_port,
            difference,
            size,
        })
        .collect();
    pieces.sort_unstable_by(|a, b| {
        a.service_size
            .cmp(&b.service_size)
            .then_with(|| a.port.cmp(b.port))
            .then_with(|| a.difference.key.cmp(b.difference.key))
    });
    pieces
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
    let size = |claims: &Claims<Arc<Frontend>>| {
        let (_, frontend) = claims.winner();
        frontend.cluster.len() + frontend.local.len() + frontend.source_ranges.len()
    };
    let written = difference.after.map(size);
    let removed = difference
        .before
        .map(|claims| size(claims) / REMOVED_FOR_ONE);
    1 + written.or(removed).unwrap_or_default()
}

// === impl Way ===

impl<'a> Way<'a> {
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
