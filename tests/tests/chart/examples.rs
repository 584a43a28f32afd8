//! The values in `examples`, the manifests rendered from them, and that an API server accepts
//! these.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::control_plane::{ADMINISTRATOR, ControlPlane, Options};
use tests::scenario::Update;

use crate::api_server::{CLUSTER_INFO, apply};
use crate::helm::{Cluster, Helm, NAMESPACE, chart, fixtures};
use crate::{k3s, manifests};

/// Returns the objects that must exist before Signpost: the namespace, and the kinds of the
/// Prometheus operator without a schema, because the content of their objects is not checked here.
fn before() -> String {
    let kinds = [
        ("PodMonitor", "podmonitors"),
        ("PrometheusRule", "prometheusrules"),
    ];
    let kinds = kinds.map(|(kind, plural)| {
        format!(
            "---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.monitoring.coreos.com}}
spec:
  group: monitoring.coreos.com
  names: {{kind: {kind}, plural: {plural}}}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {{type: object, x-kubernetes-preserve-unknown-fields: true}}
"
        )
    });
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: signpost-system}\n";
    [namespace.to_owned(), kinds.concat()].concat()
}

/// Returns `rendered` without the verbatim files of `charts/signpost/files`: CRDs and dashboards.
fn without_files(rendered: &str) -> String {
    let is_file = |document: &&str| {
        ["crds", "dashboards"]
            .iter()
            .any(|name| document.contains(&format!("# Source: signpost/templates/{name}.yaml")))
    };
    let documents = rendered.split("\n---\n");
    let others: Vec<&str> = documents.filter(|document| !is_file(document)).collect();
    others.join("\n---\n")
}

/// Fails if `rendered` differs from `golden`, unless the golden file is to be updated.
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

/// Fails unless the API server accepts all of `rendered`. Unknown fields are an error.
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
    control_plane.apply(&before())?;
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
        compare(&golden, &without_files(&rendered))?;
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
fn on_a_single_node_there_is_one_operator_because_two_cannot_share_it() -> Result<()> {
    let control_plane = ControlPlane::start(Options::default())?;
    let kubeconfig = control_plane.kubeconfig(ADMINISTRATOR)?;
    let helm = Helm::new(Cluster::Kubeconfig(kubeconfig))?;
    let replicas = |set: &str| -> Result<Value> {
        let set = format!("--set=apiServer.host=192.0.2.10{set}");
        let rendered = manifests::parse(&helm.render(&[set])?)?;
        let operator = manifests::find(&rendered, "Deployment", "signpost-operator")?;
        Ok(operator["spec"]["replicas"].clone())
    };
    let windows = json!({"kubernetes.io/os": "windows"});
    let linux = json!({"kubernetes.io/os": "linux"});
    let system = json!({"kubernetes.io/os": "linux", "pool": "system"});
    for (name, labels, expected) in [("n1", windows, 2), ("n2", system, 1), ("n3", linux, 2)] {
        let metadata = json!({"name": name, "labels": labels});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
        control_plane.apply(&node.to_string())?;
        let found = replicas("")?;
        ensure!(found == expected, "{found} with node {name}");
    }
    ensure!(replicas(",operator.nodeSelector.pool=system")? == 1);
    ensure!(replicas(",operator.nodeSelector.pool=system,operator.replicas=3")? == 3);
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

/// kube-proxy's port must never be scraped, because kube-proxy may be using it.
#[test]
fn agents_are_scraped_at_an_address_of_metrics_alone() -> Result<()> {
    for (set, scraped) in [
        ("--set=log.filter=info", None),
        ("--set=metrics.service.enabled=true", Some("0.0.0.0:10263")),
        (
            "--set=metrics.podMonitor.enabled=true",
            Some("0.0.0.0:10263"),
        ),
    ] {
        let arguments = ["--set=apiServer.host=192.0.2.10", set];
        let rendered = manifests::parse(&Helm::new(Cluster::None)?.render(&arguments)?)?;
        let agent = manifests::find(&rendered, "DaemonSet", "signpost-agent")?;
        let listens = manifests::variable(agent, "SIGNPOST_SCRAPE_ADDRESS");
        ensure!(listens == scraped, "with {set}: {listens:?}");
        let private = manifests::variable(agent, "SIGNPOST_METRICS_ADDRESS");
        ensure!(
            private == Some("127.0.0.1:10249"),
            "with {set}: {private:?}"
        );
        let ports = agent.pointer("/spec/template/spec/containers/0/ports");
        let ports = ports.and_then(Value::as_array).cloned().unwrap_or_default();
        let ports: Vec<_> = ports.iter().map(|port| &port["containerPort"]).collect();
        let expected: &[u16] = if scraped.is_some() { &[10263] } else { &[] };
        ensure!(ports == expected, "with {set}: {ports:?}");
    }
    Ok(())
}

#[test]
fn the_job_of_agents_can_be_that_of_kube_proxy() -> Result<()> {
    for (set, expected) in [("", None), ("kube-proxy", Some("kube-proxy"))] {
        let set =
            format!("--set=metrics.podMonitor.enabled=true,metrics.podMonitor.jobLabel={set}");
        let arguments = ["--set=apiServer.host=192.0.2.10", &set];
        let rendered = manifests::parse(&Helm::new(Cluster::None)?.render(&arguments)?)?;
        for (name, expected) in [("signpost-agent", expected), ("signpost-operator", None)] {
            let monitor = manifests::find(&rendered, "PodMonitor", name)?;
            let relabelings = monitor.pointer("/spec/podMetricsEndpoints/0/relabelings");
            let relabelings = relabelings.and_then(Value::as_array);
            let mut relabelings = relabelings.into_iter().flatten();
            let job = relabelings.find(|relabeling| relabeling["targetLabel"] == "job");
            let job = job.and_then(|job| job["replacement"].as_str());
            ensure!(job == expected, "{name} with {set}: {job:?}");
        }
    }
    Ok(())
}

#[test]
fn relabelings_of_a_user_come_after_those_of_the_chart() -> Result<()> {
    let own = json!({"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"});
    let job = json!({"targetLabel": "job", "replacement": "kube-proxy"});
    let zone = json!({"targetLabel": "zone", "replacement": "a"});
    let drop = json!({"action": "drop", "sourceLabels": ["__name__"], "regex": "process_.*"});
    let values = json!({
        "enabled": true, "jobLabel": "kube-proxy", "relabelings": [zone], "metricRelabelings": [drop],
    });
    let arguments = [
        "--set=apiServer.host=192.0.2.10".to_owned(),
        format!("--set-json=metrics.podMonitor={values}"),
    ];
    let rendered = manifests::parse(&Helm::new(Cluster::None)?.render(&arguments)?)?;
    for (name, relabelings) in [
        ("signpost-agent", json!([own, job, zone])),
        ("signpost-operator", json!([own, zone])),
    ] {
        let monitor = manifests::find(&rendered, "PodMonitor", name)?;
        let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
        ensure!(endpoint["relabelings"] == relabelings, "{name}: {endpoint}");
        ensure!(
            endpoint["metricRelabelings"] == json!([drop]),
            "{name}: {endpoint}"
        );
    }
    Ok(())
}

#[test]
fn dashboards_and_alerts_are_there_where_values_say_so() -> Result<()> {
    let render = |set: &str| -> Result<manifests::Objects> {
        let set = format!("--set=apiServer.host=192.0.2.10,profile.create=false,{set}");
        manifests::parse(&Helm::new(Cluster::None)?.render(&[&set])?)
    };
    let named = |objects: &manifests::Objects, kind: &str| -> Vec<String> {
        let of_kind = objects.keys().filter(|identity| identity.kind == kind);
        let names = of_kind.map(|identity| identity.name.clone());
        names.filter(|n| n != "signpost-initial-profile").collect()
    };
    let (fleet, node) = ("signpost-dashboard-fleet", "signpost-dashboard-node");
    for (set, maps, rules) in [
        ("log.filter=info", vec![], 0),
        ("metrics.dashboards.enabled=true", vec![fleet, node], 0),
        (
            "metrics.dashboards.enabled=true,metrics.dashboards.node=false",
            vec![fleet],
            0,
        ),
        ("metrics.rules.enabled=true", vec![], 1),
    ] {
        let objects = render(set)?;
        ensure!(named(&objects, "ConfigMap") == maps, "with {set}");
        ensure!(
            named(&objects, "PrometheusRule").len() == rules,
            "with {set}"
        );
    }
    let objects = render("metrics.dashboards.enabled=true")?;
    for name in [fleet, node] {
        let map = manifests::find(&objects, "ConfigMap", name)?;
        ensure!(map["metadata"]["labels"]["grafana_dashboard"] == "1");
        let file = name.replace("dashboard-", "");
        let text = map["data"][format!("{file}.json")].as_str();
        let dashboard: Value = serde_json::from_str(text.context("it has a file")?)?;
        ensure!(dashboard["uid"] == file, "{name} has {}", dashboard["uid"]);
    }
    Ok(())
}

#[test]
fn alerts_can_be_left_out_and_follow_the_job() -> Result<()> {
    let render = |set: &str| {
        let set = format!("--set=apiServer.host=192.0.2.10,metrics.rules.enabled=true{set}");
        Helm::new(Cluster::None)?.render(&[&set])
    };
    let rules = |text: &str| -> Result<Vec<Value>> {
        let objects = manifests::parse(text)?;
        let rule = manifests::find(&objects, "PrometheusRule", "signpost")?;
        let rules = rule
            .pointer("/spec/groups/0/rules")
            .and_then(Value::as_array);
        rules.cloned().context("it has rules")
    };
    let all = rules(&render("")?)?;
    let runbook = "https://github.com/signpost/signpost/blob/main/docs/alerts.md#";
    for rule in &all {
        let link = rule["annotations"]["runbook_url"].as_str();
        ensure!(link.is_some_and(|link| link.starts_with(runbook)), "{rule}");
    }
    let fewer = rules(&render(
        ",metrics.rules.without={SignpostServicesRejected}",
    )?)?;
    ensure!(fewer.len() + 1 == all.len());
    ensure!(
        fewer
            .iter()
            .all(|rule| rule["alert"] != "SignpostServicesRejected")
    );
    let renamed = rules(&render(",metrics.podMonitor.jobLabel=kube-proxy")?)?;
    let down = renamed
        .iter()
        .find(|rule| rule["alert"] == "SignpostAgentDown");
    let expression = down.and_then(|down| down["expr"].as_str());
    ensure!(
        expression == Some(r#"up{job=~"kube-proxy"} == 0"#),
        "{expression:?}"
    );
    let refused = render(",metrics.rules.without={NoSuchAlert}");
    let said = refused.err().map(|error| error.to_string());
    ensure!(said.is_some_and(|said| said.contains("NoSuchAlert, which is no alert")));
    Ok(())
}
