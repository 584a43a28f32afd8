//! Whether a traced packet arrives at what the user named as its destination. Pure.

use serde_json::Value;

use super::subject::Reference;
use crate::advice::{Problem, problem};
use crate::agent::{Agreement, Answer};
use crate::ending::Ending;

/// What the user named as the destination of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Destination {
    /// A port of a Service.
    Service { namespace: String, name: String },
    /// A port of a node; without a name, of the node that is asked.
    NodePort { node: Option<String>, port: String },
    /// A Pod or an address, which may be nothing of Services.
    Address,
}

/// What there is to say about a trace besides its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) problem: Problem,
    pub(super) ending: Ending,
}

// === impl Destination ===

impl Destination {
    /// Returns what the user named.
    pub(super) fn of(reference: &Reference) -> Destination {
        match reference {
            Reference::Service {
                namespace, name, ..
            } => Destination::Service {
                namespace: namespace.clone(),
                name: name.clone(),
            },
            Reference::Node { name, port } => Destination::NodePort {
                node: Some(name.clone()),
                port: port.clone().unwrap_or_default(),
            },
            Reference::Other(text) => match text.strip_prefix("node:") {
                Some(port) => Destination::NodePort {
                    node: None,
                    port: port.to_owned(),
                },
                None => Destination::Address,
            },
            Reference::Pod { .. } => Destination::Address,
        }
    }

    /// The node that has the address of the destination, if the user named it.
    pub(super) fn node(&self) -> Option<&str> {
        match self {
            Destination::NodePort { node, .. } => node.as_deref(),
            Destination::Service { .. } | Destination::Address => None,
        }
    }

    /// Weighs the answer of the agent on `node` about `packet`. Returns `None` if the packet goes
    /// where it should, and arrives.
    pub(super) fn weigh(&self, answer: &Answer, node: &str, packet: &str) -> Option<Finding> {
        let address = packet.rsplit(' ').next().unwrap_or(packet);
        let desired = desired(&answer.text);
        let about = match self {
            Destination::Service { namespace, name } => format!("svc/{name} -n {namespace}"),
            // The agent knows no node port that no Service has.
            Destination::NodePort { .. } if desired.as_deref() == Some("untouched") => {
                address.to_owned()
            }
            Destination::NodePort { port, .. } => format!("node:{port}"),
            Destination::Address => address.to_owned(),
        };
        let explain = format!("`kubectl signpost explain {about} --node {node}`");
        let (what, next) = match (answer.agreement, desired.as_deref()) {
            (Agreement::Differs, _) => (
                format!("the rules of node {node} do not do what is desired"),
                format!(
                    "{explain} lists what differs; `kubectl signpost nodes` shows whether the agent can repair it"
                ),
            ),
            (Agreement::Agrees, Some("reject")) => (
                format!("node {node} rejects the packet, as desired"),
                format!("{explain} shows whether an endpoint is ready, and which ports there are"),
            ),
            (Agreement::Agrees, Some("drop")) => (
                format!("node {node} drops the packet, as desired"),
                format!(
                    "{explain} shows whether the policy is Local and no endpoint is on this node, and which clients a \
                     load-balancer IP admits"
                ),
            ),
            (Agreement::Agrees, Some("untouched")) => return self.weigh_untouched(node, &explain),
            (Agreement::Agrees, _) => return None,
        };
        Some(Finding {
            problem: problem(what, next),
            ending: Ending::ProblemFound,
        })
    }

    /// Weighs that `node` leaves the packet to routing, as desired.
    fn weigh_untouched(&self, node: &str, explain: &str) -> Option<Finding> {
        let (what, next, ending) = match self {
            Destination::Address => return None,
            Destination::Service { .. } => (
                format!("node {node} serves no such port of this Service"),
                format!("{explain} says why"),
                Ending::ProblemFound,
            ),
            Destination::NodePort {
                node: Some(other), ..
            } if other != node => (
                format!("node {node} sends the packet on to node {other} as it is"),
                format!("--node {other} follows it through the rules there"),
                Ending::Success,
            ),
            Destination::NodePort { .. } => (
                format!(
                    "no Service has this port of node {node}, so that the packet is left to the node itself"
                ),
                match explain.contains(" node:") {
                    // Only the agent knows the address.
                    true => "`kubectl get services -A` lists node ports".to_owned(),
                    false => format!(
                        "`kubectl get services -A` lists node ports; {explain} shows what the node has for this address"
                    ),
                },
                Ending::ProblemFound,
            ),
        };
        Some(Finding {
            problem: problem(what, next),
            ending,
        })
    }
}

/// Returns where a traced packet should go: endpoints, `reject`, `drop` or `untouched`.
fn desired(text: &str) -> Option<String> {
    if let Some(line) = text.lines().find_map(|line| line.strip_prefix("desired: ")) {
        return Some(line.to_owned());
    }
    let trace: Value = serde_json::from_str(text).ok()?;
    Some(trace["desired"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weigh(to: &str, agreement: Agreement, desired: &str) -> Option<(Ending, String)> {
        let reference = Reference::parse(to, "shop").expect("a reference");
        let destination = Destination::of(&reference);
        let packet = "pod 10.0.1.9 -> 10.96.0.9:80/tcp";
        let text = format!("{{\"desired\": \"{desired}\", \"actual\": \"{desired}\"}}");
        let in_json = destination.weigh(&Answer { text, agreement }, "n1", packet);
        let text = format!("{packet}\ndesired: {desired}\nthe rules in the kernel: {desired}\n");
        let in_text = destination.weigh(&Answer { text, agreement }, "n1", packet);
        assert_eq!(in_text, in_json);
        in_text.map(|Finding { problem, ending }| (ending, format!("{problem}; {}", problem.next)))
    }

    #[test]
    fn t209_a_packet_that_does_not_arrive_is_a_problem() {
        use Agreement::{Agrees, Differs};
        for (to, agreement, desired, words) in [
            (
                "svc/web:80",
                Differs,
                "10.0.1.5:80",
                "explain svc/web -n shop --node n1",
            ),
            ("svc/web:80", Agrees, "reject", "n1 rejects the packet"),
            ("svc/web:80", Agrees, "drop", "n1 drops the packet"),
            ("svc/web:80", Agrees, "untouched", "serves no such port"),
            (
                "10.96.0.9:80",
                Agrees,
                "reject",
                "explain 10.96.0.9:80/tcp --node n1",
            ),
            (
                "node/n1:30080",
                Agrees,
                "untouched",
                "explain 10.96.0.9:80/tcp --node n1",
            ),
            (
                "node/n1:30080",
                Agrees,
                "reject",
                "explain node:30080 --node n1",
            ),
            (
                "node:30080/udp",
                Agrees,
                "untouched",
                "no Service has this port of node n1",
            ),
        ] {
            let (ending, said) = weigh(to, agreement, desired).expect(to);
            assert_eq!(ending, Ending::ProblemFound, "{to}: {desired}");
            assert!(said.contains(words), "{to}: {said}");
        }
    }

    #[test]
    fn a_packet_that_arrives_or_is_nothing_of_services_is_no_problem() {
        for (to, desired) in [
            ("svc/web:80", "10.0.1.5:80, 10.0.2.7:80 masqueraded"),
            ("node/n1:30080", "10.0.1.5:80"),
            ("pod/a:80", "untouched"),
            ("203.0.113.9:443", "untouched"),
        ] {
            assert_eq!(weigh(to, Agreement::Agrees, desired), None, "{to}");
        }
    }

    #[test]
    fn a_packet_that_goes_on_to_another_node_is_followed_there() {
        let found = weigh("node/n2:30080", Agreement::Agrees, "untouched");
        let (ending, said) = found.expect("a note");
        assert_eq!(ending, Ending::Success);
        assert!(said.contains("--node n2"), "{said}");
    }
}
