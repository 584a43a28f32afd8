//! The answer to a question: these types define the JSON form, [`text`](super::text) the text form.

use std::fmt;

use serde::Serialize;

use crate::Agreement;

/// Everything that the agent knows about the object of a question.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The question.
    pub question: String,
    /// The node that answers.
    pub node: String,
    /// General remarks, in sentences without a final full stop.
    pub remarks: Vec<String>,
    /// The Services that the question is about.
    pub services: Vec<ServiceAnswer>,
    /// For an address: the Services that have it as an endpoint.
    pub endpoint_of: Vec<EndpointOf>,
    /// For an address or a virtual server that no Service has: what the kernel has for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unclaimed: Option<FrontendAnswer>,
    /// The state of the kernel, for each family in question.
    pub kernel: Vec<KernelAnswer>,
}

/// One Service.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAnswer {
    /// Its name.
    pub service: String,
    /// `spec.type`, as far as it makes a difference.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `spec.internalTrafficPolicy`.
    pub internal_traffic_policy: &'static str,
    /// `spec.externalTrafficPolicy`, if it applies.
    pub external_traffic_policy: Option<&'static str>,
    /// How many seconds a client keeps its endpoint.
    pub affinity_seconds: Option<u64>,
    /// The sources that may connect to load-balancer IPs. Empty: all sources.
    pub source_ranges: Vec<String>,
    /// The answer to a load balancer's health check.
    pub health_check: Option<HealthCheckAnswer>,
    /// Its ports with their endpoints.
    pub ports: Vec<PortAnswer>,
    /// The addresses and node ports on which clients reach it.
    pub frontends: Vec<FrontendAnswer>,
    /// Its cluster IPs and its endpoints on this node, as members of the sets or rules for those;
    /// in mode iptables its health check, too.
    pub memberships: Vec<PieceAnswer>,
    /// What of it is not honoured or not programmed, in sentences.
    pub unsupported_fields: Vec<String>,
}

/// `spec.healthCheckNodePort`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheckAnswer {
    /// The port.
    pub port: u16,
    /// How many ready endpoints this node has.
    pub local_endpoints: usize,
}

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortAnswer {
    /// Its name; empty if it has none.
    pub name: String,
    /// `80/tcp`.
    pub port: String,
    /// Its node port.
    pub node_port: Option<u16>,
    /// Its endpoints, of both families.
    pub endpoints: Vec<EndpointAnswer>,
}

/// One endpoint of one port.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointAnswer {
    /// Its address and port.
    pub address: String,
    /// The node that it is on, if the slice names one.
    pub node: Option<String>,
    /// Whether that is this node.
    pub here: bool,
    /// Its condition `ready`.
    pub ready: bool,
    /// Its condition `serving`.
    pub serving: bool,
    /// Its condition `terminating`.
    pub terminating: bool,
    /// The zones and nodes in its hints.
    pub hinted_for: Vec<String>,
    /// Whether this node sends connections to it.
    pub usage: Usage,
    /// Why, if that is not obvious.
    pub because: Option<String>,
}

/// Whether an endpoint is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Usage {
    /// Under every policy that the port has.
    Used,
    /// Not under policy Local.
    UsedUnlessLocal,
    /// Under policy Local only.
    UsedIfLocal,
    /// Not at all.
    Unused,
}

/// An address or node port on which clients reach a Service.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendAnswer {
    /// `10.96.0.10:80/tcp`.
    pub address: String,
    /// The kind of address; empty if no Service has it.
    pub kind: String,
    /// The name of the Service's port.
    pub port: String,
    /// The traffic policy that applies.
    pub policy: &'static str,
    /// Where connections go, in sentences without a final full stop.
    pub connections: Vec<String>,
    /// The other Service that has the address, if one takes precedence.
    pub served_for: Option<String>,
    /// What else the address is, if that is why the Service may not have it.
    pub refused: Option<String>,
    /// Its elements; in mode iptables its rules.
    pub elements: Vec<PieceAnswer>,
    /// The chains that only its packets traverse.
    pub chains: Vec<PieceAnswer>,
}

/// One element, rule or chain in the kernel.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PieceAnswer {
    /// As nft prints it, or the iptables command that would create it.
    pub piece: String,
    /// Its state.
    pub state: PieceState,
    /// What the kernel has in its place, if that differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<String>,
}

/// The state of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PieceState {
    /// It is in the kernel.
    Present,
    /// It is missing in the kernel.
    Missing,
    /// It is in the kernel, but not in the desired state.
    Leftover,
    /// It is no longer in the desired state, and stays in the kernel until its connections have
    /// ended.
    Draining,
    /// The kernel has something else in its place.
    Different,
    /// It is in the desired state; no kernel was read.
    Unverified,
}

/// A Service that has the address as an endpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointOf {
    /// The Service.
    pub service: String,
    /// The name of its port.
    pub port: String,
    /// The endpoint.
    pub endpoint: EndpointAnswer,
}

/// One family of the kernel.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelAnswer {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// How all of Signpost's rules compare with what was programmed last, in a sentence without a
    /// final full stop.
    pub table: String,
    /// Chains and sets that all packets pass and that differ from what was programmed.
    pub damaged: Vec<PieceAnswer>,
    /// The last sync, as text.
    pub last_sync: Option<String>,
}

// === impl FrontendAnswer ===

impl FrontendAnswer {
    /// What the kernel has for `place`, which no Service has.
    pub(super) fn unclaimed(
        place: &impl fmt::Display,
        elements: Vec<PieceAnswer>,
    ) -> FrontendAnswer {
        FrontendAnswer {
            address: place.to_string(),
            kind: String::new(),
            port: String::new(),
            policy: "",
            connections: Vec::new(),
            served_for: None,
            refused: None,
            elements,
            chains: Vec::new(),
        }
    }
}

// === impl Explanation ===

impl Explanation {
    /// Returns whether every piece in the explanation is in the kernel as desired.
    pub fn agreement(&self) -> Agreement {
        let services = self.services.iter();
        let memberships = services.clone().flat_map(|service| &service.memberships);
        let frontends = services.flat_map(|service| &service.frontends);
        let frontends = frontends.chain(&self.unclaimed);
        let of_frontends =
            frontends.flat_map(|frontend| frontend.elements.iter().chain(&frontend.chains));
        let damaged = self.kernel.iter().flat_map(|kernel| &kernel.damaged);
        let mut pieces = memberships.chain(of_frontends).chain(damaged);
        let is_right = |piece: &PieceAnswer| {
            matches!(
                piece.state,
                PieceState::Present | PieceState::Draining | PieceState::Unverified
            )
        };
        pieces.all(is_right).into()
    }
}
