//! Checks that duplicated content in the chart and elsewhere is identical.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::binaries;

use crate::helm::{Cluster, Helm, chart, repository};
use crate::manifests::{find, parse};

#[test]
fn the_kinds_are_those_that_are_generated() -> Result<()> {
    for file in ["nodeproxies.yaml", "proxyprofiles.yaml"] {
        let generated = fs::read_to_string(repository().join("crds/generated").join(file))?;
        let packed = fs::read_to_string(chart().join("files/crds").join(file))?;
        ensure!(
            generated == packed,
            "{file} differs from crds/generated: make generate"
        );
    }
    Ok(())
}

#[test]
fn chart_and_programs_have_one_version() -> Result<()> {
    let chart: Value = serde_saphyr::from_str(&fs::read_to_string(chart().join("Chart.yaml"))?)?;
    for field in ["version", "appVersion"] {
        ensure!(
            chart[field] == env!("CARGO_PKG_VERSION"),
            "{field} of Chart.yaml is {}, the workspace's is {}",
            chart[field],
            env!("CARGO_PKG_VERSION")
        );
    }
    Ok(())
}

#[test]
fn every_variable_that_is_set_is_one_that_the_program_reads() -> Result<()> {
    let rendered = Helm::new(Cluster::None)?.render(&["--set=apiServer.host=192.0.2.10"])?;
    let rendered = parse(&rendered)?;
    for (kind, program) in [
        ("DaemonSet", "signpost-agent"),
        ("Deployment", "signpost-operator"),
    ] {
        let workload = find(&rendered, kind, program)?;
        let variables = workload.pointer("/spec/template/spec/containers/0/env");
        let variables = variables.and_then(Value::as_array).context("variables")?;
        let set: BTreeSet<&str> = variables
            .iter()
            .filter_map(|v| v["name"].as_str())
            .collect();
        let help = Command::new(binaries::find(program)?)
            .args(["run", "--help"])
            .output()?;
        let help = String::from_utf8(help.stdout)?;
        for variable in set.iter().filter(|name| name.starts_with("SIGNPOST_")) {
            ensure!(
                help.contains(&format!("[env: {variable}=")),
                "{program} does not read {variable}"
            );
        }
        // The two variables that the client library reads.
        for variable in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
            ensure!(set.contains(variable), "{program} does not get {variable}");
        }
    }
    Ok(())
}
