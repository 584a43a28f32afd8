//! How a node distinguishes traffic of its own Pods from other traffic.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    address::Cidr,
    rule::{
        self, BRIDGE_REQUIRED, CLUSTER_CIDRS_FAMILIES, CLUSTER_CIDRS_REQUIRED, INTERFACE_NAME,
        PREFIX_REQUIRED,
    },
};

/// How a node distinguishes traffic of its own Pods from other traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rule::list(&[
    &CLUSTER_CIDRS_REQUIRED, &CLUSTER_CIDRS_FAMILIES, &BRIDGE_REQUIRED, &PREFIX_REQUIRED,
])))]
pub struct DetectLocal {
    /// NodeCIDR (default): a source address in the Node's spec.podCIDRs. ClusterCIDR: a source address in clusterCIDRs.
    /// BridgeInterface: arrived on that bridge. InterfaceNamePrefix: arrived on an interface whose name begins so.
    pub mode: DetectLocalMode,

    /// The addresses of all Pods, at most one CIDR of each family. Required in mode ClusterCIDR, where kube-proxy without
    /// CIDRs would silently treat no traffic as local; other modes do not read it.
    #[serde(rename = "clusterCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub cluster_cidrs: Vec<Cidr>,

    /// The bridge that Pods are attached to, at most 15 letters. Required in mode BridgeInterface; other modes do not read it.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 15), extend("x-kubernetes-validations" = rule::list(&[&INTERFACE_NAME])))]
    pub bridge_interface: String,

    /// How the names of the node's ends of Pod interfaces begin, at most 15 letters. Required in mode
    /// InterfaceNamePrefix; other modes do not read it.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 15), extend("x-kubernetes-validations" = rule::list(&[&INTERFACE_NAME])))]
    pub interface_name_prefix: String,
}

/// What makes traffic local to a node.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
pub enum DetectLocalMode {
    /// A source address in the Node's own Pod CIDRs.
    #[default]
    #[serde(rename = "NodeCIDR")]
    NodeCidr,
    /// A source address in the cluster's Pod CIDRs.
    #[serde(rename = "ClusterCIDR")]
    ClusterCidr,
    /// Arrival on one bridge.
    BridgeInterface,
    /// Arrival on an interface whose name begins in a certain way.
    InterfaceNamePrefix,
}
