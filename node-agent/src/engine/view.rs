//! What the engine exposes of its state.

use std::sync::Arc;

use catalog::NodeLifecycle;
use crds::{ConfigHash, EffectiveConfig};
use dataplane::Dataplane;
use tokio::sync::watch;

use super::rejections::Rejections;
use super::{Configuration, SourceHealth};

/// The state of the engine, for status, probes and queries.
#[derive(Debug, Clone)]
pub(crate) struct View {
    /// What has not been listed yet, in words; empty once everything has.
    pub(crate) missing: Vec<String>,
    /// The configuration, and where it comes from.
    pub(crate) configuration: Configuration,
    /// The settings in force.
    pub(crate) effective: Arc<EffectiveConfig>,
    /// The hash of the settings, as the operator wrote it: an agent of another version could
    /// complete and hash the same configuration differently.
    pub(crate) hash: ConfigHash,
    /// The state of the source.
    pub(crate) source: SourceHealth,
    /// Whether the node stays in the cluster. Without a Node object it does if there is no API
    /// server to delete nodes.
    pub(crate) lifecycle: NodeLifecycle,
    /// The desired state of the kernel; `None` before the first compilation.
    pub(crate) desired: Option<Dataplane>,
    /// The number of distinct endpoints of each desired Service, summed over Services.
    pub(crate) endpoints: usize,
    /// What is not supported or not valid, sorted. The same list as before if it has not changed.
    /// Empty until everything has been listed.
    pub(crate) rejections: Arc<Rejections>,
}

/// The configuration in force: the part of a [`View`] that does not change with Services.
#[derive(Debug, Clone)]
pub(crate) struct AppliedConfig {
    /// The current or last assignment, or that there never was one.
    pub(crate) configuration: Configuration,
    /// The settings of that assignment, or the defaults.
    pub(crate) effective: Arc<EffectiveConfig>,
}

/// Where the engine posts its view. Readers get the latest, or wait for a change.
#[derive(Debug)]
pub(crate) struct ViewSender {
    view: watch::Sender<Option<Arc<View>>>,
    applied_config: watch::Sender<Option<AppliedConfig>>,
}

// === impl View ===

impl View {
    /// Returns the configuration in force; `None` while an assignment is still awaited.
    pub(crate) fn applied_config(&self) -> Option<AppliedConfig> {
        match self.configuration {
            Configuration::Awaited { .. } => None,
            _ => Some(AppliedConfig {
                configuration: self.configuration.clone(),
                effective: Arc::clone(&self.effective),
            }),
        }
    }
}

// === impl AppliedConfig ===

impl AppliedConfig {
    /// Returns whether it is the same configuration, from the same assignment.
    pub(crate) fn is(&self, other: &AppliedConfig) -> bool {
        let own = self.configuration.assignment().map(std::ptr::from_ref);
        let theirs = other.configuration.assignment().map(std::ptr::from_ref);
        Arc::ptr_eq(&self.effective, &other.effective) && own == theirs
    }
}

// === impl ViewSender ===

impl ViewSender {
    pub(crate) fn new() -> ViewSender {
        ViewSender {
            view: watch::Sender::new(None),
            applied_config: watch::Sender::new(None),
        }
    }

    pub(crate) fn post(&self, view: View) {
        let applied_config = view.applied_config();
        self.applied_config.send_if_modified(|posted| {
            let changed = match (&*posted, &applied_config) {
                (Some(before), Some(now)) => !before.is(now),
                (before, now) => before.is_some() != now.is_some(),
            };
            if changed {
                *posted = applied_config;
            }
            changed
        });
        self.view.send_replace(Some(Arc::new(view)));
    }

    /// The configuration and the desired state.
    pub(crate) fn view(&self) -> watch::Receiver<Option<Arc<View>>> {
        self.view.subscribe()
    }

    /// The node's configuration, without its Services; `None` while it is not settled. Changes only
    /// when the configuration does.
    pub(crate) fn applied_config(&self) -> watch::Receiver<Option<AppliedConfig>> {
        self.applied_config.subscribe()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Instant;

    use crds::NodeProxySpec;
    use source::{Assignment, Delivery};

    use super::*;
    use crate::engine::{Engine, MissingAssignment};

    /// A delivery with a node's first configuration.
    pub(crate) fn assigned() -> Delivery {
        Delivery::Configuration(Some(Assignment {
            generation: Some(1),
            spec: NodeProxySpec::default(),
            reason: String::new(),
            unreadable: Vec::new(),
        }))
    }

    #[test]
    fn who_follows_the_configuration_does_not_wake_for_services() {
        let views = ViewSender::new();
        let mut engine = Engine::new("node-1", None, MissingAssignment::MayEnd);
        let mut applied_config = views.applied_config();
        let mut view = views.view();
        let mut woke = |engine: &Engine| {
            views.post(engine.view());
            assert!(view.has_changed().expect("the sender is there"));
            view.mark_unchanged();
            let woke = applied_config.has_changed().expect("the sender is there");
            applied_config.mark_unchanged();
            woke
        };
        assert!(!woke(&engine), "nothing has changed");
        engine.apply(assigned(), Instant::now());
        assert!(woke(&engine));
        engine.apply(Delivery::Addresses([].into()), Instant::now());
        assert!(!woke(&engine));
        engine.apply(assigned(), Instant::now());
        assert!(woke(&engine), "the configuration has changed");
    }
}
