//! Compares the Services in kube-proxy's rules with those that Signpost serves.

use std::collections::BTreeSet;
use std::net::IpAddr;

use dataplane::{Dataplane, Family, Frontend, FrontendKey, FrontendKind, TrafficPolicy};
use netlink::Socket;
use nftables_model::{FrontendFields, parse_frontend};
use xtables::Variant;

use super::kernel::{ScanError, TABLE, open};
use super::node_ports::observe_cluster_ips;

/// kube-proxy's maps of redirected and refused Services, by address and by node port
/// (pkg/proxy/nftables/proxier.go). Their keys are like those of Signpost's sets.
const MAPS: [(&str, FrontendFields); 4] = [
    ("service-ips", FrontendFields::AddressAndPort),
    ("no-endpoint-services", FrontendFields::AddressAndPort),
    ("service-nodeports", FrontendFields::Port),
    ("no-endpoint-nodeports", FrontendFields::Port),
];

/// What only one of the two proxies serves.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// What only kube-proxy's maps contain.
    pub only_foreign: Vec<FrontendKey>,
    /// What only Signpost serves.
    pub only_own: Vec<FrontendKey>,
}

/// Compares the frontends of one family in `desired` with kube-proxy's, redirected and refused
/// alike.
pub fn observe_difference(desired: &Dataplane, family: Family) -> Result<Difference, ScanError> {
    let mut socket = open()?;
    let mut foreign = BTreeSet::new();
    for (map, fields) in MAPS {
        foreign.extend(observe_frontends(&mut socket, family, map, fields)?);
    }
    let own: BTreeSet<FrontendKey> = frontends(desired, family).collect();
    Ok(Difference {
        only_foreign: foreign.difference(&own).copied().collect(),
        only_own: own.difference(&foreign).copied().collect(),
    })
}

/// Returns the cluster IPs with endpoints of one family in `desired` that no rule of kube-proxy's mode
/// iptables is for. kube-proxy leads packets to its chains before it fills them with its first sync,
/// which takes minutes in a large cluster.
pub fn observe_without_rule(
    desired: &Dataplane,
    family: Family,
    variant: Variant,
) -> Result<Vec<FrontendKey>, ScanError> {
    let ruled: BTreeSet<IpAddr> = observe_cluster_ips(family, variant)?;
    let all = desired.frontends().iter();
    let without_rule = all.filter_map(|(key, claims)| match *key {
        FrontendKey::Address { address, .. } if Family::of(address) == family => {
            let (_, frontend) = claims.winner();
            (is_redirected(frontend) && !ruled.contains(&address)).then_some(*key)
        }
        FrontendKey::Address { .. } | FrontendKey::NodePort { .. } => None,
    });
    Ok(without_rule.collect())
}

/// Whether packets to a cluster IP are redirected, not refused or dropped.
fn is_redirected(frontend: &Frontend) -> bool {
    let targets = match frontend.policy {
        TrafficPolicy::Cluster => &frontend.cluster,
        TrafficPolicy::Local => &frontend.local,
    };
    frontend.kind == FrontendKind::ClusterIp && !targets.is_empty()
}

/// The frontends of one family.
pub fn frontends(desired: &Dataplane, family: Family) -> impl Iterator<Item = FrontendKey> {
    let keys = desired.frontends().iter().map(|(key, _)| *key);
    keys.filter(move |key| key.family() == family)
}

fn observe_frontends(
    socket: &mut Socket,
    family: Family,
    map: &str,
    fields: FrontendFields,
) -> Result<Vec<FrontendKey>, ScanError> {
    let elements = socket.observe_elements(family, TABLE, map);
    let elements = elements.map_err(ScanError::Observe)?.into_iter();
    let keys = elements.filter_map(|(key, _)| parse_frontend(family, fields, key.as_slice()));
    Ok(keys.collect())
}
