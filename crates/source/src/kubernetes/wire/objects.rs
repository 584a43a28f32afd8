//! Converts messages to the catalog's objects: equal to those decoded from JSON.

use std::collections::BTreeMap;

use catalog::object::{
    ClientIpConfig, Conditions, EndpointSlice, Field, HintTarget, Ingress,
    LAST_CHANGE_TRIGGER_TIME, LoadBalancerStatus, Metadata, Service, ServicePort, ServiceSpec,
    ServiceStatus, SessionAffinityConfig, SliceEndpoint, SliceHints, SlicePort,
};
use jiff::Timestamp;
use prost::bytes::Bytes;
use prost::{DecodeError, Message};

use super::{given, messages};

/// Decodes a Service.
///
/// # Errors
///
/// Fails if the bytes are not a Service.
pub(super) fn service(bytes: Bytes) -> Result<Service, DecodeError> {
    messages::Service::decode(bytes).map(Service::from)
}

/// Decodes an EndpointSlice.
///
/// # Errors
///
/// Fails if the bytes are not an EndpointSlice.
pub(super) fn endpoint_slice(bytes: Bytes) -> Result<EndpointSlice, DecodeError> {
    messages::EndpointSlice::decode(bytes).map(EndpointSlice::from)
}

/// A text that Go omits from JSON if it is empty.
fn unless_empty(text: String) -> Field<String> {
    given(text).map_or(Field::Absent, Field::Given)
}

/// A number that Go omits from JSON if it is zero.
fn unless_zero(number: i32) -> Field<i64> {
    match number {
        0 => Field::Absent,
        number => Field::Given(number.into()),
    }
}

/// A value that is a pointer in Go.
fn if_given<T, F: From<T>>(value: Option<T>) -> Field<F> {
    value.map_or(Field::Absent, |value| Field::Given(value.into()))
}

fn all_given(values: Vec<String>) -> Vec<Field<String>> {
    values.into_iter().map(Field::Given).collect()
}

fn all<M, T: From<M>>(messages: Vec<M>) -> Vec<T> {
    messages.into_iter().map(T::from).collect()
}

// === impl Metadata ===

impl From<messages::ObjectMeta> for Metadata {
    fn from(meta: messages::ObjectMeta) -> Metadata {
        Metadata {
            name: meta.name,
            namespace: given(meta.namespace),
            uid: given(meta.uid),
            resource_version: given(meta.resource_version),
            creation_timestamp: meta.creation_timestamp.and_then(in_words),
            deletion_timestamp: meta.deletion_timestamp.and_then(in_words),
            labels: meta.labels,
            annotations: read_annotations(&meta.annotations),
        }
    }
}

/// Formats a time in RFC 3339, as in JSON, with a resolution of one second.
fn in_words(time: messages::Time) -> Option<String> {
    let time = Timestamp::from_second(time.seconds?).ok()?;
    Some(time.to_string())
}

fn read_annotations(annotations: &[messages::Annotation]) -> BTreeMap<String, String> {
    let read = [LAST_CHANGE_TRIGGER_TIME, dataplane::Service::SCHEDULER];
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    annotations
        .iter()
        .filter(|annotation| read.iter().any(|key| annotation.key == key.as_bytes()))
        .map(|annotation| (text(&annotation.key), text(&annotation.value)))
        .collect()
}

// === impl Service ===

impl From<messages::Service> for Service {
    fn from(service: messages::Service) -> Service {
        Service {
            metadata: service.metadata.unwrap_or_default().into(),
            spec: service.spec.unwrap_or_default().into(),
            status: service.status.unwrap_or_default().into(),
        }
    }
}

impl From<messages::ServiceSpec> for ServiceSpec {
    fn from(spec: messages::ServiceSpec) -> ServiceSpec {
        ServiceSpec {
            kind: unless_empty(spec.kind),
            cluster_ip: unless_empty(spec.cluster_ip),
            cluster_ips: all_given(spec.cluster_ips),
            ip_families: all_given(spec.ip_families),
            external_ips: all_given(spec.external_ips),
            load_balancer_source_ranges: all_given(spec.load_balancer_source_ranges),
            session_affinity: unless_empty(spec.session_affinity),
            session_affinity_config: spec.session_affinity_config.unwrap_or_default().into(),
            internal_traffic_policy: if_given(spec.internal_traffic_policy),
            external_traffic_policy: unless_empty(spec.external_traffic_policy),
            health_check_node_port: unless_zero(spec.health_check_node_port),
            ports: all(spec.ports),
        }
    }
}

impl From<messages::ServicePort> for ServicePort {
    fn from(port: messages::ServicePort) -> ServicePort {
        ServicePort {
            name: unless_empty(port.name),
            protocol: unless_empty(port.protocol),
            port: Field::Given(port.port.into()),
            node_port: unless_zero(port.node_port),
        }
    }
}

impl From<messages::SessionAffinityConfig> for SessionAffinityConfig {
    fn from(config: messages::SessionAffinityConfig) -> SessionAffinityConfig {
        let client_ip = config.client_ip.unwrap_or_default();
        SessionAffinityConfig {
            client_ip: ClientIpConfig {
                timeout_seconds: if_given(client_ip.timeout_seconds),
            },
        }
    }
}

impl From<messages::ServiceStatus> for ServiceStatus {
    fn from(status: messages::ServiceStatus) -> ServiceStatus {
        ServiceStatus {
            load_balancer: LoadBalancerStatus {
                ingress: all(status.load_balancer.unwrap_or_default().ingress),
            },
        }
    }
}

impl From<messages::LoadBalancerIngress> for Ingress {
    fn from(ingress: messages::LoadBalancerIngress) -> Ingress {
        Ingress {
            ip: unless_empty(ingress.ip),
            ip_mode: if_given(ingress.ip_mode),
        }
    }
}

// === impl EndpointSlice ===

impl From<messages::EndpointSlice> for EndpointSlice {
    fn from(slice: messages::EndpointSlice) -> EndpointSlice {
        EndpointSlice {
            metadata: slice.metadata.unwrap_or_default().into(),
            address_type: Field::Given(slice.address_type),
            endpoints: all(slice.endpoints),
            ports: all(slice.ports),
        }
    }
}

impl From<messages::Endpoint> for SliceEndpoint {
    fn from(endpoint: messages::Endpoint) -> SliceEndpoint {
        let conditions = endpoint.conditions.unwrap_or_default();
        let hints = endpoint.hints.unwrap_or_default();
        SliceEndpoint {
            addresses: all_given(endpoint.addresses),
            conditions: Conditions {
                ready: if_given(conditions.ready),
                serving: if_given(conditions.serving),
                terminating: if_given(conditions.terminating),
            },
            node_name: if_given(endpoint.node_name),
            hints: SliceHints {
                for_zones: all(hints.for_zones),
                for_nodes: all(hints.for_nodes),
            },
        }
    }
}

impl From<messages::HintTarget> for HintTarget {
    fn from(target: messages::HintTarget) -> HintTarget {
        HintTarget {
            name: Field::Given(target.name),
        }
    }
}

impl From<messages::EndpointPort> for SlicePort {
    fn from(port: messages::EndpointPort) -> SlicePort {
        SlicePort {
            name: if_given(port.name),
            protocol: if_given(port.protocol),
            port: if_given(port.port),
        }
    }
}
