//! What a scrape reads of the agent.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crds::{ConfigHash, NodeProxyStatus};
use dataplane::{Dataplane, Family};
use modes::{ModeState, RulesByMode};
use reconciler::Report;

/// The running agent at the moment of a scrape. Every value is the latest, and no call waits.
pub trait Snapshot: fmt::Debug + Send + Sync {
    /// The status that the node reports.
    fn status(&self) -> Arc<NodeProxyStatus>;

    /// The hash of the settings in force; `None` before the first.
    fn desired_hash(&self) -> Option<ConfigHash>;

    /// The desired state of the kernel; `None` before the first compilation.
    fn desired(&self) -> Option<Dataplane>;

    /// Since when the source has not answered; `None` while it answers.
    fn stale_since(&self) -> Option<SystemTime>;

    /// Whether Signpost serves the node's Services, and not another proxy.
    fn serves(&self) -> bool;

    /// How many Services with session affinity recently had no room for a new client.
    fn exhausted_services(&self) -> usize;

    /// The reconciler's last report.
    fn report(&self) -> Option<Arc<Report>>;

    /// How each family is programmed.
    fn modes(&self) -> BTreeMap<Family, ModeState>;

    /// The observed rules of one family; `None` if they are not known.
    fn held(&self, family: Family) -> Option<RulesByMode>;

    /// The number of elements and rules in the kernel, as observed.
    fn elements(&self) -> usize;
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// An agent that has programmed nothing.
    #[derive(Debug, Default)]
    pub(crate) struct Agent {
        status: Mutex<Arc<NodeProxyStatus>>,
        is_handed_back: AtomicBool,
    }

    impl Agent {
        pub(crate) fn reports(&self, status: NodeProxyStatus) {
            *self
                .status
                .lock()
                .expect("no test panics while it holds this") = Arc::new(status);
        }

        pub(crate) fn hands_back(&self) {
            self.is_handed_back.store(true, Ordering::Relaxed);
        }
    }

    impl Snapshot for Agent {
        fn status(&self) -> Arc<NodeProxyStatus> {
            let status = self.status.lock();
            Arc::clone(&status.expect("no test panics while it holds this"))
        }

        fn desired_hash(&self) -> Option<ConfigHash> {
            None
        }

        fn desired(&self) -> Option<Dataplane> {
            None
        }

        fn stale_since(&self) -> Option<SystemTime> {
            None
        }

        fn serves(&self) -> bool {
            !self.is_handed_back.load(Ordering::Relaxed)
        }

        fn exhausted_services(&self) -> usize {
            0
        }

        fn report(&self) -> Option<Arc<Report>> {
            None
        }

        fn modes(&self) -> BTreeMap<Family, ModeState> {
            BTreeMap::new()
        }

        fn held(&self, _: Family) -> Option<RulesByMode> {
            None
        }

        fn elements(&self) -> usize {
            0
        }
    }
}
