//! The documented rights of a command are all that it uses.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::server::{Server, write_kubeconfig};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/command-line.md");

/// A user who may list what commands cannot do without, and nothing else: they then try all that they know.
fn answer(request: &str) -> Option<Value> {
    if request.starts_with("POST ") {
        return Some(json!({"metadata": {}, "spec": {}, "status": {"allowed": true}}));
    }
    let required = ["nodes", "pods", "nodeproxies", "proxyprofiles"];
    match resource(request)? {
        "version" => Some(json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.2", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        })),
        listed if required.contains(&listed) => Some(json!({"metadata": {}, "items": []})),
        _ => None,
    }
}

/// Returns the resource of a request, such as `leases`.
fn resource(request: &str) -> Option<&str> {
    let path = request.split(' ').nth(1)?.split('?').next()?;
    let mut parts = path.split('/').skip(1);
    match parts.next()? {
        "api" => parts.next()?,
        "apis" => parts.nth(1)?,
        other => return Some(other),
    };
    match parts.next()? {
        "namespaces" => parts.nth(1),
        resource => Some(resource),
    }
}

#[test]
fn the_rights_of_a_command_are_documented() {
    let page = fs::read_to_string(PAGE).expect("the page is there");
    let server = Server::start(answer);
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = write_kubeconfig(directory.path(), &server.url(), "");
    for (command, row, expected) in [
        ("check", "| `check` |", "leases"),
        ("version", "| `version` |", "leases"),
        ("migrate plan", "| `migrate plan` |", "services"),
        ("status", "| `status`, `nodes` |", "nodes"),
        ("nodes", "| `status`, `nodes` |", "nodes"),
    ] {
        let row = page.lines().find(|line| line.starts_with(row));
        let row = row.expect("the command has a row").to_lowercase();
        let mut program = Command::new(env!("CARGO_BIN_EXE_kubectl-signpost"));
        program.arg("--kubeconfig").arg(&kubeconfig);
        for name in ["HTTPS_PROXY", "https_proxy"] {
            program.env_remove(name);
        }
        let output = program.args(command.split(' ')).output();
        let output = output.expect("the program runs");
        let requests = server.requests();
        let errors = String::from_utf8_lossy(&output.stderr);
        let used = requests.iter().filter_map(|request| resource(request));
        let used: Vec<&str> = used
            .filter(|used| !["version", "selfsubjectaccessreviews"].contains(used))
            .collect();
        assert!(used.contains(&expected), "{command}: {used:?}: {errors}");
        for used in used {
            // A row has the kind of an object that it names.
            let kind = used.trim_end_matches('s');
            assert!(row.contains(kind), "{command} uses {used}, not in {row}");
        }
    }
}
