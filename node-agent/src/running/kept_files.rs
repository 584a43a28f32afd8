//! What a restarted agent needs, kept on disk.

use std::sync::Arc;

use catalog::OwnNode;
use runtime::{CancellationToken, chain, run_blocking};
use source::Assignment;
use source::last_good::LastGood;
use source::last_node::LastNode;
use tokio::sync::watch;
use tracing::warn;

use crate::engine::{AppliedConfig, Configuration};
use crate::latest::changed;

/// The files of a node. A node whose disk is slow or cannot be written is served all the same.
pub(super) struct KeptFiles {
    pub(super) node: String,
    pub(super) last_good: LastGood,
    pub(super) last_node: LastNode,
    /// The assignment that was written last.
    pub(super) written: Option<Arc<Assignment>>,
}

// === impl KeptFiles ===

impl KeptFiles {
    /// Writes each assignment of this node, with the values in force of the fields that this version
    /// cannot read, and each change of its Node object, until `stop` is cancelled.
    pub(super) async fn follow(
        mut self,
        mut applied_config: watch::Receiver<Option<AppliedConfig>>,
        mut own_node: watch::Receiver<Option<OwnNode>>,
        stop: CancellationToken,
    ) {
        loop {
            let applied = applied_config.borrow_and_update().clone();
            let node = own_node.borrow_and_update().clone();
            self = run_blocking(move || {
                self.commit(applied.as_ref(), node.as_ref());
                self
            })
            .await;
            // All arms are cancel safe: none of them consumes anything. What is posted before a stop
            // is still written.
            tokio::select! {
                biased;
                () = changed(&mut applied_config) => {}
                () = changed(&mut own_node) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    fn commit(&mut self, applied: Option<&AppliedConfig>, node: Option<&OwnNode>) {
        if let Some(Configuration::Assigned(assignment)) = applied.map(|it| &it.configuration)
            && !self
                .written
                .as_ref()
                .is_some_and(|it| Arc::ptr_eq(it, assignment))
        {
            match self.last_good.commit(&self.node, assignment) {
                Ok(()) => self.written = Some(Arc::clone(assignment)),
                Err(error) => {
                    warn!(error = %chain(&error), "unable to save the configuration for a restart without the operator");
                }
            }
        }
        if let Some(node) = node
            && let Err(error) = self.last_node.commit(node)
        {
            warn!(error = %chain(&error), "unable to save the addresses of the Node for a restart while the Node has none");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crds::profile::mode::Mode;
    use crds::{NodeProxySpec, readable};
    use serde_json::json;
    use source::Delivery;

    use super::*;
    use crate::engine::{Engine, MissingAssignment};

    /// What an operator of a later version writes: a node with mode iptables gets one that this
    /// version does not know.
    fn assignments() -> [Assignment; 2] {
        ["iptables", "teleport"].map(|mode| {
            let mut spec = serde_json::to_value(NodeProxySpec::default()).expect("JSON");
            spec["config"]["mode"] = json!(mode);
            let (spec, unreadable) = readable::readable(&spec).expect("the rest");
            Assignment {
                generation: Some(7),
                spec,
                reason: String::new(),
                unreadable,
            }
        })
    }

    /// Failure story T445: the agent kept the mode in force and wrote the default of that field to its
    /// file, so a restart switched the mode.
    #[test]
    fn t445_a_restart_keeps_what_was_in_force_where_only_a_newer_agent_can_read_the_rest() {
        let directory = tempfile::tempdir().expect("a directory");
        let last_good = LastGood::within(directory.path());
        let mut files = KeptFiles {
            node: "node-1".to_owned(),
            last_good: last_good.clone(),
            last_node: LastNode::within(directory.path()),
            written: None,
        };
        let mut engine = Engine::new("node-1", None, MissingAssignment::MayEnd);
        let [_, after] = assignments();
        for assignment in assignments() {
            engine.apply(Delivery::Configuration(Some(assignment)), Instant::now());
            files.commit(engine.view().applied_config().as_ref(), None);
        }

        let kept = last_good.observe("node-1").expect("it is read");
        let mut engine = Engine::new("node-1", kept, MissingAssignment::MayEnd);
        engine.apply(Delivery::Configuration(Some(after)), Instant::now());
        assert_eq!(engine.view().effective.mode, Mode::Iptables);
    }
}
