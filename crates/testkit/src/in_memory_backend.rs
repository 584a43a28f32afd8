//! Runs a backend over a kernel that is simulated by a value.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use backend::{
    Backend, CommitError, Drift, Effect, FrontendContext, ObserveError, Receipt, Recovery,
    Rendered, UnsupportedField,
};
use dataplane::{Config, Dataplane, Family, PartSize, ServiceKey};

/// Applies a change to rules, with the checks of their kernel. Returns the number of steps.
pub type Replay<R, C> = fn(&mut R, &C) -> Result<usize, Box<dyn Error + Send + Sync>>;

/// A backend that programs a value. Rendering and diffing are the inner backend's.
#[derive(Debug)]
pub struct InMemoryBackend<B: Backend> {
    backend: B,
    held: B::Rules,
    replay: Replay<B::Rules, B::Change>,
}

// === impl InMemoryBackend ===

impl<B: Backend> InMemoryBackend<B> {
    /// Wraps `backend` over an empty kernel.
    pub fn new(backend: B, replay: Replay<B::Rules, B::Change>) -> InMemoryBackend<B> {
        InMemoryBackend {
            backend,
            held: B::Rules::default(),
            replay,
        }
    }
}

impl<B: Backend> Backend for InMemoryBackend<B> {
    type Rules = B::Rules;
    type Change = B::Change;

    fn family(&self) -> Family {
        self.backend.family()
    }

    fn part_size(&self, config: &Config) -> PartSize {
        self.backend.part_size(config)
    }

    fn rebuild_size(&self, config: &Config) -> PartSize {
        self.backend.rebuild_size(config)
    }

    fn longest_part(&self, config: &Config) -> Duration {
        self.backend.longest_part(config)
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<B::Rules>) -> B::Rules {
        self.backend.render(desired, from)
    }

    fn diff(&self, observed: &B::Rules, desired: &B::Rules) -> B::Change {
        self.backend.diff(observed, desired)
    }

    fn observe(&mut self) -> Result<B::Rules, ObserveError> {
        Ok(self.held.clone())
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        Ok(Drift::None)
    }

    fn commit(&mut self, change: B::Change) -> Result<Receipt, CommitError> {
        match (self.replay)(&mut self.held, &change) {
            Ok(transactions) => Ok(Receipt { transactions }),
            Err(source) => Err(CommitError {
                family: self.backend.family(),
                recovery: Recovery::Observe,
                effect: Effect::Possible,
                source,
            }),
        }
    }

    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        let change = self.backend.diff(&self.held, &B::Rules::default());
        self.commit(change)
    }

    fn suspects(&self, change: &B::Change, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        self.backend.suspects(change, desired)
    }

    fn unsupported_fields(&self, asked: FrontendContext<'_>) -> Vec<UnsupportedField> {
        self.backend.unsupported_fields(asked)
    }

    fn without_room(&self, rules: &B::Rules) -> Vec<UnsupportedField> {
        self.backend.without_room(rules)
    }
}
