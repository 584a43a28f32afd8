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
use dataplane::{Endpoints, Precedence, Service, ServiceKey, ServiceRules, compile};
use reconciler::{Desired, Stamps};

use super::namespace_limit::{MOST_ELEMENTS_OF_A_NAMESPACE, Moved};
use super::queue::Pending;
use super::{CompiledWith, Engine, Outdated};

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
        let Some(with) = self.compiled.clone() else {
            return false;
        };
        let (after, others_changed) = match self.catalog.definition(key).cloned() {
            Some(service) => {
                let (rules, others_changed) = self.compile_within_limit(&service, &with, now);
                (Some(Arc::new(rules)), others_changed)
            }
            None => (None, self.record_elements(key, Some(0), now)),
        };
        self.put(key, after) || others_changed
    }

    /// Replaces or removes the rules of a Service. Returns whether that changed anything.
    fn put(&mut self, key: &ServiceKey, after: Option<Arc<ServiceRules>>) -> bool {
        let before = self.dataplane.services().get(key).cloned();
        let changed = match &after {
            Some(rules) => self.dataplane.set(Arc::clone(rules)),
            None => self.dataplane.remove(key),
        };
        if changed {
            self.account(key, before.as_deref(), after);
        }
        changed
    }

    /// Compiles a Service; nothing of it is served if its namespace takes too much. Also returns whether
    /// others are no longer served.
    fn compile_within_limit(
        &mut self,
        service: &Service,
        with: &CompiledWith,
        now: Instant,
    ) -> (ServiceRules, bool) {
        let key = &service.key;
        if service.precedence == Precedence::Ordinary && self.namespace_limit.cannot_fit(key) {
            let others_changed = self.record_elements(key, None, now);
            return (refused(service, with), others_changed);
        }
        let endpoints = self.catalog.endpoints(key).unwrap_or_default();
        let rules = compile(service, &endpoints, &with.node, &with.config);
        let elements = match service.precedence {
            // Nothing else on the node starts without it.
            Precedence::First => 0,
            Precedence::Ordinary => rules.elements(&with.config),
        };
        let others_changed = self.record_elements(key, Some(elements), now);
        let rules = match elements == 0 || self.namespace_limit.serves(key) {
            true => rules,
            false => refused(service, with),
        };
        (rules, others_changed)
    }

    /// Records what a Service asks for. Others that are no longer served are so at once; those that may
    /// be served wait for a pass. Returns whether that changed anything.
    fn record_elements(&mut self, key: &ServiceKey, elements: Option<usize>, now: Instant) -> bool {
        let Moved {
            evicted,
            candidates,
        } = self.namespace_limit.record(key, elements);
        let mut changed = false;
        for other in evicted {
            let service = self.catalog.definition(&other).cloned();
            let rules = service.zip(self.compiled.as_ref());
            let rules = rules.map(|(service, with)| Arc::new(refused(&service, with)));
            changed |= self.put(&other, rules);
        }
        let pending = Pending {
            since: now,
            trigger: Trigger::Untimed,
        };
        for other in candidates {
            let work = self.work(&other);
            self.queue.push(other, pending, work);
        }
        changed
    }
}

/// The rules of a Service beyond the limit of its namespace. They do not depend on its endpoints, nor
/// on more than one of its ports.
fn refused(service: &Service, with: &CompiledWith) -> ServiceRules {
    let first_port = Service {
        ports: service.ports.first().cloned().into_iter().collect(),
        ..service.clone()
    };
    let rules = compile(&first_port, &Endpoints::default(), &with.node, &with.config);
    rules.refused(
        "spec",
        format!(
            "not served: this Service and those of namespace {} before it by name need more than \
             {MOST_ELEMENTS_OF_A_NAMESPACE} elements, the limit of a namespace: an address or node \
             port counts with each port, endpoint and source range; remove some of them there",
            service.key.namespace
        ),
    )
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
