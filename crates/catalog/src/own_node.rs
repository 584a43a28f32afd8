//! This process's own Node, as its object describes it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use dataplane::Family;
use ipnet::IpNet;

/// What the Node object says. What the kernel knows of the node (its own addresses) is not here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnNode {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels, for the node selectors of profiles.
    pub labels: BTreeMap<String, String>,
    /// The label `topology.kubernetes.io/zone`; an empty label counts as none.
    pub zone: Option<Arc<str>>,
    /// The first IPv4 address of `status.addresses`, InternalIPs before ExternalIPs.
    pub ipv4: Option<Ipv4Addr>,
    /// As `ipv4`, for the other family.
    pub ipv6: Option<Ipv6Addr>,
    /// `spec.podCIDRs`, in their order.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether it is to stay.
    pub standing: NodeStanding,
}

/// Whether a Node is to stay. Traffic is served whatever it is; it only decides whether load
/// balancers outside the cluster should still be sent here (KEP-3836).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeStanding {
    /// Nothing says otherwise.
    Staying,
    /// It has the taint `ToBeDeletedByClusterAutoscaler`.
    MarkedByAutoscaler,
    /// It has a deletion timestamp.
    BeingDeleted,
    /// The object is gone, while this process still runs. All else is as it last was: without its
    /// pod ranges every pod of this node would suddenly be masqueraded.
    Gone,
}

// === impl OwnNode ===

impl OwnNode {
    /// The address other nodes know this one by, of `family`.
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::Ipv4 => self.ipv4.map(IpAddr::V4),
            Family::Ipv6 => self.ipv6.map(IpAddr::V6),
        }
    }

    /// The first pod range of `family`.
    pub fn pod_cidr(&self, family: Family) -> Option<IpNet> {
        self.pod_cidrs
            .iter()
            .find(|cidr| Family::of(cidr.addr()) == family)
            .copied()
    }
}
