//! Compiling what has changed, in passes.
//!
//! A pass takes no more changed Services than there is time for; what it leaves waits for the next
//! one. Between two passes the engine hands over what it has compiled and takes in what has been
//! delivered meanwhile, so that the change of a small Service does not wait for all others: any user
//! who may write Services and EndpointSlices can make thousands of them change at once.
//!
//! The first pass, and one after a change that concerns all Services, compiles all of them: a
//! Service that is not desired yet would be removed from the kernel of an agent that restarts, and
//! no state in which half of the Services follow another configuration is handed over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use catalog::Trigger;
use dataplane::{Precedence, ServiceKey, ServiceRules, compile};
use reconciler::{Desired, Stamps};

use super::namespace_limit::MOST_ELEMENTS_OF_A_NAMESPACE;
use super::queue::Pending;
use super::{Engine, Outdated};

/// How long a pass compiles Services before it hands them over: as long as a part of a large change
/// takes in mode nftables. The Service that is being compiled then is finished.
pub(super) const LONGEST_PASS: Duration = Duration::from_millis(30);

/// What a pass has done so far.
#[derive(Debug, Default)]
struct Pass {
    changed: bool,
    /// When the first change that it covers was received.
    since: Option<Instant>,
    triggers: Vec<SystemTime>,
}

// === impl Engine ===

impl Engine {
    /// Makes a pass. Returns the desired state of the kernel if it has changed. Also returns `None`
    /// until everything has been listed: an object that is not listed yet is not absent.
    pub(crate) fn compile(&mut self, clock: impl Fn() -> Instant) -> Option<Desired> {
        if !self.is_complete() || (self.waiting.is_none() && self.queue.is_empty()) {
            return None;
        }
        let start = clock();
        let disputes = self.dataplane.disputes().clone();
        let mut pass = Pass::default();
        let outdated = self.take_waiting(&mut pass);
        if outdated == Outdated::Everything {
            let mut services = BTreeSet::new();
            for (key, pending) in self.queue.take() {
                pass.covers(pending);
                services.insert(key);
            }
            // A set, so that a changed Service is compiled once.
            services.extend(self.catalog.services().cloned());
            for key in &services {
                pass.changed |= self.compile_service(key, start);
            }
        } else {
            let size = self.queue.begin();
            while let Some((key, pending)) = self.queue.pop(size) {
                pass.covers(pending);
                pass.changed |= self.compile_service(&key, start);
                if clock().saturating_duration_since(start) >= LONGEST_PASS {
                    break;
                }
            }
        }
        self.rejections_changed |= disputes != *self.dataplane.disputes();
        if std::mem::take(&mut self.rejections_changed) {
            self.rejections = self.list_rejections();
        }
        pass.changed.then(|| Desired {
            dataplane: self.dataplane.clone(),
            stamps: Stamps {
                received_at: pass.since.unwrap_or(start),
                compile: clock().saturating_duration_since(start),
                triggers: pass.triggers,
            },
        })
    }

    /// Returns the number of changed Services that are left for further passes.
    pub(crate) fn left(&self) -> usize {
        self.queue.len()
    }

    /// Compiles the node's own part if it may have changed, and puts the Services that have changed
    /// since the last pass into the queue. Returns what is outdated.
    fn take_waiting(&mut self, pass: &mut Pass) -> Outdated {
        let Some(waiting) = self.waiting.take() else {
            return Outdated::Nothing;
        };
        let dirty = self.catalog.take_dirty();
        self.rejections_changed |= dirty.rejections;
        for (key, trigger) in dirty.services {
            let since = waiting.since;
            let work = self.work(&key);
            self.queue.push(key, Pending { since, trigger }, work);
        }
        let about_node = waiting.everything || dirty.node || dirty.service_cidrs;
        let outdated = match about_node || self.compiled.is_none() {
            true => self.compile_node(),
            false => Outdated::Nothing,
        };
        if outdated != Outdated::Nothing {
            pass.changed = true;
            pass.since = Some(waiting.since);
        }
        outdated
    }

    /// Estimates the work of compiling a Service again, or of removing it.
    fn work(&self, key: &ServiceKey) -> usize {
        let before = self.dataplane.services().get(key);
        self.catalog.work(key) + before.map_or(0, |rules| rules.frontends.len())
    }

    /// Compiles one Service again at `now`, or removes it. Returns whether that changed anything.
    fn compile_service(&mut self, key: &ServiceKey, now: Instant) -> bool {
        let Some(with) = &self.compiled else {
            return false;
        };
        let before = self.dataplane.services().get(key).cloned();
        let view = self.catalog.service(key);
        let after = view.map(|view| {
            let service = &view.service;
            let rules = compile(service, &view.endpoints, &with.node, &with.config);
            let elements = match service.precedence {
                // Nothing else on the node starts without it.
                Precedence::First => 0,
                Precedence::Ordinary => rules.elements(&with.config),
            };
            (rules, elements)
        });
        let after = match after {
            Some((rules, elements)) => Some(self.within_limit(rules, elements, now)),
            None => {
                self.record_elements(key, 0, now);
                None
            }
        };
        let after = after.map(Arc::new);
        let changed = match &after {
            Some(rules) => self.dataplane.set(Arc::clone(rules)),
            None => self.dataplane.remove(key),
        };
        if changed {
            self.account(key, before.as_deref(), after);
        }
        changed
    }

    /// Returns what is served of a Service that takes `elements`: nothing if its namespace takes too
    /// much.
    fn within_limit(&mut self, rules: ServiceRules, elements: usize, now: Instant) -> ServiceRules {
        let key = rules.service.clone();
        self.record_elements(&key, elements, now);
        match elements == 0 || self.namespace_limit.serves(&key) {
            true => rules,
            false => rules.refused(
                "spec",
                format!(
                    "not served: the Services of namespace {} whose names come up to this one's \
                     take more than {MOST_ELEMENTS_OF_A_NAMESPACE} elements, for their addresses \
                     and node ports with their ports, endpoints and source ranges",
                    key.namespace
                ),
            ),
        }
    }

    /// Records what a Service asks for. Services that are served no longer, or again, wait for a pass.
    fn record_elements(&mut self, key: &ServiceKey, elements: usize, now: Instant) {
        let pending = Pending {
            since: now,
            trigger: Trigger::Untimed,
        };
        for moved in self.namespace_limit.record(key, elements) {
            let work = self.work(&moved);
            self.queue.push(moved, pending, work);
        }
    }
}

// === impl Pass ===

impl Pass {
    /// Adds the stamps of the changes of a Service that is compiled in this pass. Changes from
    /// before this process started have no time.
    fn covers(&mut self, pending: Pending) {
        let since = self.since.map_or(pending.since, |s| s.min(pending.since));
        self.since = Some(since);
        match pending.trigger {
            Trigger::At(time) => self.triggers.push(time),
            Trigger::Untimed | Trigger::Bootstrap => {}
        }
    }
}
