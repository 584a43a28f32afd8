//! The exit code of commands whose output nothing reads any more.

use std::io::pipe;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::server::{Server, write_kubeconfig};

/// The exit code of a program that SIGPIPE ends, as a shell reports it.
const BROKEN_PIPE: i32 = 141;

/// Runs a command with a pipe whose other end is closed; returns its exit code.
fn run(kubeconfig: Option<&Path>, arguments: &[&str]) -> Option<i32> {
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-signpost"));
    command.args(arguments).stdout(writer).stderr(Stdio::null());
    for name in ["HTTPS_PROXY", "https_proxy"] {
        command.env_remove(name);
    }
    if let Some(kubeconfig) = kubeconfig {
        command.arg("--kubeconfig").arg(kubeconfig);
    }
    command.status().expect("the program runs").code()
}

/// Two nodes that both proxies serve, with agents in which no command may be run.
fn answer(request: &str) -> Option<Value> {
    let list = |items: Vec<Value>| json!({"metadata": {}, "items": items});
    let time = "2026-01-01T00:00:00Z";
    let condition = |kind: &str, reason: &str| json!({"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": time});
    let proxy = |name: &str| {
        json!({
            "apiVersion": "signpost.dev/v1alpha1", "kind": "NodeProxy", "metadata": {"name": name}, "spec": {},
            "status": {"conditions": [
                condition("Ready", "Programmed"), condition("ForeignProxyDetected", "KubeProxyNftables"),
            ]},
        })
    };
    let agent = |node: &str| {
        json!({
            "metadata": {"name": format!("agent-{node}"), "namespace": "signpost-system", "labels": {
                "app.kubernetes.io/name": "signpost", "app.kubernetes.io/component": "agent",
            }},
            "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running"},
        })
    };
    let path = request.split([' ', '?']).nth(1)?;
    match path {
        "/apis/signpost.dev/v1alpha1/nodeproxies" => Some(list(vec![proxy("n1"), proxy("n2")])),
        "/api/v1/pods" => Some(list(vec![agent("n1"), agent("n2")])),
        "/api/v1/namespaces/kube-system/pods" => Some(list(Vec::new())),
        _ => None,
    }
}

/// Failure story T436.
#[test]
fn t436_a_closed_pipe_is_no_success() {
    assert_eq!(run(None, &["completion", "bash"]), Some(BROKEN_PIPE));
}

/// Failure story T436.
#[test]
fn t436_a_takeover_that_fails_says_so_whether_or_not_its_output_is_read() {
    let server = Server::start(answer);
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = write_kubeconfig(directory.path(), &server.url(), "");
    let code = run(Some(&kubeconfig), &["migrate", "takeover"]);
    let requests = server.requests();
    let was_asked = |request: &String| request.contains("/pods/agent-n1/exec");
    assert!(requests.iter().any(was_asked), "{requests:#?}");
    assert_eq!(code, Some(3));
}
