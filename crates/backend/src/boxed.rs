//! A boxed backend is a backend.

use std::collections::BTreeSet;
use std::time::Duration;

use dataplane::{Config, Dataplane, Family, PartSize, ServiceKey};

use crate::{
    Backend, CommitError, Connections, Drift, DriftDetection, FrontendContext, Leftover,
    ObserveError, Receipt, Rendered, UnsupportedField,
};

impl<B: Backend + ?Sized> Backend for Box<B> {
    type Rules = B::Rules;
    type Change = B::Change;

    fn family(&self) -> Family {
        (**self).family()
    }

    fn part_size(&self, config: &Config) -> PartSize {
        (**self).part_size(config)
    }

    fn rebuild_size(&self, config: &Config) -> PartSize {
        (**self).rebuild_size(config)
    }

    fn longest_part(&self, config: &Config) -> Duration {
        (**self).longest_part(config)
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<B::Rules>) -> B::Rules {
        (**self).render(desired, from)
    }

    fn diff(&self, observed: &B::Rules, desired: &B::Rules) -> B::Change {
        (**self).diff(observed, desired)
    }

    fn observe(&mut self) -> Result<B::Rules, ObserveError> {
        (**self).observe()
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        (**self).observe_drift()
    }

    fn drift_detection(&self) -> DriftDetection {
        (**self).drift_detection()
    }

    fn commit(&mut self, change: B::Change) -> Result<Receipt, CommitError> {
        (**self).commit(change)
    }

    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        (**self).commit_removal()
    }

    fn commit_withdrawal(&mut self) -> Result<Leftover, CommitError> {
        (**self).commit_withdrawal()
    }

    fn release(&mut self) {
        (**self).release();
    }

    fn is_offered(&self) -> bool {
        (**self).is_offered()
    }

    fn limitations(&self, programmed: &Dataplane) -> Vec<String> {
        (**self).limitations(programmed)
    }

    fn connections(&self, rules: &B::Rules) -> Option<Connections> {
        (**self).connections(rules)
    }

    fn suspects(&self, change: &B::Change, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        (**self).suspects(change, desired)
    }

    fn unsupported_fields(&self, asked: FrontendContext<'_>) -> Vec<UnsupportedField> {
        (**self).unsupported_fields(asked)
    }

    fn without_room(&self, rules: &B::Rules) -> Vec<UnsupportedField> {
        (**self).without_room(rules)
    }
}
