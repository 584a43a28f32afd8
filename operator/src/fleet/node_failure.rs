//! What makes a node fail with a configuration: what is worse than before, or that it is not ready in
//! time.

use crds::{
    condition::reason::{AGENT_SILENT, NODE_NOT_READY, PROGRESS_DEADLINE_EXCEEDED},
    profile::rollout::Rollout,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    baseline::{Baseline, Reachability},
    fleet::{node_progress::assumed_baseline, observations::Since, profile_node::ProfileNode},
};

/// The failure of a node with a configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeFailure {
    /// The reason in one word.
    pub(crate) reason: String,
    /// The agent's message, or that the agent is silent, for display.
    pub(crate) message: String,
    /// When the failure began.
    pub(crate) start: FailureStart,
}

/// When a failure began relative to the change, which decides whether it counts against the
/// configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureStart {
    /// Before the node's deadline to be ready: the next node to be changed may fail in the same
    /// way.
    WithTheChange,
    /// Long after the change: the failure has another cause.
    Afterwards,
    /// Unknown: the operator found the failure when it started, long after the change.
    Unknown,
}

/// A fault of a node: the reason in one word, and a sentence.
pub(super) struct NodeFault {
    pub(super) reason: String,
    pub(super) message: String,
}

// === impl NodeFault ===

impl NodeFault {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self {
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

// === impl ProfileNode ===

impl ProfileNode<'_> {
    /// Returns what is worse than in `baseline`, other than readiness. `was_healthy` says whether the
    /// node has been healthy since.
    pub(super) fn worse_than(
        &self,
        baseline: &Baseline,
        was_healthy: bool,
        now: Timestamp,
    ) -> Option<NodeFault> {
        if self.node.reach == Reachability::Unreachable {
            let lost = "its Node is not Ready, or its kubelet has stopped reporting";
            // A change that made an unready agent ready may have taken the node, too.
            let became_healthy = baseline.node == Reachability::Reachable && was_healthy;
            return (baseline.is_healthy() || became_healthy)
                .then(|| NodeFault::new(NODE_NOT_READY.name, lost));
        }
        if baseline.is_healthy() && self.is_silent(now) {
            let silent = "its agent has stopped reporting";
            return Some(NodeFault::new(AGENT_SILENT.name, silent));
        }
        self.worse_report(baseline)
    }

    /// Returns what the agent reports that is worse than in `baseline`, other than readiness.
    fn worse_report(&self, baseline: &Baseline) -> Option<NodeFault> {
        // Degraded has one reason, and others come before this one.
        if let Some(failed) = self.failed_connection()
            && baseline.is_healthy()
            && !baseline.had_failing_connections()
        {
            return Some(NodeFault::new(&failed.reason, describe(failed)));
        }
        let degraded = self.degraded().filter(|_| baseline.is_healthy())?;
        (baseline.degraded.as_ref() != Some(&degraded.reason))
            .then(|| NodeFault::new(&degraded.reason, describe(degraded)))
    }

    /// Whether the agent reports nothing worse than before the change, whatever became of the
    /// kubelet.
    pub(crate) fn serves_as_before(&self) -> bool {
        let baseline = self.proxy.and_then(assumed_baseline);
        self.is_ready_with_spec()
            && baseline.is_none_or(|before| self.worse_report(&before).is_none())
    }

    pub(super) fn not_ready_fault(&self, rollout: &Rollout) -> NodeFault {
        let deadline = rollout.progress_deadline;
        match self.unready() {
            Some(ready) => {
                let message = format!("not ready after {deadline}: {}", describe(ready));
                NodeFault::new(&ready.reason, message)
            }
            None => {
                let message = format!("no report that it is ready after {deadline}");
                NodeFault::new(PROGRESS_DEADLINE_EXCEEDED.name, message)
            }
        }
    }
}

fn describe(condition: &Condition) -> String {
    format!("{}: {}", condition.reason, condition.message)
}

pub(super) fn failure_start(since: Since, deadline: Timestamp) -> FailureStart {
    match since {
        _ if since.time() < deadline => FailureStart::WithTheChange,
        Since::Changed(_) => FailureStart::Afterwards,
        Since::Found(_) => FailureStart::Unknown,
    }
}
