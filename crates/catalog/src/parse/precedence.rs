//! The order in which Services are programmed.

use dataplane::{Precedence, ServiceKey, ServicePort};

use crate::object::{CLUSTER_DNS, Metadata};

/// The namespace of a cluster's add-ons.
const ADD_ONS: &str = "kube-system";
/// The port that resolvers query.
const DNS_PORT: u16 = 53;

/// First are the API server's own Service, which has a fixed name, and DNS, recognised in the
/// namespace of add-ons by the label that every distribution has kept since kube-dns, or by its
/// port. Everything else that starts on a node depends on these. A label in another namespace
/// does not count: a tenant that may write Services there could set it, and thousands of small
/// Services would come before DNS.
pub(super) fn precedence(
    key: &ServiceKey,
    metadata: &Metadata,
    ports: &[ServicePort],
) -> Precedence {
    let (label, value) = CLUSTER_DNS;
    let is_labelled = metadata.labels.get(label).is_some_and(|v| v == value);
    let answers_names = ports.iter().any(|port| port.port.get() == DNS_PORT);
    let is_dns = &*key.namespace == ADD_ONS && (is_labelled || answers_names);
    if key.is_api_server() || is_dns {
        Precedence::First
    } else {
        Precedence::Ordinary
    }
}
