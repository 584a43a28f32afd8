//! This node's own Node object.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use dataplane::Family;
use ipnet::IpNet;

/// The content of the Node object. What the kernel knows about the node (its own addresses) is not
/// here.
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
    /// The last address of each family that the object has had. An object that is created again
    /// starts without addresses and gets them from a cloud provider some time later; the node keeps
    /// them all along.
    pub last_given: LastKnownAddresses,
    /// `spec.podCIDRs`, in their order, followed by the last known ranges of each family that has
    /// none now. An object that is created again starts without them, too.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether the node is being removed.
    pub lifecycle: NodeLifecycle,
}

/// The last address of each family that a Node object has had. Whether the node still has it must
/// be checked against its interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastKnownAddresses {
    /// The IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// The IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
}

/// Whether a Node is being removed. Traffic is served in every state; the state only decides
/// whether load balancers outside the cluster should still send traffic to this node (KEP-3836).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeLifecycle {
    /// It is not being removed.
    Staying,
    /// It has the taint `ToBeDeletedByClusterAutoscaler`.
    MarkedByAutoscaler,
    /// It has a deletion timestamp.
    BeingDeleted,
    /// The object was deleted while this process runs. Everything else keeps its last value:
    /// without its pod ranges, all traffic of the node's pods would suddenly be masqueraded.
    Gone,
}

// === impl OwnNode ===

impl OwnNode {
    /// The address of `family` by which other nodes reach this one.
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        one_of(self.ipv4, self.ipv6, family)
    }

    /// The first pod range of `family`.
    pub fn pod_cidr(&self, family: Family) -> Option<IpNet> {
        self.pod_cidrs
            .iter()
            .find(|cidr| Family::of(cidr.addr()) == family)
            .copied()
    }
}

// === impl LastKnownAddresses ===

impl LastKnownAddresses {
    /// The address of `family`.
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        one_of(self.ipv4, self.ipv6, family)
    }
}

fn one_of(ipv4: Option<Ipv4Addr>, ipv6: Option<Ipv6Addr>, family: Family) -> Option<IpAddr> {
    match family {
        Family::Ipv4 => ipv4.map(IpAddr::V4),
        Family::Ipv6 => ipv6.map(IpAddr::V6),
    }
}
