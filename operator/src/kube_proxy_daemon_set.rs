//! DaemonSet kube-system/kube-proxy, which starts kube-proxy on the nodes that it selects.

use crds::starter::KubeProxyDaemonSet;
use kube::core::DynamicObject;
use serde_json::Value;

use crate::fleet::ObjectChange;

/// What the operator knows of the DaemonSet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KubeProxyDaemonSetState {
    /// There is none, or it is being deleted.
    Absent,
    /// There is one.
    Present(Box<KubeProxyDaemonSet>),
    /// The operator may not read it.
    Forbidden,
}

/// Parses `daemon_set`; `None` if it is being deleted.
pub(crate) fn parse(daemon_set: DynamicObject) -> Option<KubeProxyDaemonSet> {
    let spec = daemon_set.data.get("spec").unwrap_or(&Value::Null);
    KubeProxyDaemonSet::parse(&daemon_set.metadata, spec)
}

// === impl KubeProxyDaemonSetState ===

impl KubeProxyDaemonSetState {
    /// Returns what is known after `change`; `None` if that is the same as before.
    pub(crate) fn after(change: ObjectChange<Option<KubeProxyDaemonSet>>) -> Option<Self> {
        let set = match change {
            ObjectChange::Applied(set) => *set,
            ObjectChange::Deleted(_) => None,
            ObjectChange::ListRequested => return None,
            ObjectChange::Listed(sets) => sets.into_iter().flatten().next(),
        };
        Some(set.map_or(Self::Absent, |set| Self::Present(Box::new(set))))
    }
}
