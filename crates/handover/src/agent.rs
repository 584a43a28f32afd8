//! What a handover needs of the running agent.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crds::profile::handover::Handover;
use crds::{EffectiveConfig, NodeProxyStatus};
use dataplane::{Dataplane, Family};
use foreign_proxy::{ForeignProxyScan, RulesWriter};
use modes::{ModeState, VariantScan};
use reconciler::Report;
use tokio::sync::watch;

use crate::ServingState;

/// The running agent, as far as a handover is concerned. Every value is the latest, and no call
/// waits.
pub trait Agent: fmt::Debug + Send + Sync {
    /// The node's settings and desired state; `None` before the first.
    fn view(&self) -> Option<NodeView>;

    /// The handover that the profile requests: `Manual` while no configuration is settled.
    fn desired_handover(&self) -> Handover;

    /// The name of the profile in force; `None` if there is none.
    fn profile_name(&self) -> Option<String>;

    /// How each family is programmed.
    fn modes(&self) -> BTreeMap<Family, ModeState>;

    /// The last scan for rules of other programs in both variants of iptables.
    fn variants(&self) -> VariantScan;

    /// The reconciler's last report.
    fn report(&self) -> watch::Receiver<Option<Arc<Report>>>;

    /// The status that the node reports.
    fn status(&self) -> watch::Receiver<Arc<NodeProxyStatus>>;

    /// The last scan for other proxies.
    fn scan(&self) -> watch::Receiver<ForeignProxyScan>;

    /// Posts a scan that a handover made.
    fn post_scan(&self, scan: ForeignProxyScan);

    /// What all scans until now say of the kube-proxy that wrote the rules.
    fn rules_writer(&self) -> RulesWriter;

    /// Which proxy serves the node's Services.
    fn serving_state(&self) -> ServingState;

    /// Changes which proxy serves: the agent programs or withdraws its rules, and listens on a
    /// proxy's ports or releases them.
    fn post_serving_state(&self, serving_state: ServingState);

    /// Posts what prevents the handover that the profile requests; `None` if nothing does.
    fn post_refusal(&self, refusal: Option<String>);
}

/// The settings and the desired state of a node.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// The settings in force.
    pub effective: Arc<EffectiveConfig>,
    /// The desired state of the kernel; `None` before the first compilation.
    pub desired: Option<Dataplane>,
}
