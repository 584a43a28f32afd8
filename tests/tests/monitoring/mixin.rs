//! kubernetes-mixin's dashboard and alerts for kube-proxy, unchanged, with agents in the place of
//! kube-proxy: scraped as the chart's PodMonitor says with one value, `metrics.podMonitor.jobLabel`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dataplane::Family;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::address_plan as addresses;
use tests::cluster::{Cluster, NODES};
use tests::deadline::wait_for;
use tests::real_cluster::helm;

use crate::prometheus::{AGENT_PORT, OPERATOR_PORT, Prometheus};

/// The address of this Prometheus, which is another one than that of the chart's own alerts.
const ADDRESS: &str = "127.0.0.1:9091";
/// How long data or an alert may take to appear: scrapes are a second apart.
const SOON: Duration = Duration::from_secs(120);

/// The queries of dashboards/proxy.libsonnet with the mixin's own values for jobs and the label of
/// the cluster: all panels that a program without a Go runtime can fill.
const PANELS: [&str; 11] = [
    r#"sum(up{cluster="$cluster", job="kube-proxy"})"#,
    r#"sum(rate(kubeproxy_sync_proxy_rules_duration_seconds_count{cluster="$cluster", job="kube-proxy", instance=~"$instance"}[$__rate_interval]))"#,
    r#"histogram_quantile(0.99,rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{cluster="$cluster", job="kube-proxy", instance=~"$instance"}[$__rate_interval]))"#,
    r#"sum(rate(kubeproxy_network_programming_duration_seconds_count{cluster="$cluster", job="kube-proxy", instance=~"$instance"}[$__rate_interval]))"#,
    r#"histogram_quantile(0.99, sum(rate(kubeproxy_network_programming_duration_seconds_bucket{cluster="$cluster", job="kube-proxy", instance=~"$instance"}[$__rate_interval])) by (instance, le))"#,
    r#"sum(rate(rest_client_requests_total{cluster="$cluster", job="kube-proxy", instance=~"$instance",code=~"2.."}[$__rate_interval]))"#,
    r#"histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket{cluster="$cluster", job="kube-proxy",instance=~"$instance",verb="POST"}[$__rate_interval])) by (verb, le))"#,
    r#"histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket{cluster="$cluster", job="kube-proxy", instance=~"$instance", verb="GET"}[$__rate_interval])) by (verb, le))"#,
    r#"process_resident_memory_bytes{cluster="$cluster", job="kube-proxy",instance=~"$instance"}"#,
    r#"rate(process_cpu_seconds_total{cluster="$cluster", job="kube-proxy",instance=~"$instance"}[$__rate_interval])"#,
    // The variable `instance` of the dashboard.
    r#"up{job="kube-proxy", cluster="$cluster"}"#,
];

/// The mixin's alert for kube-proxy.
const DOWN: (&str, &str) = ("KubeProxyDown", r#"absent(up{job="kube-proxy"} == 1)"#);
/// What its alert KubeVersionMismatch asks: the versions of all parts of Kubernetes, whatever their
/// job.
const MISMATCH: &str = r#"count by (cluster) (count by (git_version, cluster) (label_replace(kubernetes_build_info{job!~"kube-dns|coredns"},"git_version","$1","git_version","(v[0-9]*.[0-9]*).*"))) > 1"#;

/// Failure stories T228 and T230. `without` is a Prometheus that scrapes the same agents without the
/// value.
pub(crate) fn dashboard_and_alerts_show_agents(
    cluster: &mut Cluster,
    without: &Prometheus,
) -> Result<()> {
    ensure!(!without.query(DOWN.1)?.is_empty(), "the value does nothing");
    let prometheus = Prometheus::start_at(cluster, ADDRESS, &scrapes()?, &rules())?;
    let mut last = String::new();
    let waited = wait_for("data for every panel of the mixin", SOON, || {
        let mut empty = Vec::new();
        for panel in PANELS {
            let query = panel
                .replace("$cluster", "")
                .replace("$instance", ".*")
                .replace("$__rate_interval", "30s");
            // Prometheus may not answer yet.
            if !prometheus.query(&query).is_ok_and(|data| !data.is_empty()) {
                empty.push(query);
            }
        }
        last = empty.join("\n");
        Ok(empty.is_empty().then_some(()))
    });
    waited.with_context(|| format!("without data are\n{last}"))?;
    let wait = |(name, _): (&str, &str), expected: bool| {
        wait_for(&format!("{name} to fire: {expected}"), SOON, || {
            Ok((prometheus
                .firing()?
                .iter()
                .any(|alert| alert.starts_with(name))
                == expected)
                .then_some(()))
        })
    };
    wait(DOWN, false)?;
    // The API server's version is known by now, so that another one would be noticed.
    let versions = prometheus.query("count(kubernetes_build_info)")?;
    ensure!(versions.len() == 1, "{versions:?}");
    let mismatch = prometheus.query(MISMATCH)?;
    ensure!(
        mismatch.is_empty(),
        "KubeVersionMismatch fires: {mismatch:?}"
    );
    for node in NODES {
        cluster.take_agent(node)?.kill()?;
    }
    wait(DOWN, true)?;
    for node in NODES {
        cluster.start_agent(node)?;
    }
    wait(DOWN, false)
}

/// The alert without its `for` duration, and what an API server says of its version.
fn rules() -> Value {
    let down = json!({"alert": DOWN.0, "expr": DOWN.1});
    let version = json!({
        "record": "kubernetes_build_info", "expr": "vector(1)",
        "labels": {"job": "apiserver", "git_version": "v1.36.2"},
    });
    let rules = [down, version];
    json!({"groups": [{"name": "kubernetes-mixin", "rules": rules}]})
}

/// Returns the scrape configuration that the Prometheus operator makes of the chart's PodMonitors.
fn scrapes() -> Result<Value> {
    let monitors = monitors()?;
    let agents: Vec<(String, String)> = NODES
        .map(|node| {
            let address = addresses::node_address(node, Family::Ipv4);
            let name = addresses::node_name(node).to_string();
            (format!("{address}:{AGENT_PORT}"), name)
        })
        .into();
    let operators = vec![(format!("127.0.0.1:{OPERATOR_PORT}"), "control".to_owned())];
    let scrapes = [("signpost-agent", agents), ("signpost-operator", operators)].map(
        |(name, targets)| -> Result<Value> {
            let monitor = monitors
                .iter()
                .find(|monitor| monitor["metadata"]["name"] == name);
            let monitor = monitor.with_context(|| format!("there is no PodMonitor {name}"))?;
            scrape(monitor, &targets)
        },
    );
    let scrapes = scrapes.into_iter().collect::<Result<Vec<Value>>>()?;
    Ok(json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.json"],
        "scrape_configs": scrapes,
    }))
}

/// The Prometheus operator sets the job to namespace and name first; then come the monitor's rules.
fn scrape(monitor: &Value, targets: &[(String, String)]) -> Result<Value> {
    let named = |field: &str| monitor["metadata"][field].as_str().unwrap_or_default();
    let job = format!("{}/{}", named("namespace"), named("name"));
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    let own = endpoint["relabelings"].as_array().context("it has rules")?;
    let mut rules = vec![json!({"target_label": "job", "replacement": job})];
    rules.extend(own.iter().map(snake_case));
    let targets: Vec<Value> = targets
        .iter()
        .map(|(target, node)| {
            json!({"targets": [target], "labels": {"__meta_kubernetes_pod_node_name": node}})
        })
        .collect();
    Ok(json!({
        "job_name": format!("podMonitor/{job}/0"),
        "static_configs": targets,
        "relabel_configs": rules,
    }))
}

/// A relabeling with the names that Prometheus' own configuration has for the fields.
fn snake_case(relabeling: &Value) -> Value {
    let fields = relabeling.as_object().into_iter().flatten();
    let fields = fields.map(|(name, value)| {
        let mut snake = String::new();
        for letter in name.chars() {
            if letter.is_ascii_uppercase() {
                snake.push('_');
            }
            snake.push(letter.to_ascii_lowercase());
        }
        (snake, value.clone())
    });
    Value::Object(fields.collect())
}

/// Renders the chart's PodMonitors with the value.
fn monitors() -> Result<Vec<Value>> {
    let home = TempDir::new()?;
    let mut command = Command::new(helm::build()?);
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, home.path());
    }
    let output = command
        .env("KUBECONFIG", home.path().join("no-cluster"))
        .env_remove("KUBERNETES_SERVICE_HOST")
        .args(["template", "signpost", "--dry-run=client"])
        .args([
            "--namespace=signpost-system",
            "--show-only=templates/monitoring.yaml",
        ])
        .arg("--set=apiServer.host=192.0.2.10,metrics.podMonitor.enabled=true")
        .arg("--set=metrics.podMonitor.jobLabel=kube-proxy")
        .arg(helm::chart())
        .output()
        .context("failed to run helm")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "helm failed: {}", said.trim());
    let text = String::from_utf8(output.stdout).context("helm printed no text")?;
    Ok(serde_saphyr::from_multiple(&text)?)
}
