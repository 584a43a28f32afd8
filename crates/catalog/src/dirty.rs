//! What changed since the last query.

use std::collections::BTreeMap;
use std::time::SystemTime;

use dataplane::ServiceKey;

/// Everything that changed since it was last taken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dirty {
    /// The Services whose view changed, or that were added or removed. A change that was undone
    /// before it was taken is still included; no change is ever missing.
    pub services: BTreeMap<ServiceKey, Trigger>,
    /// Whether [`Catalog::node`](crate::Catalog::node) changed.
    pub node: bool,
    /// Whether [`Catalog::service_cidrs`](crate::Catalog::service_cidrs) changed.
    pub service_cidrs: bool,
    /// Whether [`Catalog::rejections`](crate::Catalog::rejections) changed.
    pub rejections: bool,
}

/// The start of network programming latency: when the cause of the change happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trigger {
    /// Unknown: the change was not in an EndpointSlice, or the slice has no (new) time.
    Untimed,
    /// This time, by the clock of the API server's side. Of several changes, the oldest.
    At(SystemTime),
    /// Before this process had received every list once. The age of the change does not show how
    /// long this process took (kubernetes#82378: a restart filled the histogram with the ages of
    /// old slices).
    Bootstrap,
}

// === impl Dirty ===

impl Dirty {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.node && !self.service_cidrs && !self.rejections
    }

    pub(crate) fn mark(&mut self, service: &ServiceKey, trigger: Trigger) {
        if let Some(known) = self.services.get_mut(service) {
            *known = known.joined(trigger);
        } else {
            self.services.insert(service.clone(), trigger);
        }
    }
}

// === impl Trigger ===

impl Trigger {
    /// Combines the triggers of two changes that are programmed together.
    pub fn joined(self, other: Trigger) -> Trigger {
        match (self, other) {
            (Trigger::Bootstrap, _) | (_, Trigger::Bootstrap) => Trigger::Bootstrap,
            (Trigger::At(one), Trigger::At(other)) => Trigger::At(one.min(other)),
            (Trigger::At(time), Trigger::Untimed) | (Trigger::Untimed, Trigger::At(time)) => {
                Trigger::At(time)
            }
            (Trigger::Untimed, Trigger::Untimed) => Trigger::Untimed,
        }
    }
}
