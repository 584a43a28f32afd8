//! A real Prometheus next to the control plane of a cluster.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dashboards::alert::{alerts, render_rules};
use dataplane::Family;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::address_plan as addresses;
use tests::cluster::{Cluster, NODES, Program};
use tests::network::Namespace;

use crate::shortened::shorten;

/// Its address in the namespace of the control plane.
const ADDRESS: &str = "127.0.0.1:9090";
/// The series of the alerts that fire.
const FIRING: &str = r#"ALERTS{alertstate="firing"}"#;
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// The scrape ports of agents and operators.
pub(crate) const AGENT_PORT: u16 = 10263;
pub(crate) const OPERATOR_PORT: u16 = 10262;

/// A running Prometheus that scrapes every second and evaluates the alerts as often, in which a
/// second stands for a minute.
#[derive(Debug)]
pub(crate) struct Prometheus {
    #[expect(dead_code, reason = "held for the sake of its end")]
    program: Program,
    #[expect(dead_code, reason = "held for the sake of its end")]
    folder: TempDir,
    namespace: Namespace,
    address: &'static str,
}

/// Returns a program of Debian's package prometheus: installed, or unpacked by `tools/set-up`.
pub(crate) fn find(program: &str) -> Result<PathBuf> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/prometheus/usr/bin");
    [PathBuf::from("/usr/bin"), unpacked]
        .map(|folder| folder.join(program))
        .into_iter()
        .find(|path| path.exists())
        .with_context(|| format!("{program} is not there: run tools/set-up"))
}

/// Runs `promtool` in `folder`.
pub(crate) fn promtool(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(find("promtool")?)
        .args(arguments)
        .current_dir(folder)
        .output()
        .context("failed to run promtool")?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "promtool {arguments:?}: {said}");
    Ok(said)
}

// === impl Prometheus ===

impl Prometheus {
    /// Starts Prometheus in the namespace of the control plane of `cluster`.
    pub(crate) fn start(cluster: &Cluster) -> Result<Prometheus> {
        let rules = shorten(render_rules(&alerts()))?;
        Prometheus::start_at(cluster, ADDRESS, &configuration_of_scrapes(), &rules)
    }

    /// Starts Prometheus at another address, with this configuration, which names the file
    /// `rules.json` of `rules`.
    pub(crate) fn start_at(
        cluster: &Cluster,
        address: &'static str,
        configuration: &Value,
        rules: &Value,
    ) -> Result<Prometheus> {
        let folder = TempDir::new()?;
        fs::write(folder.path().join("rules.json"), rules.to_string())?;
        promtool(folder.path(), &["check", "rules", "rules.json"])?;
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, configuration.to_string())?;
        let namespace = cluster.topology().other("control")?.clone();
        let mut command = namespace.command(find("prometheus")?);
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=warn");
        let log = folder.path().join("log");
        let program = Program::start("prometheus", command, &log)?;
        Ok(Prometheus {
            program,
            folder,
            namespace,
            address,
        })
    }

    /// Returns the present series of `expression`.
    pub(crate) fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let address = self.address;
        let url = format!("http://{address}/api/v1/query?query={}", encode(expression));
        let answer = self.namespace.get(&url, ANSWERS_WITHIN)?;
        let answer: Value = serde_json::from_str(answer.body())?;
        ensure!(answer["status"] == "success", "{expression}: {answer}");
        let result = answer["data"]["result"].as_array().cloned();
        result.with_context(|| format!("{expression}: {answer}"))
    }

    /// Returns the alerts that fire now, each with the node that it is about.
    pub(crate) fn firing(&self) -> Result<BTreeSet<String>> {
        self.alerts(FIRING)
    }

    /// Returns those that have fired within the last `span`.
    pub(crate) fn fired_within(&self, span: Duration) -> Result<BTreeSet<String>> {
        self.alerts(&format!(
            "max_over_time({FIRING}[{}s])",
            span.as_secs().max(1)
        ))
    }

    fn alerts(&self, expression: &str) -> Result<BTreeSet<String>> {
        let grouped = format!("max by (alertname, node) ({expression})");
        let series = self.query(&grouped)?;
        let name = |series: &Value| {
            let label = |name: &str| series["metric"][name].as_str().unwrap_or_default();
            let name = format!("{} {}", label("alertname"), label("node"));
            name.trim().to_owned()
        };
        Ok(series.iter().map(name).collect())
    }
}

/// Returns the scrape configuration for agents and operators, with the job names of the chart's
/// PodMonitors.
fn configuration_of_scrapes() -> Value {
    let agents = NODES.map(|number| {
        let address = addresses::node_address(number, Family::Ipv4);
        json!({
            "targets": [format!("{address}:{AGENT_PORT}")],
            "labels": {"node": &*addresses::node_name(number)},
        })
    });
    let operators = [json!({"targets": [format!("127.0.0.1:{OPERATOR_PORT}")]})];
    json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.json"],
        "scrape_configs": [
            {"job_name": "signpost-system/signpost-agent", "static_configs": agents},
            {"job_name": "signpost-system/signpost-operator", "static_configs": operators},
        ],
    })
}

/// Percent-encodes everything but letters and digits.
fn encode(text: &str) -> String {
    let encode = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
