//! Why requests to the cluster fail, and what to do.

use kube::config::{InferConfigError, KubeconfigError};
use kube::core::Status;
use thiserror::Error;

/// Why a request to the cluster failed.
#[derive(Debug, Error)]
pub(crate) enum ClusterError {
    /// A kubeconfig named on the command line cannot be used.
    #[error("failed to use the kubeconfig")]
    Kubeconfig(#[source] KubeconfigError),
    /// No kubeconfig was named and none was found.
    #[error("failed to find a cluster")]
    Nowhere(#[source] InferConfigError),
    /// The client could not be created.
    #[error("failed to set up a client for {server}")]
    Client {
        server: String,
        #[source]
        source: kube::Error,
    },
    /// A request failed.
    #[error("failed to {doing}{}", unanswered(server, source))]
    Request {
        doing: String,
        server: String,
        #[source]
        source: kube::Error,
    },
}

/// What to do about a proxy on the way to the API server that cannot be used.
const PROXIES: &str = "give the proxy as http://, https:// or socks5:// in proxy-url of the kubeconfig or in HTTPS_PROXY; NO_PROXY names \
    API servers that are reached without one";

// === impl ClusterError ===

impl ClusterError {
    /// The next step for the user.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            ClusterError::Kubeconfig(
                KubeconfigError::ParseProxyUrl(_) | KubeconfigError::ParseNoProxy(_),
            ) => PROXIES,
            ClusterError::Kubeconfig(_) => {
                "`kubectl config get-contexts` lists contexts; give --kubeconfig or --context"
            }
            ClusterError::Nowhere(_) => {
                "give --kubeconfig FILE, or set KUBECONFIG; `kubectl config view` shows what kubectl uses"
            }
            ClusterError::Client {
                source:
                    kube::Error::ProxyProtocolUnsupported { .. }
                    | kube::Error::ProxyProtocolDisabled { .. },
                ..
            } => PROXIES,
            ClusterError::Client { .. } => {
                "`kubectl version` shows whether these credentials can be used"
            }
            ClusterError::Request { .. } if self.is_unreadable() => {
                "use the version of kubectl-signpost that belongs to the installed operator"
            }
            ClusterError::Request { .. } => match self.code() {
                Some(401) => "log in to the cluster again; `kubectl auth whoami` shows who you are",
                Some(403) => {
                    "ask an administrator for the permission that the message names; `kubectl auth can-i --list` shows \
                     those you have"
                }
                Some(404) => self.advice_if_absent(),
                Some(409) => "another program changed the object at the same time; run this again",
                Some(422) => "correct the field that the message names",
                _ => {
                    "`kubectl version` shows whether the API server answers; --context and --kubeconfig choose another"
                }
            },
        }
    }

    /// The next step for the user where the object, or its type, does not exist.
    fn advice_if_absent(&self) -> &'static str {
        let details = self.status().and_then(|status| status.details.as_ref());
        // An answer that names no object is about the type, and only Signpost's may be missing.
        match details.map_or("", |details| details.kind.as_str()) {
            "" | "proxyprofiles" => {
                "`kubectl get proxyprofiles` lists them; if kubectl does not know the type, install Signpost"
            }
            "nodeproxies" => {
                "`kubectl get nodeproxies` lists them; if kubectl does not know the type, install Signpost"
            }
            "configmaps" => "give its name with --config-map and its namespace with -n",
            "nodes" => "check the name: `kubectl get nodes` lists nodes",
            _ => "check the name and the namespace (-n)",
        }
    }

    /// Whether the API server denied the request for lack of permission.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Whether the API server answered that the object or its type does not exist.
    pub(crate) fn is_absent(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether another program changed the object since it was read.
    pub(crate) fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// Whether the same request may succeed a moment later: there was no answer, or the server is
    /// busy or starting.
    pub(crate) fn is_passing(&self) -> bool {
        match (self, self.code()) {
            (_, Some(code)) => code == 429 || code >= 500,
            (ClusterError::Request { .. }, None) => !self.is_unreadable(),
            _ => false,
        }
    }

    /// Whether the answer has values that this version does not know.
    fn is_unreadable(&self) -> bool {
        matches!(
            self,
            ClusterError::Request {
                source: kube::Error::SerdeError(_),
                ..
            }
        )
    }

    fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    /// Returns the answer of the API server; `None` if there was none.
    fn status(&self) -> Option<&Status> {
        match self {
            ClusterError::Request {
                source: kube::Error::Api(status),
                ..
            } => Some(status),
            _ => None,
        }
    }
}

/// Names the server if it gave no answer.
fn unanswered(server: &str, source: &kube::Error) -> String {
    match source {
        kube::Error::Service(_) | kube::Error::HyperError(_) => {
            format!(": no answer from {server}")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(source: kube::Error) -> ClusterError {
        ClusterError::Request {
            doing: "list proxyprofiles".to_owned(),
            server: "https://10.0.0.1:6443/".to_owned(),
            source,
        }
    }

    #[test]
    fn a_server_that_does_not_answer_is_named() {
        let refused = std::io::Error::other("Connection refused");
        let error = request(kube::Error::Service(refused.into()));
        let said = runtime::chain(&error).to_string();
        let expected = "failed to list proxyprofiles: no answer from https://10.0.0.1:6443/: ";
        assert!(said.starts_with(expected), "{said}");
        assert!(said.ends_with("Connection refused"), "{said}");
        assert!(error.advice().contains("--context"), "{}", error.advice());
        let status = Status::failure("it is forbidden", "Forbidden").with_code(403);
        let error = request(kube::Error::Api(status.boxed()));
        let said = runtime::chain(&error).to_string();
        assert_eq!(said, "failed to list proxyprofiles: it is forbidden");
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_what_the_advice_is_about() {
        let proxy_url = Box::new("proxy.example:3128".parse().expect("an address"));
        let error = ClusterError::Client {
            server: "https://10.0.0.1:6443/".to_owned(),
            source: kube::Error::ProxyProtocolUnsupported { proxy_url },
        };
        assert!(error.advice().contains("HTTPS_PROXY"), "{}", error.advice());
    }

    /// Found in review: `rollout status` tried again each second until its timeout, and then advised to
    /// check whether the API server answers.
    #[test]
    fn an_answer_of_another_version_is_not_asked_for_again() {
        let unknown = serde_json::from_str::<u8>("\"new\"").expect_err("it is no number");
        let error = request(kube::Error::SerdeError(unknown));
        assert!(!error.is_passing());
        assert!(error.advice().contains("version"), "{}", error.advice());
        assert!(request(kube::Error::Service("refused".into())).is_passing());
    }

    #[test]
    fn what_to_do_about_an_absent_object_depends_on_its_kind() {
        for (kind, words) in [
            ("proxyprofiles", "kubectl get proxyprofiles"),
            ("nodeproxies", "kubectl get nodeproxies"),
            ("", "install Signpost"),
            ("pods", "the namespace (-n)"),
            ("services", "the namespace (-n)"),
            ("nodes", "kubectl get nodes"),
            ("configmaps", "--config-map"),
        ] {
            let mut answer = json!({"status": "Failure", "message": "not found", "code": 404});
            if !kind.is_empty() {
                answer["details"] = json!({"name": "a", "kind": kind});
            }
            let status: Status = serde_json::from_value(answer).expect("a status");
            let error = request(kube::Error::Api(status.boxed()));
            assert!(error.advice().contains(words), "{kind}: {}", error.advice());
            assert!(error.is_absent());
        }
    }
}
