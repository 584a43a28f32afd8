//! What takes long to start, for all trials of a target that has a main of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use libtest_mimic::Trial;

use crate::trial::trial;

/// What trials share, started by the first that needs it. It ends with the last trial that was not
/// run yet and with this; drop it before an exit, which drops nothing.
#[derive(Debug)]
pub struct Shared<S>(Arc<Slot<S>>);

#[derive(Debug)]
struct Slot<S> {
    /// What it is called where people read of it.
    name: &'static str,
    start: fn() -> Result<S>,
    state: Mutex<State<S>>,
}

#[derive(Debug)]
enum State<S> {
    NotStarted,
    Running(Box<S>),
    /// It did not start: what trials after the first are told.
    Failed,
}

// === impl Shared ===

impl<S: Send + 'static> Shared<S> {
    /// Nothing yet: `start` is called for the first trial that is run. `name` is for people.
    pub fn new(name: &'static str, start: fn() -> Result<S>) -> Shared<S> {
        Shared(Arc::new(Slot {
            name,
            start,
            state: Mutex::new(State::NotStarted),
        }))
    }

    /// A test that needs it. It finds it as the one before left it, also where that one panicked.
    pub fn trial(
        &self,
        name: &str,
        test: impl FnOnce(&mut S) -> Result<()> + Send + 'static,
    ) -> Trial {
        let slot = Arc::clone(&self.0);
        trial(name, move || slot.run(test))
    }
}

// === impl Slot ===

impl<S> Slot<S> {
    fn run(&self, test: impl FnOnce(&mut S) -> Result<()>) -> Result<()> {
        let Slot { name, start, state } = self;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::NotStarted) {
            *state = State::Failed;
            let started = Instant::now();
            let shared = start().with_context(|| format!("the {name} did not start"))?;
            println!("    the {name} started in {:.1?}", started.elapsed());
            *state = State::Running(Box::new(shared));
        }
        match &mut *state {
            State::Running(shared) => test(shared),
            _ => Err(anyhow!("the {name} did not start: see the first trial")),
        }
    }
}
