//! The values in `examples`, what they come to, and that an API server takes it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::control_plane::{ADMINISTRATOR, ControlPlane, Options};
use tests::scenario::Update;

use crate::api_server::{CLUSTER_INFO, apply};
use crate::helm::{Cluster, Helm, NAMESPACE, chart, fixtures};
use crate::{k3s, manifests};

/// What a cluster has before anything of ours: the namespace, and a kind of the Prometheus operator,
/// by its name alone: what its objects may say is not looked at here.
const BEFORE: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: signpost-system}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: PodMonitor, plural: podmonitors}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

/// `rendered` without the kinds, which are somewhere else already.
fn without_kinds(rendered: &str) -> String {
    let documents = rendered.split("\n---\n");
    let others =
        documents.filter(|document| !document.contains("# Source: signpost/templates/crds.yaml"));
    let others: Vec<&str> = others.collect();
    others.join("\n---\n")
}

/// Fails where this is not what `golden` holds, unless that is to be written.
fn compare(golden: &Path, rendered: &str) -> Result<()> {
    let recorded = fs::read_to_string(golden).unwrap_or_default();
    if recorded == rendered {
        return Ok(());
    }
    if Update::from_environment()? == Update::Differing {
        return fs::write(golden, rendered).context("failed to write what was rendered");
    }
    let mut lines = recorded.lines().zip(rendered.lines()).enumerate();
    let first = lines.find(|(_, (recorded, rendered))| recorded != rendered);
    anyhow::bail!(
        "{} differs (UPDATE=1 writes it), first in {first:?}",
        golden.display()
    )
}

/// Fails where the API server would not take all of `rendered` as it stands, unknown fields included.
fn ensure_taken(control_plane: &ControlPlane, rendered: &str) -> Result<()> {
    let objects = manifests::parse(rendered)?;
    let kinds = objects.iter();
    for (_, kind) in kinds.filter(|(identity, _)| identity.kind == "CustomResourceDefinition") {
        control_plane.apply(&kind.to_string())?;
    }
    control_plane.kubectl(&["wait", "crd", "--all", "--for=condition=Established"])?;

    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), rendered)?;
    let file = format!("--filename={}", file.path().display());
    let arguments = ["apply", "--dry-run=server", "--validate=strict", &file];
    let said = control_plane.kubectl(&arguments)?;
    ensure!(
        said.lines().count() == objects.len(),
        "{} objects, and: {said}",
        objects.len()
    );
    Ok(())
}

#[test]
fn examples_come_to_what_is_recorded_and_an_api_server_takes_them() -> Result<()> {
    let control_plane = ControlPlane::start(Options::default())?;
    control_plane.apply(BEFORE)?;
    apply(&control_plane, CLUSTER_INFO)?;
    let kubeadm = Cluster::Kubeconfig(control_plane.kubeconfig(ADMINISTRATOR)?);
    let k3s = Cluster::Server(k3s::serve(&control_plane, "v1.34.2+k3s1")?);
    let mut rendered = Vec::new();
    for (name, cluster) in [
        ("kubeadm", kubeadm),
        ("managed-cloud", Cluster::None),
        ("edge", k3s),
    ] {
        let values = chart().join(format!("examples/{name}.yaml"));
        let values = format!("--values={}", values.display());
        rendered.push((name, Helm::new(cluster)?.render(&[values])?));
    }
    for (name, rendered) in rendered {
        let golden = fixtures("golden").join(format!("{name}.yaml"));
        compare(&golden, &without_kinds(&rendered))?;
        ensure_taken(&control_plane, &rendered).with_context(|| name.to_owned())?;
    }
    Ok(())
}

#[test]
fn every_example_is_tried() -> Result<()> {
    for folder in [chart().join("examples"), fixtures("golden")] {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        ensure!(names == ["edge.yaml", "kubeadm.yaml", "managed-cloud.yaml"]);
    }
    Ok(())
}

#[test]
fn one_operator_has_no_disruption_budget_and_two_have() -> Result<()> {
    for (replicas, expected) in [(1, 0), (2, 1)] {
        let set = format!("--set=operator.replicas={replicas}");
        let arguments = ["--set=apiServer.host=192.0.2.10", &set];
        let rendered = manifests::parse(&Helm::new(Cluster::None)?.render(&arguments)?)?;
        let budgets = rendered.keys();
        let budgets = budgets.filter(|identity| identity.kind == "PodDisruptionBudget");
        ensure!(budgets.count() == expected, "of {replicas} operators");
        let operator = manifests::find(&rendered, "Deployment", "signpost-operator")?;
        ensure!(operator["metadata"]["namespace"] == NAMESPACE);
    }
    Ok(())
}

#[test]
fn kinds_are_left_out_or_go_with_the_release_where_values_say_so() -> Result<()> {
    for (set, kept) in [
        ("--set=crds.install=true", &[true, true][..]),
        ("--set=crds.keep=false", &[false, false]),
        ("--set=crds.install=false", &[]),
    ] {
        let arguments = ["--set=apiServer.host=192.0.2.10", set];
        let rendered = manifests::parse(&Helm::new(Cluster::None)?.render(&arguments)?)?;
        let kinds = rendered.iter();
        let kinds = kinds.filter(|(identity, _)| identity.kind == "CustomResourceDefinition");
        let found: Vec<bool> = kinds
            .map(|(_, kind)| kind["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep")
            .collect();
        ensure!(found == kept, "with {set}: {found:?}");
    }
    Ok(())
}

#[test]
fn agents_can_be_scraped_where_somebody_is_told_to() -> Result<()> {
    for (set, address) in [
        ("--set=log.filter=info", "127.0.0.1:10249"),
        ("--set=metrics.service.enabled=true", "0.0.0.0:10249"),
        ("--set=metrics.podMonitor.enabled=true", "0.0.0.0:10249"),
    ] {
        let arguments = ["--set=apiServer.host=192.0.2.10", set];
        let rendered = manifests::parse(&Helm::new(Cluster::None)?.render(&arguments)?)?;
        let agent = manifests::find(&rendered, "DaemonSet", "signpost-agent")?;
        let listens = manifests::variable(agent, "SIGNPOST_METRICS_ADDRESS");
        ensure!(listens == Some(address), "with {set}: {listens:?}");
        let ports = agent.pointer("/spec/template/spec/containers/0/ports");
        let named = ports.and_then(Value::as_array).is_some_and(|ports| {
            let mut ports = ports.iter();
            ports.any(|port| port["name"] == "metrics" && port["containerPort"] == 10249)
        });
        ensure!(
            named == address.starts_with("0.0.0.0"),
            "with {set}: {ports:?}"
        );
    }
    Ok(())
}
