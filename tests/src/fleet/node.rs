//! A simulated node: which proxy serves it, and what its agent has found.

use crds::profile::handover::Handover;

use super::agents::World;

/// The proxy that serves a node's Services.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ServedBy {
    /// Signpost, alone or beside kube-proxy's rules.
    #[default]
    Signpost,
    /// kube-proxy: no rules of Signpost are in the kernel.
    KubeProxy,
}

/// The state of a node.
#[derive(Debug, Clone, Default)]
pub(super) struct SimulatedNode {
    pub(super) served_by: ServedBy,
    /// Whether kube-proxy runs and answers.
    pub(super) has_kube_proxy: bool,
    /// Whether kube-proxy's rules are in the kernel. They stay when it stops.
    pub(super) has_kube_proxy_rules: bool,
    /// Why the handover that the profile requests is refused.
    pub(super) refusal: Option<&'static str>,
    /// Whether the kernel refuses changes.
    pub(super) is_failing: bool,
    /// The number of Services that were added since the start.
    pub(super) added_services: u32,
}

// === impl SimulatedNode ===

impl SimulatedNode {
    /// Takes in what `world` does on the node of this name.
    pub(super) fn apply(&mut self, world: &World, name: &str) {
        self.has_kube_proxy = world.kube_proxy.is_on(name);
        self.has_kube_proxy_rules |= self.has_kube_proxy;
        self.is_failing = world.failing.as_deref() == Some(name);
    }

    /// Returns whether the proxy that the profile requests serves the node
    /// (`node-agent`, `handover/desired.rs`).
    pub(super) fn is_handed_over(&self, desired: Handover) -> bool {
        match desired {
            Handover::Manual => true,
            Handover::Takeover => {
                self.served_by == ServedBy::Signpost && !self.has_kube_proxy_rules
            }
            Handover::Handback => self.served_by == ServedBy::KubeProxy,
        }
    }

    /// Returns why an agent refuses this handover (`node-agent`, `handover/takeover.rs` and
    /// `handback.rs`).
    pub(super) fn obstacle(&self, desired: Handover) -> Option<&'static str> {
        match desired {
            Handover::Takeover if self.has_kube_proxy => Some(
                "kube-proxy answers at 127.0.0.1:10256 and would put its rules back: stop kube-proxy first",
            ),
            Handover::Handback if !self.has_kube_proxy_rules => Some(
                "IPv4: no rules of kube-proxy are here, and connections, also established ones, would end: start it \
                 first",
            ),
            Handover::Handback if !self.has_kube_proxy => Some(
                "no kube-proxy has answered within 12 s after its ports became free, so no proxy would follow \
                 changes: start kube-proxy first",
            ),
            Handover::Manual | Handover::Takeover | Handover::Handback => None,
        }
    }

    /// Completes a handover that nothing prevents.
    pub(super) fn hand_over(&mut self, to: Handover) {
        self.refusal = None;
        match to {
            Handover::Manual => {}
            Handover::Takeover => {
                self.served_by = ServedBy::Signpost;
                self.has_kube_proxy_rules = false;
            }
            Handover::Handback => self.served_by = ServedBy::KubeProxy,
        }
    }
}
