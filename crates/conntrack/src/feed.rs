//! The input of the worker.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dataplane::{Dataplane, Family};

/// The sequence of states that the kernel was programmed to in each family. Cheap to clone; all
/// clones share their content.
#[derive(Debug, Clone, Default)]
pub struct Feed(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    slots: Mutex<Slots>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Slots {
    /// The last posted state of each family, received or not.
    last: BTreeMap<Family, ProgrammedState>,
    steps: BTreeMap<Family, Vec<ProgrammedState>>,
    closed: bool,
}

/// The programmed state of one family, as far as it is known.
#[derive(Debug, Clone)]
pub enum ProgrammedState {
    /// This dataplane is programmed.
    Programmed(Dataplane),
    /// Unknown: a commit took effect in part, or there was an external change. Flows created
    /// meanwhile may lead anywhere, whatever is posted next.
    Unknown,
}

/// The maximum number of steps of a family that wait for the end of a pass. Each keeps the part of
/// its dataplane that it does not share with others in memory.
const MOST_STEPS: usize = 64;

/// The result of waiting.
#[derive(Debug)]
pub(crate) enum Received {
    /// The new steps of each family, the newest last; empty after a timeout.
    Steps(BTreeMap<Family, Vec<ProgrammedState>>),
    /// The feed is closed.
    Closed,
}

// === impl Feed ===

impl Feed {
    /// Posts what is programmed in `family`. The cost depends on the difference from the last post;
    /// never waits for a pass. An equal post is no step and does not wake the worker: most periodic
    /// checks find no change. If too many steps are waiting, only the last one is kept, after a
    /// [`ProgrammedState::Unknown`] for the dropped ones.
    pub fn post(&self, family: Family, knowledge: ProgrammedState) {
        let mut slots = self.slots();
        let last = slots.last.get(&family);
        if last.is_some_and(|last| last.says_the_same(&knowledge)) {
            return;
        }
        slots.last.insert(family, knowledge.clone());
        let steps = slots.steps.entry(family).or_default();
        if steps.len() >= MOST_STEPS {
            steps.clear();
            steps.push(ProgrammedState::Unknown);
        }
        steps.push(knowledge);
        drop(slots);
        self.0.changed.notify_all();
    }

    /// Ends the worker.
    pub fn close(&self) {
        self.slots().closed = true;
        self.0.changed.notify_all();
    }

    /// Waits for a post, at most for `patience` if given.
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

    /// The last step of `family` that has not been received; it stays in the feed.
    pub(crate) fn newest(&self, family: Family) -> Option<ProgrammedState> {
        self.slots().steps.get(&family)?.last().cloned()
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // The slots are consistent between any two statements that change them.
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl ProgrammedState ===

impl ProgrammedState {
    /// Whether both lead to the same judgement of every flow.
    fn says_the_same(&self, other: &ProgrammedState) -> bool {
        match (self, other) {
            (ProgrammedState::Unknown, ProgrammedState::Unknown) => true,
            (ProgrammedState::Programmed(before), ProgrammedState::Programmed(after)) => {
                Arc::ptr_eq(before.node(), after.node())
                    && Arc::ptr_eq(before.config(), after.config())
                    && before.frontends() == after.frontends()
                    && before.cluster_ips() == after.cluster_ips()
            }
            (ProgrammedState::Unknown, ProgrammedState::Programmed(_))
            | (ProgrammedState::Programmed(_), ProgrammedState::Unknown) => false,
        }
    }
}

#[cfg(test)]
mod tests;
