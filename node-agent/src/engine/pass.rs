//! Compiling what has changed, in passes.
//!
//! A pass takes no more changed Services than there is time for; what it leaves waits for the next
//! one. Between two passes the engine hands over what it has compiled and takes in what has been
//! delivered meanwhile, so that the change of a small Service does not wait for all others: any user
//! who may write Services and EndpointSlices can make thousands of them change at once.
//!
//! A Service may take the place of thousands of others of its namespace. If a pass has no time to remove
//! all of them, that Service keeps what it has, and the next passes remove the rest first.
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
    /// Whether anything is different by now.
    changed: bool,
    /// When the first change that it covers was received.
    since: Option<Instant>,
    triggers: Vec<SystemTime>,
}

/// How the turn of a Service has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Over,
    /// It is to be compiled once those are removed whose place it takes.
    Interrupted,
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
                self.compile_service(key, start, &mut pass, &|| true);
            }
        } else {
            let has_time = || clock().saturating_duration_since(start) < LONGEST_PASS;
            let size = self.queue.begin();
            while let Some((key, pending)) = self.queue.pop(size) {
                match self.compile_service(&key, start, &mut pass, &has_time) {
                    Turn::Over => pass.covers(pending),
                    Turn::Interrupted => {
                        self.queue.put_back(key, pending, size);
                        break;
                    }
                }
                if !has_time() {
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

    /// Compiles one Service again at `now`, or removes it. First come those of its namespace that are
    /// evicted, as long as the pass `has_time`.
    fn compile_service(
        &mut self,
        key: &ServiceKey,
        now: Instant,
        pass: &mut Pass,
        has_time: &dyn Fn() -> bool,
    ) -> Turn {
        let Some(with) = self.compiled.clone() else {
            return Turn::Over;
        };
        let service = self.catalog.definition(key).cloned();
        // One that is gone, or is not counted, takes no other's place.
        let precedence = service.as_ref().map(|service| service.precedence);
        let needs_room = precedence == Some(Precedence::Ordinary);
        if needs_room && self.remove_evicted(key, pass, has_time) == Turn::Interrupted {
            return Turn::Interrupted;
        }
        let after = match service {
            Some(service) => Some(Arc::new(self.compile_within_limit(&service, &with, now))),
            None => {
                self.record_elements(key, Some(0), now);
                None
            }
        };
        if needs_room && self.remove_evicted(key, pass, has_time) == Turn::Interrupted {
            return Turn::Interrupted;
        }
        pass.changed |= self.put(key, after);
        Turn::Over
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

    /// Compiles a Service; nothing of it is served if its namespace takes too much.
    fn compile_within_limit(
        &mut self,
        service: &Service,
        with: &CompiledWith,
        now: Instant,
    ) -> ServiceRules {
        let key = &service.key;
        if service.precedence == Precedence::Ordinary && self.namespace_limit.cannot_fit(key) {
            self.record_elements(key, None, now);
            return refused(service, with);
        }
        let endpoints = self.catalog.endpoints(key).unwrap_or_default();
        let rules = compile(service, &endpoints, &with.node, &with.config);
        let elements = match service.precedence {
            // Nothing else on the node starts without it.
            Precedence::First => 0,
            Precedence::Ordinary => rules.elements(&with.config),
        };
        self.record_elements(key, Some(elements), now);
        match elements == 0 || self.namespace_limit.serves(key) {
            true => rules,
            false => refused(service, with),
        }
    }

    /// Records what a Service asks for. Others that are no longer served are evicted; those that may be
    /// served wait for a pass.
    fn record_elements(&mut self, key: &ServiceKey, elements: Option<usize>, now: Instant) {
        let Moved {
            evicted,
            candidates,
        } = self.namespace_limit.record(key, elements);
        if !evicted.is_empty() {
            let namespace = Arc::clone(&key.namespace);
            self.evicted.entry(namespace).or_default().extend(evicted);
        }
        let pending = Pending {
            since: now,
            trigger: Trigger::Untimed,
        };
        for other in candidates {
            let work = self.work(&other);
            self.queue.push(other, pending, work);
        }
    }

    /// Removes what others of the namespace of `key` have without room, one at least, and all of it if the
    /// pass `has_time`.
    fn remove_evicted(
        &mut self,
        key: &ServiceKey,
        pass: &mut Pass,
        has_time: &dyn Fn() -> bool,
    ) -> Turn {
        while let Some(evicted) = self.evicted.get_mut(&key.namespace) {
            let other = evicted.pop_front();
            if evicted.is_empty() {
                self.evicted.remove(&key.namespace);
            }
            let Some(other) = other else { break };
            // There is room for it again, and it has what it had.
            if self.namespace_limit.serves(&other) {
                continue;
            }
            let service = self.catalog.definition(&other).cloned();
            // It has become one that is not counted.
            if service
                .as_ref()
                .is_some_and(|it| it.precedence == Precedence::First)
            {
                continue;
            }
            let rules = service.zip(self.compiled.as_ref());
            let rules = rules.map(|(service, with)| Arc::new(refused(&service, with)));
            pass.changed |= self.put(&other, rules);
            if self.evicted.contains_key(&key.namespace) && !has_time() {
                return Turn::Interrupted;
            }
        }
        Turn::Over
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
