//! Which writes the API server accepts, by user.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Event as CoreEvent, ObjectReference};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::events::Reporter;
use serde_json::{Value, json};
use tests::control_plane::{OPERATOR_MANIFESTS, ServiceAccount};
use tests::deadline::wait_for;

use crate::cluster::Cluster;
use crate::operator::Operator;
use crate::{DEADLINE, NAMESPACE, NODES};

pub(crate) fn every_manifest_is_one_the_api_server_takes(cluster: &mut Cluster) -> Result<()> {
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

pub(crate) fn an_agent_writes_about_its_own_node_alone(cluster: &mut Cluster) -> Result<()> {
    let _operator = Operator::start(cluster, "operator-1")?;
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

/// Grants agents writes of Events in the API group "", as the role of another program may.
const FURTHER_RIGHTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: further-rights}
rules:
  - {apiGroups: [''], resources: [events], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: further-rights}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: further-rights}
subjects:
  - {kind: ServiceAccount, name: signpost-agent, namespace: signpost-system}
";

pub(crate) fn t196_an_agent_writes_events_in_the_name_of_its_own_node_alone(
    cluster: &mut Cluster,
) -> Result<()> {
    let service = regarding("Service", Some(NAMESPACE), "cart");
    let node = regarding("Node", None, "n2");
    let refused = |token, reporter, regarding| {
        let written = cluster.announce_as(token, reporter, regarding);
        written.err().map(|error| format!("{error:#}"))
    };
    // The API server takes a moment to enforce the policy.
    let refusal = wait_for("the policy to be in force", DEADLINE, || {
        Ok(refused(Some("n2"), agent_on("n1"), &service))
    })?;
    for part in [
        "the agent of node n2 may not write Event cart.",
        ": reportingInstance must be n2",
    ] {
        assert!(refusal.contains(part), "{refusal}");
    }
    let kubelet = Reporter {
        controller: "kubelet".to_owned(),
        ..agent_on("n2")
    };
    let other = regarding("Node", None, "n1");
    let pod = regarding("Pod", Some(NAMESPACE), "cart");
    for (token, reporter, regarding, expected) in [
        (Some("n2"), kubelet, &node, "reportingController must be"),
        (Some("n2"), agent_on("n2"), &other, "regarding must be"),
        (Some("n2"), agent_on("n2"), &pod, "regarding must be"),
        (None, agent_on("n2"), &node, "must say which node it is for"),
    ] {
        let refusal = refused(token, reporter, regarding).context(expected)?;
        assert!(refusal.contains(expected), "not {expected:?}: {refusal}");
    }

    cluster.announce_as(Some("n2"), agent_on("n2"), &service)?;
    cluster.announce_as(Some("n2"), agent_on("n2"), &node)?;
    cluster.announce_as(Some("n1"), agent_on("n1"), &other)?;
    let written = |node: &str| {
        let about = format!("--field-selector=involvedObject.kind=Node,involvedObject.name={node}");
        let columns = "--output=jsonpath={range .items[*]}{.metadata.name} {.reportingInstance} \
                       {.series.count}{end}";
        let arguments = ["get", "events", "--namespace=default", &about, columns];
        cluster.control_plane.kubectl(&arguments)
    };
    for node in ["n1", "n2"] {
        let (written, expected) = (written(node)?, format!(" {node} 2"));
        assert!(written.ends_with(&expected), "not {expected}: {written}");
    }

    let all = written("n1")?;
    let name = all.split(' ').next().context("it has a name")?;
    let again = json!({"series": {"count": 3, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}});
    let refusal =
        patch_event::<Event>(cluster, name, again).expect_err("it is an Event of node n1");
    let expected =
        format!("the agent of node n2 may not write Event {name}: reportingInstance must be n2");
    assert!(format!("{refusal:#}").contains(&expected), "{refusal:#}");

    cluster.control_plane.apply(FURTHER_RIGHTS)?;
    // The API server takes a moment to grant them.
    wait_for("the policy to refuse it, not a role", DEADLINE, || {
        let takeover = json!({"reportingInstance": "n2", "involvedObject": {"name": "n2"}});
        let refusal = patch_event::<CoreEvent>(cluster, name, takeover)
            .expect_err("it is an Event of node n1");
        Ok(format!("{refusal:#}").contains(&expected).then_some(()))
    })
}

/// The reporter of the Events of the agent on `node`.
fn agent_on(node: &str) -> Reporter {
    Reporter {
        controller: "signpost-agent".to_owned(),
        instance: Some(node.to_owned()),
    }
}

fn regarding(kind: &str, namespace: Option<&str>, name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// Patches an Event of namespace `default` with the credentials of the agent on n2.
fn patch_event<E: kube::Resource<DynamicType = ()>>(
    cluster: &Cluster,
    name: &str,
    patch: Value,
) -> Result<()> {
    cluster.as_agent(Some("n2"), async |client| {
        let resource = ApiResource::erase::<E>(&());
        let events = Api::<DynamicObject>::namespaced_with(client, "default", &resource);
        events
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    })
}
