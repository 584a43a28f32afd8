//! Conflicting claims of Services, and which one wins.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::{Frontend, FrontendKind, ServiceKey};

/// The Services that claim the same key, in order of priority: by the kind of address they claim it
/// as, in the order of [`FrontendKind`], then by name. The first one wins, independent of the order
/// in which the Services were added.
///
/// There is nearly always one claim, which is stored inline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims<V>(SmallVec<[(ServiceKey, V); 1]>);

/// The part of a claim that determines its priority.
pub(super) trait Claim {
    /// The kind of address that it is claimed as.
    fn kind(&self) -> FrontendKind;
}

// === impl Claims ===

impl<V> Claims<V> {
    /// The claim that is programmed.
    pub fn winner(&self) -> (&ServiceKey, &V) {
        let (service, value) = self.0.first().expect("claims are never empty");
        (service, value)
    }

    /// The other claims, which are not programmed.
    pub fn losers(&self) -> impl Iterator<Item = (&ServiceKey, &V)> {
        self.iter().skip(1)
    }

    /// All claims, the winner first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ServiceKey, &V)> {
        self.0.iter().map(|(service, value)| (service, value))
    }

    pub(super) fn of_one(service: &ServiceKey, value: V) -> Claims<V> {
        Claims(smallvec![(service.clone(), value)])
    }
}

#[expect(private_bounds, reason = "what can be claimed is decided here")]
impl<V: Claim + Clone + PartialEq> Claims<V> {
    /// The winner, and the claims that come after it only by name.
    pub fn equals(&self) -> impl Iterator<Item = (&ServiceKey, &V)> {
        let kind = self.winner().1.kind();
        self.iter()
            .take_while(move |(_, value)| value.kind() == kind)
    }

    /// The value that `service` claims, if it is among [`Claims::equals`].
    pub fn equal(&self, service: &ServiceKey) -> Option<&V> {
        let at = self.find(service, self.winner().1).ok()?;
        Some(&self.0[at].1)
    }

    /// Whether `service` claims exactly this value.
    pub(super) fn holds(&self, service: &ServiceKey, value: &V) -> bool {
        self.find(service, value)
            .is_ok_and(|at| self.0[at].1 == *value)
    }

    /// These claims, with `value` as the only claim of `service`.
    pub(super) fn with(&self, service: &ServiceKey, value: V) -> Claims<V> {
        let mut claims = self.without(service).unwrap_or(Claims(SmallVec::new()));
        let at = claims.find(service, &value).unwrap_or_else(|at| at);
        claims.0.insert(at, (service.clone(), value));
        claims
    }

    /// The claims of all other Services; `None` if there are none.
    pub(super) fn without(&self, service: &ServiceKey) -> Option<Claims<V>> {
        let others = self.0.iter().filter(|(other, _)| other != service);
        let others: SmallVec<_> = others.cloned().collect();
        (!others.is_empty()).then_some(Claims(others))
    }

    fn find(&self, service: &ServiceKey, value: &V) -> Result<usize, usize> {
        let desired = (value.kind(), service);
        self.0
            .binary_search_by(|(other, value)| (value.kind(), other).cmp(&desired))
    }
}

impl Claims<Arc<Frontend>> {
    /// The Services and the kinds of their claims, if there are several.
    pub(super) fn kinds_of_several(&self) -> Option<Claims<FrontendKind>> {
        let kinds = self.0.iter().map(|(service, f)| (service.clone(), f.kind));
        (self.0.len() > 1).then(|| Claims(kinds.collect()))
    }
}

impl Claims<FrontendKind> {
    /// The kind that `service` claims it as.
    pub(super) fn kind_of(&self, service: &ServiceKey) -> Option<FrontendKind> {
        // Claims are sorted by kind first, so this takes one search for each kind.
        let kinds = [FrontendKind::LoadBalancerIp, FrontendKind::ExternalIp];
        kinds
            .into_iter()
            .find(|kind| self.find(service, kind).is_ok())
    }
}

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
