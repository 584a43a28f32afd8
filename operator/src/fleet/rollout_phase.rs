//! The phases of a rollout.

use crds::profile::{progress::RolloutVerdict, rollout::OnFailure};

/// The phase of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Phase {
    /// The nodes are being changed.
    RollingOut,
    /// Every node that was able to applied the configuration. Later failures do not count against
    /// the rollout.
    Settled,
    /// Every node has the configuration, but some did not report success in time, fewer than would
    /// have failed the rollout.
    DeadlineExceeded,
    /// The rollout has ended, but too many of the nodes that joined since then fail, and others
    /// wait.
    HeldBack {
        /// Which nodes failed, and why.
        verdict: RolloutVerdict,
    },
    /// Too many nodes failed.
    Failed {
        /// What the profile's `onFailure` does.
        on_failure: OnFailure,
        /// Which nodes failed, and why.
        verdict: RolloutVerdict,
    },
}

// === impl Phase ===

impl Phase {
    /// Whether the rollout has ended with every node having its configuration.
    pub(super) const fn has_ended(&self) -> bool {
        matches!(
            self,
            Self::Settled | Self::DeadlineExceeded | Self::HeldBack { .. }
        )
    }
}
