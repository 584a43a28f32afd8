//! Runs a backend over a kernel that is simulated by a value.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use backend::{
    Asked, Backend, CommitError, Drift, Effect, ObserveError, Receipt, Recovery, Rendered,
    Shortcoming,
};
use dataplane::{ChunkSize, Config, Dataplane, Family, ServiceKey};

/// Applies a change to rules, with the checks of their kernel. Returns the number of steps.
pub type Replay<R, C> = fn(&mut R, &C) -> Result<usize, Box<dyn Error + Send + Sync>>;

/// A backend that programs a value. Rendering and diffing are the inner backend's.
#[derive(Debug)]
pub struct OverAValue<B: Backend> {
    backend: B,
    held: B::Rules,
    replay: Replay<B::Rules, B::Change>,
}

// === impl OverAValue ===

impl<B: Backend> OverAValue<B> {
    /// Wraps `backend` over an empty kernel.
    pub fn new(backend: B, replay: Replay<B::Rules, B::Change>) -> OverAValue<B> {
        OverAValue {
            backend,
            held: B::Rules::default(),
            replay,
        }
    }
}

impl<B: Backend> Backend for OverAValue<B> {
    type Rules = B::Rules;
    type Change = B::Change;

    fn family(&self) -> Family {
        self.backend.family()
    }

    fn chunk_size(&self, config: &Config) -> ChunkSize {
        self.backend.chunk_size(config)
    }

    fn rebuild_size(&self, config: &Config) -> ChunkSize {
        self.backend.rebuild_size(config)
    }

    fn longest_part(&self, config: &Config) -> Duration {
        self.backend.longest_part(config)
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<B::Rules>) -> B::Rules {
        self.backend.render(desired, from)
    }

    fn diff(&self, believed: &B::Rules, wanted: &B::Rules) -> B::Change {
        self.backend.diff(believed, wanted)
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

    fn shortcomings(&self, asked: Asked<'_>) -> Vec<Shortcoming> {
        self.backend.shortcomings(asked)
    }
}
