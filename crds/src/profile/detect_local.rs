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
    /// Which packets count as traffic of the node's Pods. NodeCIDR (default): those with a source address in
    /// spec.podCIDRs of its Node. ClusterCIDR: those with a source address in clusterCIDRs. BridgeInterface: those that
    /// arrive on the bridge in bridgeInterface. InterfaceNamePrefix: those that arrive on an interface whose name begins
    /// with interfaceNamePrefix.
    pub mode: DetectLocalMode,

    /// The addresses of all Pods of the cluster, at most one CIDR of each family. Required with mode ClusterCIDR, without
    /// effect with others.
    #[serde(rename = "clusterCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub cluster_cidrs: Vec<Cidr>,

    /// The name of the bridge to which the node's Pods are attached, such as cbr0, at most 15 characters. Required with
    /// mode BridgeInterface, without effect with others.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 15), extend("x-kubernetes-validations" = rule::list(&[&INTERFACE_NAME])))]
    pub bridge_interface: String,

    /// The beginning of the names of the interfaces that lead to the node's Pods, such as veth, at most 15 characters.
    /// Required with mode InterfaceNamePrefix, without effect with others.
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
