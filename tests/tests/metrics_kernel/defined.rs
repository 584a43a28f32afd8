//! The metrics defined in the sources, whether or not they have a value: one without a value is in
//! no scrape.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The folders that define metrics of the agent.
const SOURCES: [&str; 7] = [
    "node-agent/src",
    "crates/agent-metrics/src",
    "crates/runtime/src",
    "crates/relay/src",
    "crates/conntrack/src",
    "crates/events/src",
    "crates/health-checks/src",
];
/// The prefixes of metric names.
const PREFIXES: [&str; 5] = [
    "kubeproxy_",
    "signpost_",
    "rest_client_",
    "process_",
    "kubernetes_",
];

/// Returns every string in the sources that is the name of a metric.
pub(crate) fn observe() -> Result<BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut names = BTreeSet::new();
    for source in SOURCES {
        for file in files(&root.join(source))? {
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            // Tests define invented metrics, and comments quote names.
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let lines = code
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            names.extend(lines.flat_map(names_in).map(str::to_owned));
        }
    }
    Ok(names)
}

/// Returns the possible names in a scrape of a metric defined as `name`: types and units add
/// suffixes.
pub(crate) fn names_of(name: &str) -> impl Iterator<Item = String> {
    let suffixes = [
        "",
        "_total",
        "_info",
        "_seconds",
        "_bytes",
        "_seconds_total",
    ];
    suffixes
        .into_iter()
        .map(move |suffix| format!("{name}{suffix}"))
}

fn names_in(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').skip(1).step_by(2).filter(|text| {
        let letters = text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        letters && PREFIXES.iter().any(|prefix| text.starts_with(prefix))
    })
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(self::files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && path.file_stem().is_none_or(|stem| stem != "tests")
        {
            files.push(path);
        }
    }
    Ok(files)
}
