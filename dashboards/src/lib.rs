//! Dashboards for Grafana and alerts for Prometheus, as values. `generate-dashboards` writes them
//! to the chart.
//!
//! Expressions select by metric names, which no other program uses, and by the label `node`, which
//! the chart's `PodMonitor` adds. They therefore do not depend on the name of the job.

pub mod alert;
mod fleet;
mod node;
pub mod panel;

use serde_json::Value;

use crate::alert::{Alert, alerts, render_rules};
use crate::panel::Dashboard;

/// A file of the chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its path below `charts/signpost/files`.
    pub path: &'static str,
    /// Its contents.
    pub text: String,
}

/// Returns all dashboards.
pub fn dashboards() -> [Dashboard; 2] {
    [fleet::dashboard(), node::dashboard()]
}

/// Returns all generated files.
pub fn files() -> Vec<File> {
    let mut files: Vec<File> = dashboards()
        .iter()
        .map(|dashboard| File {
            path: dashboard.path,
            text: pretty(&dashboard.render()),
        })
        .collect();
    files.push(File {
        path: "alerts.json",
        text: pretty(&render_rules(&alerts())),
    });
    files
}

/// Returns the runbook headings of `alerts` as anchors for links.
pub fn anchors(alerts: &[Alert]) -> impl Iterator<Item = String> {
    alerts.iter().map(|alert| alert.name.to_lowercase())
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn root() -> &'static Path {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        package.parent().expect("the package is in the repository")
    }

    #[test]
    fn the_chart_has_what_is_written_from_here() {
        for File { path, text } in files() {
            let file = root().join("charts/signpost/files").join(path);
            let found = fs::read_to_string(&file).unwrap_or_default();
            assert!(found == text, "{path} is out of date: run make generate");
        }
    }

    #[test]
    fn every_alert_has_a_name_of_its_own_and_a_runbook() {
        let alerts = alerts();
        let names: BTreeSet<&str> = alerts.iter().map(|alert| alert.name).collect();
        assert_eq!(names.len(), alerts.len());
        let runbook = fs::read_to_string(root().join("docs/alerts.md")).expect("it is there");
        for alert in &alerts {
            // The alert may wake its reader: a command to paste comes first.
            let beginning = format!("\n## {}\n```sh\nkubectl ", alert.name);
            assert!(runbook.contains(&beginning), "no {beginning}");
        }
        let headings = runbook
            .lines()
            .filter_map(|line| line.strip_prefix("## Signpost"));
        assert_eq!(headings.count(), alerts.len(), "a heading without an alert");
    }

    #[test]
    fn panels_of_a_dashboard_have_titles_of_their_own_and_do_not_overlap() {
        for dashboard in dashboards() {
            let mut titles = BTreeSet::new();
            let mut covered = BTreeSet::new();
            let rendered = dashboard.render();
            let panels = rendered["panels"].as_array().expect("a list");
            for panel in panels {
                assert!(
                    titles.insert(panel["title"].to_string()),
                    "{}",
                    panel["title"]
                );
                let number = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
                for x in number("x")..number("x") + number("w") {
                    for y in number("y")..number("y") + number("h") {
                        assert!(covered.insert((x, y)), "{} overlaps", panel["title"]);
                        assert!(x < 24, "{} is too wide", panel["title"]);
                    }
                }
            }
        }
    }
}
