//! Conflicting claims of Services, and which one wins.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::shared_list::{Entries, SharedList};
use crate::{Frontend, FrontendKind, PersistentMap, ServiceKey};

/// The Services that claim the same key, in order of priority: by the kind of address they claim it
/// as, in the order of [`FrontendKind`], then by name. The first one wins, independent of the order
/// in which the Services were added.
///
/// There is nearly always one claim, which is stored inline. A copy of thousands is one reference
/// count, and comparing two skips what they share.
#[derive(Debug, Clone)]
pub struct Claims<V>(List<V>);

#[derive(Debug, Clone)]
enum List<V> {
    One(Entry<V>),
    /// At least two.
    Several(Arc<SharedList<Entry<V>>>),
}

type Entry<V> = (ServiceKey, V);

/// The part of a claim that determines its priority.
pub(super) trait Claim {
    /// The kind of address that it is claimed as.
    fn kind(&self) -> FrontendKind;
}

// === impl Claims ===

impl<V> Claims<V> {
    /// The claim that is programmed.
    pub fn winner(&self) -> (&ServiceKey, &V) {
        let first = match &self.0 {
            List::One(claim) => Some(claim),
            List::Several(list) => list.first(),
        };
        let (service, value) = first.expect("claims are never empty");
        (service, value)
    }

    /// The other claims, which are not programmed.
    pub fn losers(&self) -> impl Iterator<Item = (&ServiceKey, &V)> {
        self.iter().skip(1)
    }

    /// All claims, the winner first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ServiceKey, &V)> {
        self.entries().map(|(service, value)| (service, value))
    }

    pub(super) fn of_one(service: &ServiceKey, value: V) -> Claims<V> {
        Claims(List::One((service.clone(), value)))
    }

    pub(super) fn are_several(&self) -> bool {
        matches!(self.0, List::Several(_))
    }

    fn last(&self) -> Option<&Entry<V>> {
        match &self.0 {
            List::One(claim) => Some(claim),
            List::Several(list) => list.last(),
        }
    }

    fn entries(&self) -> Entries<'_, Entry<V>> {
        match &self.0 {
            List::One(claim) => Entries::of(std::slice::from_ref(claim)),
            List::Several(list) => list.iter(),
        }
    }

    /// The first claim that does not come before what is searched for.
    fn first_from(&self, is_before: impl Fn(&Entry<V>) -> bool) -> Option<&Entry<V>> {
        match &self.0 {
            List::One(claim) => (!is_before(claim)).then_some(claim),
            List::Several(list) => list.first_from(is_before),
        }
    }
}

#[expect(private_bounds, reason = "what can be claimed is decided here")]
impl<V: Claim> Claims<V> {
    /// The winner, and the claims that come after it only by name.
    pub fn equals(&self) -> impl Iterator<Item = (&ServiceKey, &V)> {
        let kind = self.winner().1.kind();
        self.iter()
            .take_while(move |(_, value)| value.kind() == kind)
    }

    /// The value that `service` claims, if it is among [`Claims::equals`].
    fn equal(&self, service: &ServiceKey) -> Option<&V> {
        self.of(service, self.winner().1.kind())
    }

    /// The claims of Services at which `self` and `after` differ, except where both share them. The
    /// cost is proportional to what they do not share.
    pub(super) fn unshared<'a>(
        &'a self,
        after: &'a Claims<V>,
    ) -> impl Iterator<Item = (Option<&'a Entry<V>>, Option<&'a Entry<V>>)> {
        let order = |a: &Entry<V>, b: &Entry<V>| order(a, (b.1.kind(), &b.0));
        self.entries().unshared(after.entries(), order)
    }

    /// The values of [`Claims::equals`], each with what the same Service has among those of `after`, and
    /// without those that both share.
    pub fn unshared_equals<'a>(
        &'a self,
        after: &'a Claims<V>,
    ) -> impl Iterator<Item = (&'a V, Option<&'a V>)> {
        let [kind, other] = [self, after].map(|claims| claims.winner().1.kind());
        let are_same = kind == other;
        let pairs = are_same.then(|| self.unshared(after)).into_iter().flatten();
        let of_kind = move |claim: &Entry<V>| claim.1.kind() == kind;
        let pairs = pairs
            .take_while(move |(before, after)| before.or(*after).is_some_and(of_kind))
            .filter_map(|(before, after)| Some((&before?.1, after.map(|after| &after.1))));
        let all = (!are_same).then(|| self.equals()).into_iter().flatten();
        pairs.chain(all.map(|(service, value)| (value, after.equal(service))))
    }

    /// The Services whose claims differ.
    pub(crate) fn differing<'a>(
        &'a self,
        after: &'a Claims<V>,
    ) -> impl Iterator<Item = &'a ServiceKey>
    where
        V: PartialEq,
    {
        let differing = self
            .unshared(after)
            .filter(|(before, after)| before != after);
        differing.filter_map(|(before, after)| Some(&before.or(after)?.0))
    }

    /// Whether the same Services claim it as the same kinds.
    pub(super) fn are_of_same(&self, other: &Claims<V>) -> bool {
        let mut pairs = self.unshared(other);
        pairs.all(|(one, other)| one.is_some() && other.is_some())
    }

    /// The value that `service` claims as this kind.
    fn of(&self, service: &ServiceKey, kind: FrontendKind) -> Option<&V> {
        let claim = self.first_from(|claim| order(claim, (kind, service)).is_lt())?;
        let is_it = order(claim, (kind, service)).is_eq();
        is_it.then_some(&claim.1)
    }

    /// The kind that `service` claims it as.
    pub(super) fn kind_of(&self, service: &ServiceKey) -> Option<FrontendKind> {
        // Claims are sorted by kind first, so this takes one search for each kind that there is.
        let first = self.winner().1.kind();
        let last = self.last().map_or(first, |(_, value)| value.kind());
        let kinds = FrontendKind::ALL.into_iter();
        let mut kinds = kinds.filter(|kind| (first..=last).contains(kind));
        kinds.find(|kind| self.of(service, *kind).is_some())
    }

    /// Whether a Service of this namespace claims it as this kind.
    pub(super) fn has_namespace(&self, namespace: &str, kind: FrontendKind) -> bool {
        let place =
            |(service, value): &Entry<V>| (value.kind(), &*service.namespace) < (kind, namespace);
        let claim = self.first_from(place);
        claim.is_some_and(|(service, value)| {
            value.kind() == kind && &*service.namespace == namespace
        })
    }
}

#[expect(private_bounds, reason = "what can be claimed is decided here")]
impl<V: Claim + Clone + PartialEq> Claims<V> {
    /// Whether `service` claims exactly this value.
    fn holds(&self, service: &ServiceKey, value: &V) -> bool {
        self.of(service, value.kind()) == Some(value)
    }

    /// Makes `value` the only claim of `service`.
    fn put(&mut self, service: &ServiceKey, value: V) {
        let kind = value.kind();
        let new = (service.clone(), value);
        match &mut self.0 {
            List::One(claim) if claim.0 == *service => *claim = new,
            List::One(claim) => {
                let (first, second) = match order(claim, (kind, service)) {
                    Ordering::Less => (claim.clone(), new),
                    Ordering::Equal | Ordering::Greater => (new, claim.clone()),
                };
                let both = SharedList::of(vec![first, second]);
                self.0 = List::Several(Arc::new(both));
            }
            List::Several(_) => {
                let before = self.kind_of(service);
                let List::Several(list) = &mut self.0 else {
                    return;
                };
                let list = Arc::make_mut(list);
                list.put(new, |claim| order(claim, (kind, service)));
                if let Some(before) = before.filter(|before| *before != kind) {
                    list.remove(|claim| order(claim, (before, service)));
                }
            }
        }
    }

    /// Removes the claim of `service`, which is not the only one.
    fn remove(&mut self, service: &ServiceKey) {
        let kind = self.kind_of(service);
        let (List::Several(list), Some(kind)) = (&mut self.0, kind) else {
            return;
        };
        Arc::make_mut(list).remove(|claim| order(claim, (kind, service)));
        let mut rest = list.iter();
        if let (Some(last), None) = (rest.next(), rest.next()) {
            self.0 = List::One(last.clone());
        }
    }
}

/// Compares the place of a claim with that of another one.
fn order<V: Claim>(
    (service, value): &Entry<V>,
    (other_kind, other): (FrontendKind, &ServiceKey),
) -> Ordering {
    let by_kind = value.kind().cmp(&other_kind);
    by_kind.then_with(|| service.cmp(other))
}

/// Whether [`set`] would change anything.
pub(super) fn differs<K, V>(
    map: &PersistentMap<K, Claims<V>>,
    service: &ServiceKey,
    key: &K,
    value: Option<&V>,
) -> bool
where
    K: Clone + Ord + std::hash::Hash,
    V: Claim + Clone + PartialEq,
{
    match (map.get(key), value) {
        (None, value) => value.is_some(),
        (Some(claims), Some(value)) => !claims.holds(service, value),
        (Some(claims), None) => claims.kind_of(service).is_some(),
    }
}

/// Replaces the claim of `service` on `key`, or removes it. The cost does not depend on the claims of
/// others, except for one reference to each few dozen of them the first time after the map was
/// copied.
pub(super) fn set<K, V>(
    map: &mut PersistentMap<K, Claims<V>>,
    service: &ServiceKey,
    key: K,
    value: Option<V>,
) where
    K: Clone + Ord + std::hash::Hash,
    V: Claim + Clone + PartialEq,
{
    match (map.get_mut(&key), value) {
        (Some(claims), Some(value)) => claims.put(service, value),
        (Some(claims), None) if claims.are_several() => claims.remove(service),
        (Some(_), None) => drop(map.remove(&key)),
        (None, Some(value)) => drop(map.insert(key, Claims::of_one(service, value))),
        (None, None) => {}
    }
}

impl<V: Claim + PartialEq> PartialEq for Claims<V> {
    fn eq(&self, other: &Claims<V>) -> bool {
        self.unshared(other).all(|(one, other)| one == other)
    }
}

impl<V: Claim + Eq> Eq for Claims<V> {}

// === impl Claim ===

impl Claim for Arc<Frontend> {
    fn kind(&self) -> FrontendKind {
        self.kind
    }
}

impl Claim for FrontendKind {
    fn kind(&self) -> FrontendKind {
        *self
    }
}

impl Claim for () {
    /// Only for cluster IPs.
    fn kind(&self) -> FrontendKind {
        FrontendKind::ClusterIp
    }
}

#[cfg(test)]
mod tests;
