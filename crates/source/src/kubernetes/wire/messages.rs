//! The messages of the Kubernetes API, limited to the fields that are used; decoding skips the
//! others.
//!
//! Names and numbers are those of `generated.proto` in k8s.io/api (core/v1, discovery/v1) and
//! k8s.io/apimachinery (pkg/apis/meta/v1, pkg/runtime) of Kubernetes 1.36. A field that is a
//! pointer in Go is optional here. Go writes every other field even if it is empty, but omits it
//! from JSON.

use std::collections::BTreeMap;

use prost::Message;
use prost::bytes::Bytes;

// === k8s.io/apimachinery/pkg/runtime ===

/// The envelope of each list, object and status.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Unknown {
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) raw: Bytes,
}

// === k8s.io/apimachinery/pkg/apis/meta/v1 ===

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchEvent {
    #[prost(string, tag = "1")]
    pub(super) kind: String,
    #[prost(message, optional, tag = "2")]
    pub(super) object: Option<RawExtension>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(string, tag = "3")]
    pub(super) message: String,
    #[prost(string, tag = "4")]
    pub(super) reason: String,
    #[prost(int32, tag = "6")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListMeta {
    #[prost(string, tag = "2")]
    pub(super) resource_version: String,
    #[prost(string, tag = "3")]
    pub(super) continued: String,
}

/// The part of an object of any kind that identifies it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<HeaderMeta>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderMeta {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
    #[prost(string, tag = "6")]
    pub(super) resource_version: String,
    #[prost(message, repeated, tag = "12")]
    pub(super) annotations: Vec<Annotation>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ObjectMeta {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
    #[prost(string, tag = "5")]
    pub(super) uid: String,
    #[prost(string, tag = "6")]
    pub(super) resource_version: String,
    #[prost(message, optional, tag = "8")]
    pub(super) creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    pub(super) deletion_timestamp: Option<Time>,
    #[prost(btree_map = "string, string", tag = "11")]
    pub(super) labels: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "12")]
    pub(super) annotations: Vec<Annotation>,
}

/// An entry of a map, not copied: most annotations are not used, and some are as large as the rest
/// of the object.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Annotation {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Time {
    /// Absent for Go's zero time.
    #[prost(int64, optional, tag = "1")]
    pub(super) seconds: Option<i64>,
}

// === k8s.io/api/core/v1 ===

#[derive(Clone, PartialEq, Message)]
pub(super) struct Service {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(super) spec: Option<ServiceSpec>,
    #[prost(message, optional, tag = "3")]
    pub(super) status: Option<ServiceStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServiceSpec {
    #[prost(message, repeated, tag = "1")]
    pub(super) ports: Vec<ServicePort>,
    #[prost(string, tag = "3")]
    pub(super) cluster_ip: String,
    #[prost(string, tag = "4")]
    pub(super) kind: String,
    #[prost(string, repeated, tag = "5")]
    pub(super) external_ips: Vec<String>,
    #[prost(string, tag = "7")]
    pub(super) session_affinity: String,
    #[prost(string, repeated, tag = "9")]
    pub(super) load_balancer_source_ranges: Vec<String>,
    #[prost(string, tag = "11")]
    pub(super) external_traffic_policy: String,
    #[prost(int32, tag = "12")]
    pub(super) health_check_node_port: i32,
    #[prost(message, optional, tag = "14")]
    pub(super) session_affinity_config: Option<SessionAffinityConfig>,
    #[prost(string, repeated, tag = "18")]
    pub(super) cluster_ips: Vec<String>,
    #[prost(string, repeated, tag = "19")]
    pub(super) ip_families: Vec<String>,
    #[prost(string, optional, tag = "22")]
    pub(super) internal_traffic_policy: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServicePort {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) protocol: String,
    #[prost(int32, tag = "3")]
    pub(super) port: i32,
    #[prost(int32, tag = "5")]
    pub(super) node_port: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionAffinityConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) client_ip: Option<ClientIpConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClientIpConfig {
    #[prost(int32, optional, tag = "1")]
    pub(super) timeout_seconds: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServiceStatus {
    #[prost(message, optional, tag = "1")]
    pub(super) load_balancer: Option<LoadBalancerStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LoadBalancerStatus {
    #[prost(message, repeated, tag = "1")]
    pub(super) ingress: Vec<LoadBalancerIngress>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LoadBalancerIngress {
    #[prost(string, tag = "1")]
    pub(super) ip: String,
    #[prost(string, optional, tag = "3")]
    pub(super) ip_mode: Option<String>,
}

// === k8s.io/api/discovery/v1 ===

#[derive(Clone, PartialEq, Message)]
pub(super) struct EndpointSlice {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, repeated, tag = "2")]
    pub(super) endpoints: Vec<Endpoint>,
    #[prost(message, repeated, tag = "3")]
    pub(super) ports: Vec<EndpointPort>,
    #[prost(string, tag = "4")]
    pub(super) address_type: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Endpoint {
    #[prost(string, repeated, tag = "1")]
    pub(super) addresses: Vec<String>,
    #[prost(message, optional, tag = "2")]
    pub(super) conditions: Option<EndpointConditions>,
    #[prost(string, optional, tag = "6")]
    pub(super) node_name: Option<String>,
    #[prost(message, optional, tag = "8")]
    pub(super) hints: Option<EndpointHints>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EndpointConditions {
    #[prost(bool, optional, tag = "1")]
    pub(super) ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    pub(super) serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    pub(super) terminating: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EndpointHints {
    #[prost(message, repeated, tag = "1")]
    pub(super) for_zones: Vec<HintTarget>,
    #[prost(message, repeated, tag = "2")]
    pub(super) for_nodes: Vec<HintTarget>,
}

/// `ForZone` or `ForNode`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HintTarget {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EndpointPort {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) protocol: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub(super) port: Option<i32>,
}
