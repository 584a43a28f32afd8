//! The subject of a query, written as for kubectl.

use crate::advice::{Problem, problem};

/// An object with an optional port, or a text in the agent's syntax.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reference {
    Pod {
        namespace: String,
        name: String,
        port: Option<String>,
    },
    Service {
        namespace: String,
        name: String,
        port: Option<String>,
    },
    Node {
        name: String,
        port: Option<String>,
    },
    Other(String),
}

/// How to name objects.
const REFERENCES: &str =
    "write svc/NAME, pod/NAME or node/NAME, with :PORT behind where it is a destination";
/// How to name a subject of `explain`.
const SUBJECTS: &str = "write svc/NAME[:PORT], ADDRESS[:PORT[/PROTOCOL]], node:PORT for a node port, or 'FWM MARK' for a virtual server";

// === impl Reference ===

impl Reference {
    /// Parses `svc/web:80`, `pod/a`, `node/n1:30080`; leaves other texts to the agent.
    pub(super) fn parse(text: &str, namespace: &str) -> Result<Reference, Problem> {
        let other = || Ok(Reference::Other(text.to_owned()));
        let Some((kind, rest)) = text.split_once('/') else {
            return other();
        };
        let (name, port) = match rest.split_once(':') {
            None => (rest, None),
            Some((name, port)) => (name, Some(port.to_owned())),
        };
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let reference = match kind {
            "po" | "pod" | "pods" => Reference::Pod {
                namespace,
                name: name.clone(),
                port: port.clone(),
            },
            "svc" | "service" | "services" => Reference::Service {
                namespace,
                name: name.clone(),
                port: port.clone(),
            },
            "no" | "node" | "nodes" => Reference::Node {
                name: name.clone(),
                port: port.clone(),
            },
            _ => return other(),
        };
        if name.is_empty() || port.is_some_and(|port| port.is_empty()) {
            return Err(problem(format!("{text:?} names no object"), REFERENCES));
        }
        Ok(reference)
    }
}

/// Returns the subject in the agent's syntax: `svc/web` becomes `namespace/web`, and other texts
/// stay as they are.
pub(super) fn about(text: &str, namespace: &str) -> Result<String, Problem> {
    match Reference::parse(text, namespace)? {
        Reference::Service {
            namespace,
            name,
            port,
        } => {
            let port = port.map(|port| format!(":{port}")).unwrap_or_default();
            Ok(format!("{namespace}/{name}{port}"))
        }
        Reference::Other(text) => Ok(text),
        Reference::Pod { .. } | Reference::Node { .. } => {
            Err(problem(format!("{text} is not a Service"), SUBJECTS))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_named_as_for_kubectl() {
        for (text, expected) in [
            ("svc/web", "shop/web"),
            ("service/web:http", "shop/web:http"),
            ("10.96.0.10:80/tcp", "10.96.0.10:80/tcp"),
            ("node:30080/tcp", "node:30080/tcp"),
            ("demo/web:80", "demo/web:80"),
            ("FWM 1396703233", "FWM 1396703233"),
        ] {
            let question = about(text, "shop").expect("a question");
            assert_eq!(question, expected, "{text}");
        }
    }

    #[test]
    fn what_names_nothing_is_refused_with_what_to_write() {
        for text in ["svc/", "pod/:80", "svc/web:"] {
            let error = Reference::parse(text, "shop").expect_err(text);
            assert!(error.next.contains("svc/NAME"), "{error:?}");
        }
        assert!(about("pod/a", "shop").is_err());
    }
}
