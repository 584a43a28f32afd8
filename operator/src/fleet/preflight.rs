//! What keeps a node from taking Services over from kube-proxy: something that starts kube-proxy on
//! it again. The agent looks for what only the node shows, such as ports that close.

use std::{collections::BTreeMap, sync::Arc};

use crds::{
    effective::hash::ConfigHash,
    node_proxy::NodeProxySpec,
    placement::Candidate,
    profile::handover::Handover,
    starter::{MAY_BE_STARTED, STOP_KUBE_PROXY, Serving, Starters},
};

use crate::{
    fleet::{
        desired_node_proxy::DesiredNodeProxy,
        node_progress::NodeProgress,
        profile_node::ProfileNode,
        profile_status::{first_names, node_count},
    },
    kube_proxy_daemon_set::KubeProxyDaemonSetState,
    records::NodeRecord,
};

/// What is known of the ways in which kube-proxy is started.
#[derive(Debug)]
pub(super) enum Preflight<'a> {
    Known(Starters<'a>),
    /// The operator may not read the DaemonSet of kube-proxy.
    Forbidden,
}

/// What starts kube-proxy on a node again, or may start it, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KubeProxyRestart {
    cause: &'static str,
    remedy: &'static str,
}

const DAEMON_SET_FORBIDDEN: KubeProxyRestart = KubeProxyRestart {
    cause: "the operator may not read DaemonSet kube-system/kube-proxy, which may start kube-proxy again",
    remedy: "grant it Role signpost-operator-kube-proxy of namespace kube-system, which the chart and the manifests have",
};

/// How many restarts are described.
const MOST_DESCRIBED: usize = 2;
/// The maximum length of `RolloutStatus::waiting_for`, less what a wave adds to it.
const LONGEST: usize = 2048;

// === impl Preflight ===

impl<'a> Preflight<'a> {
    pub(super) fn of(
        daemon_set: &'a KubeProxyDaemonSetState,
        nodes: &BTreeMap<String, NodeRecord>,
    ) -> Self {
        let daemon_set = match daemon_set {
            KubeProxyDaemonSetState::Absent => None,
            KubeProxyDaemonSetState::Present(set) => Some(&**set),
            KubeProxyDaemonSetState::Forbidden => return Self::Forbidden,
        };
        let marks = nodes.values().map(|node| node.marks);
        Self::Known(Starters::of(daemon_set, marks))
    }

    /// Returns why the node must not take Services over yet; `None` if it may, if nothing asks it
    /// to, or if its present configuration does already.
    pub(super) fn takeover_block(&self, member: &ProfileNode<'_>) -> Option<KubeProxyRestart> {
        // A node without a configuration may get the proven one, which may ask for it.
        let may_be_asked =
            member.current().is_none() || member.effective.config.handover == Handover::Takeover;
        if !may_be_asked || member.was_asked_to_take_over() {
            return None;
        }
        let serving = member.serving();
        let Self::Known(starters) = self else {
            // Without rules of kube-proxy, nothing changes hands.
            return (serving != Serving::Signpost).then_some(DAEMON_SET_FORBIDDEN);
        };
        let node = member.node;
        let candidate = Candidate {
            name: &node.name,
            labels: &node.labels,
            taints: &node.taints,
        };
        let cause = starters.next_start(candidate, node.marks, serving)?;
        let remedy = starters.stop(Some(node.marks));
        Some(KubeProxyRestart { cause, remedy })
    }

    /// Describes what may start kube-proxy again on nodes that take Services over or have done so;
    /// `None` if nothing may. It is not certain, so that it blocks no takeover.
    pub(super) fn describe_warnings(&self, members: &[ProfileNode<'_>]) -> Option<String> {
        let warnings = members.iter().filter_map(|member| {
            let warning = self.warning(member)?;
            Some((warning, member.name()))
        });
        let text = list(warnings)?;
        Some(cut(&format!("{MAY_BE_STARTED}{text}")))
    }

    fn warning(&self, member: &ProfileNode<'_>) -> Option<KubeProxyRestart> {
        let Self::Known(starters) = self else {
            return None;
        };
        let is_asked = member.effective.config.handover == Handover::Takeover;
        let marks = member.node.marks;
        let cause = starters.doubt(marks, member.serving())?;
        let remedy = starters.end_doubt(marks);
        (is_asked && member.takeover_block.is_none()).then_some(KubeProxyRestart { cause, remedy })
    }
}

// === impl ProfileNode ===

impl ProfileNode<'_> {
    /// Whether the node is to change to the configuration and must not yet.
    pub(super) fn is_takeover_blocked(&self, progress: &NodeProgress) -> bool {
        self.takeover_block.is_some() && matches!(progress, NodeProgress::Outdated(_))
    }

    /// Which proxy serves the node, as its agent reports.
    fn serving(&self) -> Serving {
        let conditions = self.status().map_or(&[][..], |status| &status.conditions);
        Serving::of(conditions)
    }

    fn was_asked_to_take_over(&self) -> bool {
        let proxy = self.proxy.or(self.deleted_proxy);
        let spec = proxy.and_then(|proxy| proxy.spec.as_ref());
        spec.is_some_and(|spec| spec.config.handover == Handover::Takeover)
    }

    /// Returns `desired` without the takeover that the node must not begin yet. A node without any
    /// configuration is served by Signpost beside kube-proxy meanwhile.
    pub(super) fn without_early_takeover(&self, desired: DesiredNodeProxy) -> DesiredNodeProxy {
        if self.takeover_block.is_none() || desired.spec.config.handover != Handover::Takeover {
            return desired;
        }
        DesiredNodeProxy {
            spec: Arc::new(without_handover(&desired.spec)),
            ..desired
        }
    }
}

/// Returns `spec` with its handover left to commands.
pub(super) fn without_handover(spec: &NodeProxySpec) -> NodeProxySpec {
    let mut spec = spec.clone();
    spec.config.handover = Handover::Manual;
    spec.config_hash = ConfigHash::of(&spec.config);
    spec.written_fields.retain(|field| field != "handover");
    spec
}

/// Describes what the nodes wait for whose takeover is blocked; `None` if there is none.
pub(super) fn describe_takeover_blocks(
    members: &[ProfileNode<'_>],
    node_progress: &[NodeProgress],
) -> Option<String> {
    let blocked = members.iter().zip(node_progress);
    let blocked = blocked.filter_map(|(member, progress)| {
        let block = member
            .takeover_block
            .filter(|_| member.is_takeover_blocked(progress))?;
        Some((block, member.name()))
    });
    let text = list(blocked)?;
    Some(cut(&format!("kube-proxy to stay stopped: {text}")))
}

/// Lists restarts with their nodes; `None` if there is none.
fn list<'a>(restarts: impl Iterator<Item = (KubeProxyRestart, &'a str)>) -> Option<String> {
    let mut names: BTreeMap<KubeProxyRestart, Vec<String>> = BTreeMap::new();
    for (restart, name) in restarts {
        names.entry(restart).or_default().push(name.to_owned());
    }
    let others: usize = names.values().skip(MOST_DESCRIBED).map(Vec::len).sum();
    let texts = names.into_iter().take(MOST_DESCRIBED);
    let texts = texts.map(|(KubeProxyRestart { cause, remedy }, names)| {
        let where_to = match remedy {
            STOP_KUBE_PROXY => "next, on all nodes of the cluster",
            _ => "next",
        };
        let count = node_count(names.len());
        format!(
            "{count}: {cause} ({where_to}: {remedy}) on {}",
            first_names(&names)
        )
    });
    let mut texts: Vec<String> = texts.collect();
    if others > 0 {
        texts.push(format!("{} for other reasons", node_count(others)));
    }
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Returns the beginning of `text` that the status has room for.
fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}
