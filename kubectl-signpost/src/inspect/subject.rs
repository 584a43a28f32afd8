//! The subject of a query, written as for kubectl.

use crate::advice::{Problem, problem};
use crate::arguments::reference::{self, Kind, Named, REFERENCES, SUBJECTS};

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

// === impl Reference ===

impl Reference {
    /// Parses `svc/web:80`, `pod/a`, `node/n1:30080`; leaves other texts to the agent.
    pub(super) fn parse(text: &str, namespace: &str) -> Result<Reference, Problem> {
        let named = reference::parse(text).map_err(|what| problem(what, REFERENCES))?;
        let Some(Named { kind, name, port }) = named else {
            return Ok(Reference::Other(text.to_owned()));
        };
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let port = port.map(str::to_owned);
        Ok(match kind {
            Kind::Pod => Reference::Pod {
                namespace,
                name,
                port,
            },
            Kind::Service => Reference::Service {
                namespace,
                name,
                port,
            },
            Kind::Node => Reference::Node { name, port },
        })
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
