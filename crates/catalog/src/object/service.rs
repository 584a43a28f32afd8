//! v1 Service.

use dataplane::ObjectKind;
use serde::Deserialize;

use super::shape::{object, object_or_null, objects_or_null, values_or_null};
use super::{Field, Metadata, Object};
use crate::ObjectKey;

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Service {
    /// `metadata`.
    #[serde(deserialize_with = "object")]
    pub metadata: Metadata,
    /// `spec`.
    #[serde(default, deserialize_with = "object_or_null")]
    pub spec: ServiceSpec,
    /// `status`.
    #[serde(default, deserialize_with = "object_or_null")]
    pub status: ServiceStatus,
}

/// `spec` of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `type`.
    #[serde(rename = "type")]
    pub kind: Field<String>,
    /// `clusterIP`; the API uses the text `None` for headless Services.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Field<String>,
    /// `clusterIPs`.
    #[serde(rename = "clusterIPs", deserialize_with = "values_or_null")]
    pub cluster_ips: Vec<Field<String>>,
    /// `ipFamilies`; the n-th is the family of the n-th cluster IP.
    #[serde(deserialize_with = "values_or_null")]
    pub ip_families: Vec<Field<String>>,
    /// `externalIPs`.
    #[serde(rename = "externalIPs", deserialize_with = "values_or_null")]
    pub external_ips: Vec<Field<String>>,
    /// `loadBalancerSourceRanges`.
    #[serde(deserialize_with = "values_or_null")]
    pub load_balancer_source_ranges: Vec<Field<String>>,
    /// `sessionAffinity`.
    pub session_affinity: Field<String>,
    /// `sessionAffinityConfig`.
    #[serde(deserialize_with = "object_or_null")]
    pub session_affinity_config: SessionAffinityConfig,
    /// `internalTrafficPolicy`.
    pub internal_traffic_policy: Field<String>,
    /// `externalTrafficPolicy`.
    pub external_traffic_policy: Field<String>,
    /// `healthCheckNodePort`.
    pub health_check_node_port: Field<i64>,
    /// `ports`.
    #[serde(deserialize_with = "objects_or_null")]
    pub ports: Vec<ServicePort>,
}

/// An entry of `spec.ports`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// `name`.
    pub name: Field<String>,
    /// `protocol`.
    pub protocol: Field<String>,
    /// `port`.
    pub port: Field<i64>,
    /// `nodePort`.
    pub node_port: Field<i64>,
}

/// `spec.sessionAffinityConfig`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    /// `clientIP`.
    #[serde(rename = "clientIP", deserialize_with = "object_or_null")]
    pub client_ip: ClientIpConfig,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    /// `timeoutSeconds`, in seconds.
    pub timeout_seconds: Field<i64>,
}

/// `status` of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// `loadBalancer`.
    #[serde(deserialize_with = "object_or_null")]
    pub load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// `ingress`.
    #[serde(deserialize_with = "objects_or_null")]
    pub ingress: Vec<Ingress>,
}

/// An entry of `status.loadBalancer.ingress`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ingress {
    /// `ip`; absent if the load balancer only has a host name.
    pub ip: Field<String>,
    /// `ipMode`: `VIP` or `Proxy`.
    pub ip_mode: Field<String>,
}

impl Object for Service {
    const KIND: ObjectKind = ObjectKind::Service;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn key(&self) -> ObjectKey {
        self.metadata.namespaced_key()
    }
}
