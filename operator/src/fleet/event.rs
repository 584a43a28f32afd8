//! What the fleet hears of.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use crate::{
    agent_daemon_set::AgentDaemonSet,
    fleet::{object_cache::ObjectChange, watch_health::WatchSignal},
    kube_proxy_daemon_set::KubeProxyDaemonSetState,
    records::{NodeProxyRecord, NodeRecord, ProfileRecord},
};

/// A change reported by a watch, by a list of Leases or by the answer to a write.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A change of profiles.
    Profile(ObjectChange<ProfileRecord>),
    /// The status of a profile was written.
    Reported {
        /// The profile.
        record: Box<ProfileRecord>,
        /// The fields of the status that the API server does not know.
        unknown_fields: BTreeSet<String>,
    },
    /// A change of nodes.
    Node(ObjectChange<NodeRecord>),
    /// A change of NodeProxies.
    Proxy(ObjectChange<NodeProxyRecord>),
    /// A change of the agents' DaemonSets.
    AgentDaemonSet(ObjectChange<AgentDaemonSet>),
    /// What is known of the DaemonSet of kube-proxy.
    KubeProxyDaemonSet(KubeProxyDaemonSetState),
    /// A watch, or a list, has failed and is tried again, or works again.
    Watch {
        /// What it is of.
        kind: &'static str,
        /// What happened.
        signal: WatchSignal,
        /// When.
        at: Instant,
    },
    /// The resource versions of the agents' Leases.
    Leases {
        /// The versions by node name.
        versions: BTreeMap<String, String>,
        /// When the operator requested the list.
        at: Instant,
    },
}
