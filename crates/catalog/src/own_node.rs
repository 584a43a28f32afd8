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
    /// The newest address the object ever gave in each family. An object that is created again
    /// starts without addresses, and gets them from a cloud provider some time later; the node has
    /// had them all along.
    pub last_given: LastGiven,
    /// `spec.podCIDRs`, in their order; after them, of each family in which there is none now, the
    /// last ones there were. An object that is created again starts without them, too.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether it is to stay.
    pub standing: NodeStanding,
}

/// The newest address of each family that a Node object ever gave. Whether the node still has it is
/// for those to find out who know its interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastGiven {
    /// The IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// The IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
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

// === impl LastGiven ===

impl LastGiven {
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
