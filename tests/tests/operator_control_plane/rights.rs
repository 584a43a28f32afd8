//! Which writes the API server accepts, by user.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;
use tests::control_plane::{OPERATOR_MANIFESTS, ServiceAccount};
use tests::deadline::wait_for;

use crate::cluster::Cluster;
use crate::operator::Operator;
use crate::{DEADLINE, NAMESPACE, NODES};

#[test]
fn every_manifest_is_one_the_api_server_takes() -> Result<()> {
    let cluster = Cluster::start()?;
    for file in OPERATOR_MANIFESTS
        .into_iter()
        .chain(["deploy/operator.yaml", "deploy/agent.yaml"])
    {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
        let from = format!("--filename={}", path.display());
        let arguments = ["apply", "--dry-run=server", "--validate=strict", &from];
        cluster
            .control_plane
            .kubectl(&arguments)
            .with_context(|| file.to_owned())?;
    }
    Ok(())
}

#[test]
fn an_agent_writes_about_its_own_node_alone() -> Result<()> {
    let cluster = Cluster::start()?;
    let _operator = Operator::start(&cluster, "operator-1")?;
    cluster.put_profile("default", json!({}))?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "nftables")?;
    }
    let lie = json!({"kernelVersion": "9.9"});
    // The API server takes a moment to enforce the policy.
    let refusal = wait_for("the policy to be in force", DEADLINE, || {
        Ok(cluster
            .report_as(Some("n1"), "n2", &lie)
            .err()
            .map(|error| format!("{error:#}")))
    })?;
    assert!(
        refusal.contains("the agent of node n1 may not write NodeProxy n2"),
        "{refusal}"
    );
    let refusal = cluster
        .report_as(None, "n1", &lie)
        .expect_err("the token is for no node");
    assert!(
        refusal
            .to_string()
            .contains("must say which node it is for"),
        "{refusal:#}"
    );
    cluster.report_as(Some("n2"), "n2", &json!({"kernelVersion": "6.1"}))?;

    let kubeconfig = cluster
        .control_plane
        .kubeconfig_of_account(&ServiceAccount::new(NAMESPACE, "signpost-agent").on_node("n2"))?;
    let namespace = format!("--namespace={NAMESPACE}");
    let lease = |name: &str| -> Result<String> {
        let file = tempfile::NamedTempFile::new()?;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        });
        fs::write(file.path(), lease.to_string())?;
        let mut command = cluster.control_plane.kubectl_command(&kubeconfig);
        let create = ["create", &namespace, "--filename"];
        let output = command.args(create).arg(file.path()).output()?;
        Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let answer = lease("signpost-agent-n2")?;
    assert!(answer.contains("created"), "its own: {answer}");
    for name in ["signpost-agent-n1", "signpost-operator", "other"] {
        let refusal = lease(name)?;
        let expected = format!("the agent of node n2 may not write Lease {name}");
        assert!(refusal.contains(&expected), "{refusal}");
    }
    let patch = json!({"spec": {"profileName": "mine"}}).to_string();
    let mut command = cluster.control_plane.kubectl_command(&kubeconfig);
    let output = command
        .args([
            "patch",
            "nodeproxy",
            "n2",
            "--type=merge",
            "--patch",
            &patch,
        ])
        .output()?;
    let refusal = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        refusal.contains("cannot patch resource \"nodeproxies\""),
        "{refusal}"
    );
    Ok(())
}
