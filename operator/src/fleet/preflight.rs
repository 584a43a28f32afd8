//! What keeps a node from taking Services over from kube-proxy: something that starts kube-proxy on
//! it again. The agent looks for what only the node shows, such as ports that close.

use std::{collections::BTreeMap, sync::Arc};

use crds::{
    effective::hash::ConfigHash,
    node_proxy::NodeProxySpec,
    placement::Candidate,
    profile::handover::Handover,
    starter::{STOP_KUBE_PROXY, Serving, Starters},
};

use crate::{
    fleet::{
        findings::first,
        member::{DesiredNodeProxy, Member},
        node_progress::NodeProgress,
        waves::nodes,
    },
    records::NodeRecord,
    starter::KubeProxyStarter,
};

/// What is known of the ways in which kube-proxy is started.
#[derive(Debug)]
pub(super) enum Preflight<'a> {
    Known(Starters<'a>),
    /// The operator may not read the DaemonSet of kube-proxy.
    Forbidden,
}

/// Why a node must not take Services over yet, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hold {
    what: &'static str,
    next: &'static str,
}

const UNREAD: Hold = Hold {
    what: "the operator may not read DaemonSet kube-system/kube-proxy, which may start kube-proxy again",
    next: "grant it Role signpost-operator-kube-proxy of namespace kube-system, which the chart and the manifests have",
};

/// How many kinds of obstacles are described.
const MOST_DESCRIBED: usize = 2;
/// The maximum length of `RolloutStatus::waiting_for`, less what a wave adds to it.
const LONGEST: usize = 2048;

// === impl Preflight ===

impl<'a> Preflight<'a> {
    pub(super) fn of(starter: &'a KubeProxyStarter, nodes: &BTreeMap<String, NodeRecord>) -> Self {
        let daemon_set = match starter {
            KubeProxyStarter::Absent => None,
            KubeProxyStarter::Present(set) => Some(&**set),
            KubeProxyStarter::Forbidden => return Self::Forbidden,
        };
        let marks = nodes.values().map(|node| node.marks);
        Self::Known(Starters::of(daemon_set, marks))
    }

    /// Returns why the node must not take Services over yet; `None` if it may, if nothing asks it
    /// to, or if its present configuration does already.
    pub(super) fn hold(&self, member: &Member<'_>) -> Option<Hold> {
        // A node without a configuration may get the proven one, which may ask for it.
        let may_be_asked =
            member.current().is_none() || member.effective.config.handover == Handover::Takeover;
        if !may_be_asked || member.was_asked_to_take_over() {
            return None;
        }
        let conditions = member.status().map_or(&[][..], |status| &status.conditions);
        let serving = Serving::of(conditions);
        let Self::Known(starters) = self else {
            // Without rules of kube-proxy, nothing changes hands.
            return (serving != Serving::Signpost).then_some(UNREAD);
        };
        let node = member.node;
        let candidate = Candidate {
            name: &node.name,
            labels: &node.labels,
            taints: &node.taints,
        };
        let what = starters.next_start(candidate, node.marks, serving)?;
        let next = starters.stop(Some(node.marks));
        Some(Hold { what, next })
    }
}

// === impl Member ===

impl Member<'_> {
    /// Whether the node is to change to the configuration and must not yet.
    pub(super) fn is_held(&self, progress: &NodeProgress) -> bool {
        self.hold.is_some() && matches!(progress, NodeProgress::Behind(_))
    }

    fn was_asked_to_take_over(&self) -> bool {
        let proxy = self.proxy.or(self.departed);
        let spec = proxy.and_then(|proxy| proxy.spec.as_ref());
        spec.is_some_and(|spec| spec.config.handover == Handover::Takeover)
    }

    /// Returns `desired` without the takeover that the node must not begin yet. A node without any
    /// configuration is served by Signpost beside kube-proxy meanwhile.
    pub(super) fn without_early_takeover(&self, desired: DesiredNodeProxy) -> DesiredNodeProxy {
        if self.hold.is_none() || desired.spec.config.handover != Handover::Takeover {
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

/// Describes what the nodes that are held wait for; `None` if none is.
pub(super) fn describe(members: &[Member<'_>], node_progress: &[NodeProgress]) -> Option<String> {
    let mut held: BTreeMap<Hold, Vec<String>> = BTreeMap::new();
    for (member, progress) in members.iter().zip(node_progress) {
        if let Some(hold) = member.hold.filter(|_| member.is_held(progress)) {
            held.entry(hold).or_default().push(member.name().to_owned());
        }
    }
    let others: usize = held.values().skip(MOST_DESCRIBED).map(Vec::len).sum();
    let texts = held.into_iter().take(MOST_DESCRIBED).map(|(hold, names)| {
        let next = match hold.next {
            STOP_KUBE_PROXY => "next, on all nodes of the cluster",
            _ => "next",
        };
        format!(
            "{}: {} ({next}: {}) on {}",
            nodes(names.len()),
            hold.what,
            hold.next,
            first(&names)
        )
    });
    let mut texts: Vec<String> = texts.collect();
    if others > 0 {
        texts.push(format!("{} for other reasons", nodes(others)));
    }
    let text = format!("kube-proxy to stay stopped: {}", texts.join("; "));
    (!texts.is_empty()).then(|| text.chars().take(LONGEST).collect())
}
