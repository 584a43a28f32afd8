//! The agent's log settings in a profile take effect without a restart.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::manifests::profile;
use crate::stage::{METRICS, Stage};

/// The log line that marks the end of the earlier output.
const MARK: &str = "changed the log level and format";

pub(crate) fn level_and_format() -> Result<()> {
    let stage = Stage::start()?;
    let process = stage.agent.process_id();
    let programmed = written(&stage)?;
    expect_logged(&stage, 0, "text", 0)?;
    let before = stage.agent.log();
    ensure!(!before.contains("DEBUG"), "there are details:\n{before}");

    apply(&stage, &json!({"verbosity": 4, "format": "json"}))?;
    stage.wait_until("a detail as JSON", || {
        let log = stage.agent.log();
        let added = log.get(before.len()..).unwrap_or_default();
        let objects = added
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let mut levels = objects.map(|line: Value| line["level"].clone());
        Ok(levels.any(|level| level == "DEBUG"))
    })?;
    expect_logged(&stage, 4, "json", 1)?;

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
    expect_logged(&stage, 0, "text", 2)?;

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

/// Checks the contents of /configz, and the number of changes so far.
fn expect_logged(stage: &Stage, verbosity: u8, format: &str, changes: usize) -> Result<()> {
    let document: Value = serde_json::from_str(&stage.ask(&format!("{METRICS}/configz"))?.body)?;
    let logging = &document["kubeproxy.config.k8s.io"]["logging"];
    ensure!(
        logging["verbosity"] == verbosity && logging["format"] == format,
        "it logs {logging}"
    );
    let log = stage.agent.log();
    let found = log.lines().filter(|line| line.contains(MARK)).count();
    ensure!(found == changes, "{found} changes in:\n{log}");
    Ok(())
}
