//! A Prometheus with real agents and a real operator: every dashboard has data, every alert is
//! valid, and alerts fire for real faults and clear afterwards.

mod conntrack_table;
mod faults;
mod mixin;
mod prometheus;
mod shortened;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dashboards::alert::{alerts, render_rules};
use libtest_mimic::{Arguments, Trial};
use serde_json::json;
use tempfile::TempDir;
use tests::cluster::shop::{Readiness, WEB};
use tests::cluster::{Cluster, DEADLINE};
use tests::control_plane::build_programs;
use tests::deadline::wait_for;
use tests::metric_reference::Reference;
use tests::network::enter_private_namespaces;
use tests::trial::trial;

use prometheus::{Prometheus, find, promtool};

/// The scrape address of the operator in its namespace.
const OPERATOR: &str = "http://127.0.0.1:10262/metrics";
/// How long a metric or an alert may take to appear: scrapes are a second apart.
const SOON: Duration = Duration::from_secs(120);

fn main() -> Result<()> {
    let arguments = Arguments::from_args();
    if let Err(error) = find("prometheus") {
        println!("SKIPPED: dashboards and alerts on a real Prometheus: {error:#}");
        let skipped = Trial::test("SKIPPED_everything_with_prometheus", || Ok(()));
        let skipped = vec![skipped.with_ignored_flag(true)];
        libtest_mimic::run(&arguments, skipped).exit();
    }
    build_programs()?;
    enter_private_namespaces()?;
    let trials = vec![
        trial(
            "t152_promtool_takes_the_alerts_and_each_fires_when_it_should",
            rules,
        ),
        trial("only_times_are_shortened", shortened::only_times_change),
        trial(
            "t250_the_panel_of_connections_has_those_of_each_mode",
            connections_of_each_mode,
        ),
        trial(
            "t153_t224_t225_every_expression_has_data_and_each_alert_fires_and_clears",
            live,
        ),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

/// `alerts.test.yaml` defines when every alert fires and when it does not.
fn rules() -> Result<()> {
    let folder = TempDir::new()?;
    fs::write(
        folder.path().join("alerts.json"),
        render_rules(&alerts()).to_string(),
    )?;
    promtool(folder.path(), &["check", "rules", "alerts.json"])?;
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/monitoring/alerts.test.yaml");
    let tests = fs::read_to_string(tests)?;
    for alert in alerts() {
        let fires = format!(
            "count(ALERTS{{alertname=\"{}\",alertstate=\"firing\"}})",
            alert.name
        );
        ensure!(tests.contains(&fires), "no test of {}", alert.name);
    }
    fs::write(folder.path().join("tests.yaml"), tests)?;
    promtool(folder.path(), &["test", "rules", "tests.yaml"])?;
    Ok(())
}

/// Nodes of the live test are in mode nftables, and this panel has another metric in mode ipvs.
/// `t178_connections_outlive_their_endpoint_and_service` finds that metric at an agent in that mode.
fn connections_of_each_mode() -> Result<()> {
    const PANEL: &str = "New connections to Services";
    let dashboards = dashboards::dashboards();
    let mut expressions = dashboards
        .iter()
        .flat_map(|dashboard| dashboard.expressions());
    let (_, expression) = expressions
        .find(|(panel, _)| *panel == PANEL)
        .context(PANEL)?;
    let expression = expression
        .replace("$__rate_interval", "5m")
        .replace("$node", "node-1");
    let series = |series: &str| json!({"series": series, "values": "0+60x10"});
    let test = json!({
        "interval": "1m",
        "input_series": [
            series(r#"signpost_ipvs_new_connections_total{node="node-1"}"#),
            series(r#"signpost_new_connections_total{node="node-1",ip_family="IPv4"}"#),
            series(r#"signpost_new_connections_total{node="node-2",ip_family="IPv6"}"#),
        ],
        "promql_expr_test": [{"expr": expression, "eval_time": "10m", "exp_samples": [
            {"labels": r#"{ip_family="IPv4"}"#, "value": 1},
            {"labels": r#"{ip_family="both, by IPVS"}"#, "value": 1},
        ]}],
    });
    let folder = TempDir::new()?;
    let tests = json!({"rule_files": [], "evaluation_interval": "1m", "tests": [test]});
    fs::write(folder.path().join("tests.yaml"), tests.to_string())?;
    promtool(folder.path(), &["test", "rules", "tests.yaml"]).map(drop)
}

fn live() -> Result<()> {
    let mut cluster = Cluster::start()?;
    let done = watched(&mut cluster);
    done.with_context(|| cluster.describe_logs())
}

fn watched(cluster: &mut Cluster) -> Result<()> {
    cluster.settle()?;
    let prometheus = Prometheus::start(cluster)?;
    wait_for("every target to be scraped", SOON, || {
        let up = prometheus.query("sum(up)");
        Ok(up
            .is_ok_and(|up| up.first().is_some_and(|up| up["value"][1] == "4"))
            .then_some(()))
    })?;
    // A change, which produces a latency, and a change by another program.
    cluster.set_readiness(WEB[1], Readiness::NotReady)?;
    cluster
        .topology()
        .node(1)?
        .nft(&["delete table ip signpost"])?;
    cluster.set_readiness(WEB[1], Readiness::Ready)?;
    every_expression_has_data(&prometheus)?;
    mixin::dashboard_and_alerts_show_agents(cluster, &prometheus)?;
    let mut reference = Reference::default();
    let control = cluster.topology().other("control")?;
    reference.add(control.get(OPERATOR, DEADLINE)?.body());
    reference.compare("operator")?;
    faults::make(cluster, &prometheus)
}

fn every_expression_has_data(prometheus: &Prometheus) -> Result<()> {
    let mut expressions: Vec<(String, String)> = Vec::new();
    for dashboard in dashboards::dashboards() {
        let of_dashboard = dashboard.expressions().map(|(panel, expression)| {
            let expression = expression.replace("$__rate_interval", "30s");
            let place = format!("{}, {panel}", dashboard.title);
            (place, expression.replace("$node", "node-1"))
        });
        expressions.extend(of_dashboard);
    }
    let measured = alerts().into_iter();
    expressions.extend(measured.map(|alert| (alert.name.to_owned(), alert.measured)));
    let count = expressions.len();
    let mut last = String::new();
    let waited = wait_for("data for every expression", SOON, || {
        let mut without = Vec::new();
        for (place, expression) in &expressions {
            if prometheus.query(expression)?.is_empty() {
                without.push(format!("{place}: {expression}"));
            }
        }
        last = without.join("\n");
        Ok(without.is_empty().then_some(()))
    });
    waited.with_context(|| format!("without data are\n{last}"))?;
    println!("    {count} expressions have data");
    Ok(())
}
