//! A slow-to-start resource shared by all tests of a target with its own `main`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use libtest_mimic::Trial;

use crate::trial::trial;

/// A resource that the first test starts. It is dropped with the last test that has not run yet and
/// this value. Drop this value before a process exit, which drops nothing.
#[derive(Debug)]
pub struct Shared<S>(Arc<Slot<S>>);

#[derive(Debug)]
struct Slot<S> {
    /// Its name in messages.
    name: &'static str,
    start: fn() -> Result<S>,
    state: Mutex<State<S>>,
}

#[derive(Debug)]
enum State<S> {
    NotStarted,
    Running(Box<S>),
    /// It failed to start: later tests report that.
    Failed,
}

// === impl Shared ===

impl<S: Send + 'static> Shared<S> {
    /// Creates an unstarted resource: the first test calls `start`. `name` is for messages.
    pub fn new(name: &'static str, start: fn() -> Result<S>) -> Shared<S> {
        Shared(Arc::new(Slot {
            name,
            start,
            state: Mutex::new(State::NotStarted),
        }))
    }

    /// Creates a test that uses the resource in the state that the previous test left behind, even
    /// after a panic.
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
