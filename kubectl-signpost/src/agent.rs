//! Queries the agent of a node by running its own commands in its Pod.

use std::io::{self, ErrorKind};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::ResourceExt;
use kube::api::AttachParams;
use thiserror::Error;
use tokio::io::AsyncReadExt;

use crate::cluster::Cluster;

/// The Pod of an agent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Agent {
    pub(crate) node: String,
    namespace: String,
    pod: String,
    /// A Pod of another namespace that claims to be the agent of this node.
    rival: Option<String>,
}

/// The answer of an agent to a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) agreement: Agreement,
}

/// A finished command in an agent's Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandOutput {
    /// Standard output.
    pub(crate) text: String,
    errors: String,
    pub(crate) code: i32,
}

/// Whether the kernel matches the desired state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Agreement {
    Agrees,
    Differs,
}

/// Why an agent gave no answer.
#[derive(Debug, Error)]
pub(crate) enum AskError {
    /// The API server or the kubelet failed to run the command.
    #[error("failed to run a command in the agent's Pod on node {node}")]
    Run {
        node: String,
        #[source]
        source: kube::Error,
    },
    /// The kubelet did not run the command to its end, and said why.
    #[error("failed to run a command in the agent's Pod on node {node}: {text}")]
    NotRun { node: String, text: String },
    /// The connection ended before the answer was complete. The command may go on.
    #[error("the answer of the agent on node {node} ended early")]
    Read {
        node: String,
        #[source]
        source: std::io::Error,
    },
    /// Pods of two namespaces have the labels of the node's agent: one of them may be made by a user to
    /// answer in its place.
    #[error("two Pods have the labels of the agent of node {node}: {pod} and {rival}")]
    Disputed {
        node: String,
        pod: String,
        rival: String,
    },
    /// The command failed with this error text.
    #[error("the agent on node {node} was unable to answer: {text}")]
    Refused { node: String, text: String },
}

// === impl AskError ===

impl AskError {
    /// The next step for the user.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            AskError::Run { .. } | AskError::NotRun { .. } => {
                "`kubectl get pods -A -l app.kubernetes.io/name=signpost` shows whether the Pod runs, and `kubectl auth \
                 can-i get pods --subresource=exec -A` and the same with create whether you may run commands in it"
            }
            AskError::Disputed { .. } => {
                "delete the one outside of Signpost's namespace, which `kubectl get clusterrolebinding signpost-agent -o wide` \
                 shows to an administrator"
            }
            AskError::Read { .. } => "the agent or its node may have ended; run this again",
            AskError::Refused { .. } => {
                "check the name, the namespace (-n) and the port: `kubectl get services -A` lists them; `kubectl signpost \
                 nodes` shows whether this agent is ready"
            }
        }
    }
}

/// The label selector for agents' Pods, as set by the chart and the manifests.
pub(crate) const SELECTOR: &str =
    "app.kubernetes.io/name=signpost,app.kubernetes.io/component=agent";
/// The component label of agents' Pods. Operators' Pods have another value.
const COMPONENT: (&str, &str) = ("app.kubernetes.io/component", "agent");
const CONTAINER: &str = "agent";
/// The exit code of explain and trace if the kernel differs from the desired state.
const DIFFERS: i32 = 3;
/// The maximum number of bytes of an answer buffered for reading.
const BUFFER: usize = 64 << 10;

// === impl Agent ===

impl Agent {
    /// Returns the agents whose Pods are running, sorted by node.
    pub(crate) fn among(pods: &[Pod]) -> Vec<Agent> {
        let mut agents: Vec<Agent> = pods.iter().filter_map(Agent::of).collect();
        agents.sort();
        for node in agents.chunk_by_mut(|one, other| one.node == other.node) {
            // Sorted, so that the first and the last differ if any two do.
            if let [first, .., last] = node
                && first.namespace != last.namespace
            {
                first.rival = Some(last.name());
                let first = first.name();
                node[1..]
                    .iter_mut()
                    .for_each(|agent| agent.rival = Some(first.clone()));
            }
        }
        agents
    }

    /// Whether Pods of two namespaces claim to be the agent of its node.
    #[cfg(test)]
    pub(crate) fn is_disputed(&self) -> bool {
        self.rival.is_some()
    }

    fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.pod)
    }

    fn of(pod: &Pod) -> Option<Agent> {
        // Operators run on the same nodes, and a sysdump lists their Pods together with these.
        let (label, agent) = COMPONENT;
        let is_agent = pod.labels().get(label).is_some_and(|is| is == agent);
        let runs = pod.status.as_ref()?.phase.as_deref() == Some("Running");
        let ends = pod.metadata.deletion_timestamp.is_some();
        let node = pod.spec.as_ref()?.node_name.clone()?;
        (is_agent && runs && !ends).then(|| Agent {
            node,
            namespace: pod.namespace().unwrap_or_default(),
            pod: pod.name_any(),
            rival: None,
        })
    }

    /// Returns what `signpost-agent` prints with `arguments`, which are a query.
    pub(crate) async fn ask(
        &self,
        cluster: &Cluster,
        arguments: &[&str],
    ) -> Result<Answer, AskError> {
        let ran = self.run(cluster, arguments).await?;
        let agreement = match ran.code {
            0 => Agreement::Agrees,
            DIFFERS => Agreement::Differs,
            _ => {
                return Err(AskError::Refused {
                    node: self.node.clone(),
                    text: ran.error().to_owned(),
                });
            }
        };
        Ok(Answer {
            text: ran.text,
            agreement,
        })
    }

    /// Runs `signpost-agent` with `arguments` until it ends.
    pub(crate) async fn run(
        &self,
        cluster: &Cluster,
        arguments: &[&str],
    ) -> Result<CommandOutput, AskError> {
        let node = || self.node.clone();
        if let Some(rival) = self.rival.clone() {
            return Err(AskError::Disputed {
                node: node(),
                pod: self.name(),
                rival,
            });
        }
        let command = ["signpost-agent"].iter().chain(arguments).copied();
        let command: Vec<&str> = command.collect();
        let parameters = AttachParams::default()
            .container(CONTAINER)
            .max_stdout_buf_size(BUFFER)
            .max_stderr_buf_size(BUFFER);
        let pods = cluster.pods_of(&self.namespace);
        let process = pods.exec(&self.pod, command, &parameters).await;
        let mut process = process.map_err(|source| AskError::Run {
            node: node(),
            source,
        })?;
        let (mut text, mut errors) = (Vec::new(), Vec::new());
        let status = process.take_status();
        if let (Some(mut out), Some(mut err)) = (process.stdout(), process.stderr()) {
            let read = tokio::try_join!(out.read_to_end(&mut text), err.read_to_end(&mut errors));
            read.map_err(|source| AskError::Read {
                node: node(),
                source,
            })?;
        }
        let status = match status {
            Some(status) => status.await,
            None => None,
        };
        let Some(status) = status else {
            // kube ends both streams as if they were complete, and has the error here.
            let ended = process.join().await;
            let source = match ended {
                Err(error) => io::Error::other(error),
                Ok(()) => ErrorKind::UnexpectedEof.into(),
            };
            return Err(AskError::Read {
                node: node(),
                source,
            });
        };
        CommandOutput::of(&text, &errors, &status)
            .map_err(|text| AskError::NotRun { node: node(), text })
    }
}

// === impl CommandOutput ===

impl CommandOutput {
    /// Returns what a command wrote, with its exit code; an error in words if the kubelet reports
    /// none, because the command did not run or was not waited for.
    fn of(text: &[u8], errors: &[u8], status: &Status) -> Result<CommandOutput, String> {
        let errors = printable(errors);
        let Some(code) = exit_code(status) else {
            let message = status.message.as_deref().unwrap_or("no exit code");
            let message = printable(message.as_bytes());
            let parts = [errors.trim(), &message];
            let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            return Err(parts.join(": "));
        };
        Ok(CommandOutput {
            text: printable(text),
            errors,
            code,
        })
    }

    /// Returns its error output without the name of the program.
    pub(crate) fn error(&self) -> &str {
        self.errors.trim().trim_start_matches("signpost-agent: ")
    }
}

/// Returns text without control characters, with which a Pod could change what a terminal shows.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let kept = text.chars();
    kept.filter(|letter| !letter.is_control() || "\n\t".contains(*letter))
        .collect()
}

/// Returns the exit code of a command as reported by the kubelet.
fn exit_code(status: &Status) -> Option<i32> {
    if status.status.as_deref() == Some("Success") {
        return Some(0);
    }
    let causes = status.details.as_ref()?.causes.as_ref()?;
    let mut causes = causes.iter();
    let exit = causes.find(|cause| cause.reason.as_deref() == Some("ExitCode"))?;
    exit.message.as_deref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_operator_on_the_node_is_not_taken_for_its_agent() {
        let pod = |name: &str, component: &str| -> Pod {
            let pod = json!({
                "metadata": {"name": name, "namespace": "signpost-system", "labels": {
                    "app.kubernetes.io/name": "signpost", "app.kubernetes.io/component": component,
                }},
                "spec": {"nodeName": "node-1", "containers": []},
                "status": {"phase": "Running"},
            });
            serde_json::from_value(pod).expect("a Pod")
        };
        let agents = Agent::among(&[
            pod("signpost-agent-x", "agent"),
            pod("signpost-operator-y", "operator"),
        ]);
        let names: Vec<&str> = agents.iter().map(|agent| agent.pod.as_str()).collect();
        assert_eq!(names, ["signpost-agent-x"]);
    }

    /// Failure story T433.
    #[test]
    fn t433_a_command_without_an_exit_code_is_named_with_the_kubelets_reason() {
        let status = |status: serde_json::Value| -> Status {
            serde_json::from_value(status).expect("a status")
        };
        let cause = |reason: &str, message: &str| json!({"causes": [{"reason": reason, "message": message}]});
        let of = |status: &Status| CommandOutput::of(b"a", b"b", status);
        let differs = status(json!({
            "status": "Failure", "message": "command terminated with exit code 3",
            "details": cause("ExitCode", "3"),
        }));
        let output = of(&differs).expect("it has an exit code");
        assert_eq!((output.code, output.error()), (3, "b"));
        let ended = status(json!({
            "status": "Failure", "message": "container not found (\"agent\")",
            "details": cause("InternalError", ""),
        }));
        let expected = Err("b: container not found (\"agent\")".to_owned());
        assert_eq!(of(&ended), expected);
    }

    /// Failure story T434.
    #[test]
    fn t434_what_a_pod_prints_does_not_steer_the_terminal() {
        let text = "node n1:\t\u{1b}[2J\u{1b}]0;all is well\u{7}\r\u{9b}1A\n";
        assert_eq!(
            printable(text.as_bytes()),
            "node n1:\t[2J]0;all is well1A\n"
        );
    }

    /// Failure story T443: a WebSocket begins with a GET.
    #[test]
    fn t443_both_verbs_that_a_command_in_a_pod_requires_are_named() {
        let error = AskError::NotRun {
            node: "n1".to_owned(),
            text: String::new(),
        };
        for words in ["can-i get pods --subresource=exec", "create"] {
            assert!(error.advice().contains(words), "{}", error.advice());
        }
    }
}
