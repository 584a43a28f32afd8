//! The limit on what all Services of a namespace take of this node together. Pure.
//!
//! Within a namespace, Services are served in the order of their names, up to the first that does not
//! fit. What is served so depends on the objects alone, and no namespace takes from another.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use dataplane::{MOST_ELEMENTS, ServiceKey};

/// The most elements that the Services of one namespace may take, in both families together: 400 MB
/// of the agent's memory where they take all of it.
pub(super) const MOST_ELEMENTS_OF_A_NAMESPACE: usize = 8 * MOST_ELEMENTS;

/// What the Services of each namespace ask for, and which of them are not served.
#[derive(Debug)]
pub(super) struct NamespaceLimit {
    most: usize,
    namespaces: BTreeMap<Arc<str>, Namespace>,
}

#[derive(Debug, Default)]
struct Namespace {
    /// The elements of each Service, of those that are not served, too.
    elements: BTreeMap<Arc<str>, usize>,
    /// The sum over the Services that are served.
    served: usize,
    /// The first Service that is not served; none after it is.
    first_refused: Option<Arc<str>>,
}

// === impl NamespaceLimit ===

impl NamespaceLimit {
    pub(super) fn new(most: usize) -> NamespaceLimit {
        NamespaceLimit {
            most,
            namespaces: BTreeMap::new(),
        }
    }

    /// Records that a Service asks for this many elements, 0 for one that is removed. Returns the
    /// other Services of its namespace that are served no longer, or are served again.
    pub(super) fn record(&mut self, service: &ServiceKey, elements: usize) -> Vec<ServiceKey> {
        let name = &service.name;
        let namespace = Arc::clone(&service.namespace);
        let known = self.namespaces.entry(namespace).or_default();
        let before = match elements {
            0 => known.elements.remove(name),
            _ => known.elements.insert(Arc::clone(name), elements),
        };
        if known.serves(name) {
            known.served = known.served - before.unwrap_or_default() + elements;
        }
        let mut moved = known.fit_into(self.most);
        if known.elements.is_empty() {
            self.namespaces.remove(&service.namespace);
        }
        moved.retain(|other| other != name);
        let moved = moved.into_iter();
        moved
            .map(|name| ServiceKey {
                namespace: Arc::clone(&service.namespace),
                name,
            })
            .collect()
    }

    /// Whether a Service is served.
    pub(super) fn serves(&self, service: &ServiceKey) -> bool {
        let known = self.namespaces.get(&service.namespace);
        known.is_none_or(|known| known.serves(&service.name))
    }
}

// === impl Namespace ===

impl Namespace {
    fn serves(&self, name: &str) -> bool {
        let first = self.first_refused.as_deref();
        first.is_none_or(|first| name < first)
    }

    /// Moves the first Service that is not served to where it belongs; returns those it passes. The
    /// cost is that of those.
    fn fit_into(&mut self, most: usize) -> Vec<Arc<str>> {
        let mut moved = Vec::new();
        while self.served > most {
            let end = match self.first_refused.take() {
                Some(first) => Bound::Excluded(first),
                None => Bound::Unbounded,
            };
            let mut served = self.elements.range((Bound::Unbounded, end));
            let Some((last, elements)) = served.next_back() else {
                break;
            };
            self.served -= elements;
            moved.push(Arc::clone(last));
            self.first_refused = Some(Arc::clone(last));
        }
        while let Some(first) = &self.first_refused {
            // It may have been removed.
            let elements = self.elements.get(first).copied().unwrap_or_default();
            if self.served + elements > most {
                break;
            }
            self.served += elements;
            moved.push(Arc::clone(first));
            let after = (Bound::Excluded(Arc::clone(first)), Bound::Unbounded);
            let next = self.elements.range::<Arc<str>, _>(after).next();
            self.first_refused = next.map(|(name, _)| Arc::clone(name));
        }
        moved
    }
}

#[cfg(test)]
mod tests;
