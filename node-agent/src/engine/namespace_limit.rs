//! The limit on what all Services of a namespace take of this node together. Pure.
//!
//! Within a namespace, Services are served in the order of their names, up to the first that does not
//! fit. What is served so depends on the objects alone, and no namespace takes from another.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use dataplane::{MOST_ELEMENTS, ServiceKey};

/// The most elements that the Services of one namespace may take, in both families together.
pub(super) const MOST_ELEMENTS_OF_A_NAMESPACE: usize = 8 * MOST_ELEMENTS;

/// What the Services of each namespace ask for, and which of them are not served.
#[derive(Debug)]
pub(super) struct NamespaceLimit {
    most: usize,
    namespaces: BTreeMap<Arc<str>, Namespace>,
}

#[derive(Debug, Default)]
struct Namespace {
    /// The elements of each Service that has any. `None` for one that was not compiled, since
    /// Services before it do not fit.
    elements: BTreeMap<Arc<str>, Option<usize>>,
    /// The sum over the Services that are served.
    served: usize,
    /// The first Service that is not served; none after it is.
    first_refused: Option<Arc<str>>,
}

/// What the change of one Service means for others of its namespace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    /// Those that are no longer served.
    pub(super) evicted: Vec<ServiceKey>,
    /// Those that are to be compiled: they are served again, or it is their turn to be counted.
    pub(super) candidates: Vec<ServiceKey>,
}

// === impl NamespaceLimit ===

impl NamespaceLimit {
    pub(super) fn new(most: usize) -> NamespaceLimit {
        NamespaceLimit {
            most,
            namespaces: BTreeMap::new(),
        }
    }

    /// Records that a Service asks for this many elements: 0 for one that is removed, `None` for one
    /// that [cannot fit](NamespaceLimit::cannot_fit) and was not compiled.
    pub(super) fn record(&mut self, service: &ServiceKey, elements: Option<usize>) -> Moved {
        let name = &service.name;
        let namespace = Arc::clone(&service.namespace);
        let known = self.namespaces.entry(namespace).or_default();
        let before = match elements {
            Some(0) => known.elements.remove(name),
            _ => known.elements.insert(Arc::clone(name), elements),
        };
        if known.serves(name) {
            let before = before.flatten().unwrap_or_default();
            known.served = known.served - before + elements.unwrap_or_default();
        }
        let evicted = known.evict(self.most);
        let candidates = known.admit(self.most);
        if known.elements.is_empty() {
            self.namespaces.remove(&service.namespace);
        }
        let [evicted, candidates] = [evicted, candidates].map(|names| {
            let others = names.into_iter().filter(|other| other != name);
            let namespace = &service.namespace;
            let keys = others.map(|name| ServiceKey {
                namespace: Arc::clone(namespace),
                name,
            });
            keys.collect()
        });
        Moved {
            evicted,
            candidates,
        }
    }

    /// Whether a Service is served, if it has elements.
    pub(super) fn serves(&self, service: &ServiceKey) -> bool {
        let known = self.namespaces.get(&service.namespace);
        known.is_none_or(|known| known.serves(&service.name))
    }

    /// Whether a Service is not served however few elements it has.
    pub(super) fn cannot_fit(&self, service: &ServiceKey) -> bool {
        let known = self.namespaces.get(&service.namespace);
        let first = known.and_then(|known| known.first_refused.as_ref());
        first.is_some_and(|first| service.name > *first)
    }
}

// === impl Namespace ===

impl Namespace {
    fn serves(&self, name: &str) -> bool {
        let first = self.first_refused.as_deref();
        first.is_none_or(|first| name < first)
    }

    /// Stops to serve the last Services until the others fit; returns them.
    fn evict(&mut self, most: usize) -> Vec<Arc<str>> {
        let mut evicted = Vec::new();
        while self.served > most {
            let end = match self.first_refused.clone() {
                Some(first) => Bound::Excluded(first),
                None => Bound::Unbounded,
            };
            let mut served = self.elements.range((Bound::Unbounded, end));
            let Some((last, elements)) = served.next_back() else {
                break;
            };
            self.served -= elements.unwrap_or_default();
            self.first_refused = Some(Arc::clone(last));
            evicted.push(Arc::clone(last));
        }
        evicted
    }

    /// Serves the first Services that are not served as long as they fit. Returns them, and the
    /// first whose elements are not known.
    fn admit(&mut self, most: usize) -> Vec<Arc<str>> {
        let mut admitted = Vec::new();
        while let Some(first) = &self.first_refused {
            match self.elements.get(first) {
                Some(Some(elements)) if self.served + elements > most => break,
                Some(Some(elements)) => {
                    self.served += elements;
                    admitted.push(Arc::clone(first));
                }
                Some(None) => {
                    admitted.push(Arc::clone(first));
                    break;
                }
                // It has been removed.
                None => {}
            }
            let after = (Bound::Excluded(Arc::clone(first)), Bound::Unbounded);
            let next = self.elements.range::<Arc<str>, _>(after).next();
            self.first_refused = next.map(|(name, _)| Arc::clone(name));
        }
        admitted
    }
}

#[cfg(test)]
mod tests;
