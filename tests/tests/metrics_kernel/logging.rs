//! The agent's log settings in a profile take effect without a restart.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::manifests::profile;
use crate::stage::{METRICS, Stage};

/// The log line that marks the end of the earlier output.
const MARK: &str = "changed the log level and format";
/// A module that logs a detail for each sync.
const MODULE: &str = "syncs";

pub(crate) fn level_and_format() -> Result<()> {
    let stage = Stage::start()?;
    let process = stage.agent.process_id();
    let programmed = written(&stage)?;
    expect_logged(&stage, 0, "text", 0)?;
    let before = stage.agent.log();
    ensure!(!before.contains("DEBUG"), "there are details:\n{before}");

    let vmodule = json!([{"filePattern": MODULE, "verbosity": 4}]);
    apply(&stage, &json!({"vmodule": vmodule, "format": "json"}))?;
    let details_of_one = || modules_with_details(&stage, before.len()).len();
    stage.wait_until("details of one module", || Ok(details_of_one() > 0))?;
    // That it skips this object is a detail of another module.
    stage.apply(
        "skipped",
        &json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}}),
    )?;
    let then = details_of_one();
    stage.wait_until("two more syncs", || Ok(details_of_one() >= then + 4))?;
    let details = modules_with_details(&stage, before.len());
    let others: Vec<&String> = details.iter().filter(|module| !is_named(module)).collect();
    ensure!(others.is_empty(), "others have details, too: {others:?}");
    expect_logged(&stage, 0, "json", 1)?;
    let shown = logging_in_force(&stage)?;
    ensure!(shown["vmodule"] == vmodule, "it logs {shown}");

    apply(&stage, &json!({"verbosity": 4, "format": "json"}))?;
    stage.wait_until("the verbosity of all modules", || {
        Ok(logging_in_force(&stage)?["verbosity"] == 4)
    })?;
    stage.apply(
        "skipped",
        &json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "b"}}),
    )?;
    stage.wait_until("details of the other modules", || {
        let details = modules_with_details(&stage, before.len());
        Ok(details.iter().any(|module| !is_named(module)))
    })?;
    expect_logged(&stage, 4, "json", 2)?;

    // Without the field, the flags apply again.
    apply(&stage, &json!({}))?;
    let mark = || {
        let log = stage.agent.log();
        let mut lines = log.lines().map(str::to_owned).collect::<Vec<_>>();
        let last = lines.iter().rposition(|line| line.contains(MARK))?;
        Some(lines.split_off(last))
    };
    stage.wait_until("the flags to decide again", || {
        Ok(mark().is_some_and(|since| !since[0].starts_with('{')))
    })?;
    // Each of these syncs logs only details.
    let syncs = "signpost_syncs_total{ip_family=\"IPv4\",outcome=\"unchanged\"}";
    let then = stage.agent.metric(syncs)?;
    stage.wait_until("two more syncs", || {
        Ok(stage.agent.metric(syncs)? >= then + 2.0)
    })?;
    let since = mark().unwrap_or_default();
    ensure!(
        !since.iter().any(|line| line.contains("DEBUG")),
        "still there: {since:#?}"
    );
    expect_logged(&stage, 0, "text", 3)?;

    ensure!(stage.agent.process_id() == process && stage.agent.is_ready());
    let now = written(&stage)?;
    ensure!(
        now == programmed,
        "rules were written: {programmed} syncs, {now} now"
    );
    Ok(())
}

fn apply(stage: &Stage, logging: &Value) -> Result<()> {
    stage.apply("profile", &profile(&json!({"logging": logging})))
}

/// Returns the modules of the lines of level debug, as JSON, after so many bytes of the log.
fn modules_with_details(stage: &Stage, before: usize) -> Vec<String> {
    let log = stage.agent.log();
    let added = log.get(before..).unwrap_or_default();
    let objects = added.lines().map(serde_json::from_str);
    let details = objects.filter_map(|line: Result<Value, _>| line.ok());
    let details = details.filter(|line| line["level"] == "DEBUG");
    let modules = details.filter_map(|line| line["target"].as_str().map(str::to_owned));
    modules.collect()
}

fn is_named(module: &str) -> bool {
    module.split("::").any(|part| part == MODULE)
}

/// Returns the number of syncs that have written rules.
fn written(stage: &Stage) -> Result<f64> {
    ["IPv4", "IPv6"]
        .map(|family| {
            let series =
                format!("signpost_syncs_total{{ip_family=\"{family}\",outcome=\"committed\"}}");
            stage.agent.metric(&series)
        })
        .into_iter()
        .sum()
}

/// Returns what /configz says about the log.
fn logging_in_force(stage: &Stage) -> Result<Value> {
    let document: Value = serde_json::from_str(&stage.ask(&format!("{METRICS}/configz"))?.body)?;
    Ok(document["kubeproxy.config.k8s.io"]["logging"].clone())
}

/// Checks the contents of /configz, and the number of changes so far.
fn expect_logged(stage: &Stage, verbosity: u8, format: &str, changes: usize) -> Result<()> {
    let logging = logging_in_force(stage)?;
    ensure!(
        logging["verbosity"] == verbosity && logging["format"] == format,
        "it logs {logging}"
    );
    let log = stage.agent.log();
    let found = log.lines().filter(|line| line.contains(MARK)).count();
    ensure!(found == changes, "{found} changes in:\n{log}");
    Ok(())
}
