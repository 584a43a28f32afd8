//! What the worker is given.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dataplane::{Dataplane, Family};

/// What the kernel came to carry out in each family, step by step. Cheap to clone; clones are the
/// same.
#[derive(Debug, Clone, Default)]
pub struct Feed(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    slots: Mutex<Slots>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Slots {
    /// What was last posted of each family, received or not.
    last: BTreeMap<Family, Knowledge>,
    steps: BTreeMap<Family, Vec<Knowledge>>,
    closed: bool,
}

/// What is known of what is programmed in one family.
#[derive(Debug, Clone)]
pub enum Knowledge {
    /// This.
    Programmed(Dataplane),
    /// Nothing: a commit took effect in part, or there was an external change. Whatever becomes known
    /// next, flows that were created meanwhile can lead anywhere.
    Unknown,
}

/// How many steps of a family wait for a pass to end. Each keeps what its dataplane does not share
/// with the others.
const MOST_STEPS: usize = 64;

/// What came of waiting.
#[derive(Debug)]
pub(crate) enum Received {
    /// What each family went through, the newest last; nothing where the time was up.
    Steps(BTreeMap<Family, Vec<Knowledge>>),
    /// Nothing more will come.
    Closed,
}

// === impl Feed ===

impl Feed {
    /// Posts what is known now of what is programmed in `family`. Costs what differs from the last
    /// post and never waits for a pass. The same post again is no step, and does not wake the worker:
    /// most periodic checks find nothing. Of more steps than are useful, the last is kept, and that
    /// some were dropped.
    pub fn post(&self, family: Family, knowledge: Knowledge) {
        let mut slots = self.slots();
        let last = slots.last.get(&family);
        if last.is_some_and(|last| last.says_the_same(&knowledge)) {
            return;
        }
        slots.last.insert(family, knowledge.clone());
        let steps = slots.steps.entry(family).or_default();
        if steps.len() >= MOST_STEPS {
            steps.clear();
            steps.push(Knowledge::Unknown);
        }
        steps.push(knowledge);
        drop(slots);
        self.0.changed.notify_all();
    }

    /// Says that it is time to end.
    pub fn close(&self) {
        self.slots().closed = true;
        self.0.changed.notify_all();
    }

    /// Waits until something is there, or for `patience`; for ever without.
    pub(crate) fn receive(&self, patience: Option<Duration>) -> Received {
        let idle = |slots: &mut Slots| slots.steps.is_empty() && !slots.closed;
        let slots = self.slots();
        let mut slots = match patience {
            None => self.0.changed.wait_while(slots, idle),
            Some(patience) => match self.0.changed.wait_timeout_while(slots, patience, idle) {
                Ok((slots, _)) => Ok(slots),
                Err(poisoned) => Ok(poisoned.into_inner().0),
            },
        }
        .unwrap_or_else(PoisonError::into_inner);
        if slots.closed {
            return Received::Closed;
        }
        Received::Steps(std::mem::take(&mut slots.steps))
    }

    /// The last step of `family` that was not received yet; it stays to be received.
    pub(crate) fn newest(&self, family: Family) -> Option<Knowledge> {
        self.slots().steps.get(&family)?.last().cloned()
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // It is whole between any two statements that change it.
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Knowledge ===

impl Knowledge {
    /// Whether no flow can be judged otherwise by `other`.
    fn says_the_same(&self, other: &Knowledge) -> bool {
        match (self, other) {
            (Knowledge::Unknown, Knowledge::Unknown) => true,
            (Knowledge::Programmed(before), Knowledge::Programmed(after)) => {
                Arc::ptr_eq(before.node(), after.node())
                    && Arc::ptr_eq(before.config(), after.config())
                    && before.frontends() == after.frontends()
                    && before.cluster_ips() == after.cluster_ips()
            }
            (Knowledge::Unknown, Knowledge::Programmed(_))
            | (Knowledge::Programmed(_), Knowledge::Unknown) => false,
        }
    }
}

#[cfg(test)]
mod tests;
