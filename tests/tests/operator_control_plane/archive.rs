//! `kubectl signpost sysdump` as run for a bug report.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::sysdump::unpack;

use crate::NAMESPACE;
use crate::cluster::Cluster;
use crate::command_line::CommandLine;

/// A secret value that no archive may contain.
const PRIVATE: &str = "b3BlbiBzZXNhbWU";
/// A token like that of a service account.
const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl";

/// Returns a Service, and an agent that cannot be queried because no kubelet runs its Pod.
fn objects() -> [serde_json::Value; 4] {
    let labels =
        json!({"app.kubernetes.io/name": "signpost", "app.kubernetes.io/component": "agent"});
    let env = json!([{"name": "PASSWORD", "value": PRIVATE}]);
    let container = json!({"name": "agent", "image": "signpost-agent:1", "env": env});
    [
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "private", "namespace": NAMESPACE},
            "stringData": {"password": PRIVATE, "token": TOKEN},
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "private", "namespace": NAMESPACE},
            "data": {"password": PRIVATE},
        }),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "cart", "namespace": "default",
                "annotations": {"example.com/password": PRIVATE, "signpost.dev/scheduler": TOKEN},
            },
            "spec": {"ports": [{"port": 80}]},
        }),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "agent-n1", "namespace": NAMESPACE, "labels": labels},
            "spec": {"nodeName": "n1", "containers": [container]},
        }),
    ]
}

pub(crate) fn t155_a_sysdump_names_what_it_could_not_read_and_holds_no_secret(
    cluster: &mut Cluster,
) -> Result<()> {
    let cli = CommandLine::of(cluster)?;
    let folder = tempfile::tempdir()?;
    let at = |name: &str| -> Result<String> {
        let path = folder.path().join(name);
        Ok(path.to_str().context("the path is text")?.to_owned())
    };
    let complete = at("complete.tar.gz")?;
    cli.expect(0, &["sysdump", "--file", &complete])?;
    // An existing archive is never overwritten.
    cli.expect(1, &["sysdump", "--file", &complete])?;

    for object in objects() {
        cluster.control_plane.apply(&object.to_string())?;
    }
    cluster.put_profile("default", json!({"mode": "iptables"}))?;
    let running = json!({"status": {"phase": "Running"}}).to_string();
    cluster
        .control_plane
        .patch_status("pod/agent-n1", NAMESPACE, &running)?;
    let file = at("dump.tar.gz")?;
    let arguments = ["sysdump", "--node=n1", "--node=n2", "--file", &file];
    let text = cli.expect(3, &arguments)?;
    let mode = fs::metadata(&file)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "others may read it: {mode:o}");
    let files = unpack(Path::new(&file))?;
    let file = |name: &str| {
        files
            .get(name)
            .with_context(|| format!("no {name} in {files:#?}"))
    };

    let missing = file("missing.txt")?;
    for part in [
        "logs/agent-n1/agent.log: failed to read the log of Pod",
        "nodes/n1/rules.txt: failed to run a command in the agent's Pod on node n1",
        "nodes/n2: no agent runs on this node",
    ] {
        ensure!(missing.contains(part), "no {part:?} in {missing}");
        ensure!(text.contains(&format!("missing: {part}")), "{text}");
    }
    for (name, words) in [
        ("proxyprofiles.yaml", "mode: iptables"),
        ("services.yaml", "name: cart"),
        ("nodes.yaml", "name: n3"),
        ("pods.yaml", "nodeName: n1"),
        ("README.txt", "Secrets and ConfigMaps are not read"),
        ("versions.txt", "Kubernetes v1."),
    ] {
        let text = file(name)?;
        ensure!(text.contains(words), "no {words:?} in {name}:\n{text}");
    }
    for (name, text) in &files {
        for private in [PRIVATE, TOKEN] {
            ensure!(!text.contains(private), "{name} has a secret:\n{text}");
        }
    }
    ensure!(file("services.yaml")?.contains("signpost.dev/scheduler: [removed]"));
    Ok(())
}
