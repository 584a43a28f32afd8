//! Generates the tables of `docs/metrics.md` from scrapes of the programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::scenario::Update;

/// The page, relative to the root of the repository.
const PAGE: &str = "docs/metrics.md";

/// Metrics by their names.
#[derive(Debug, Clone, Default)]
pub struct Reference(BTreeMap<String, Entry>);

#[derive(Debug, Clone, Default)]
struct Entry {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

// === impl Reference ===

impl Reference {
    /// Adds a scrape. Labels are known once a series has them.
    pub fn add(&mut self, scrape: &str) {
        let mut help = "";
        for line in scrape.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                help = rest.split_once(' ').map_or("", |(_, sentence)| sentence);
            } else if let Some((name, kind)) = line
                .strip_prefix("# TYPE ")
                .and_then(|rest| rest.split_once(' '))
            {
                let entry = self.0.entry(name.to_owned()).or_default();
                entry.kind = kind.to_owned();
                entry.help = help.to_owned();
            } else if let Some((name, labels)) = line.split_once('{') {
                let whole = ["_bucket", "_count", "_sum"]
                    .iter()
                    .find_map(|part| name.strip_suffix(part))
                    .filter(|whole| self.0.contains_key(*whole));
                let Some(entry) = self.0.get_mut(whole.unwrap_or(name)) else {
                    continue;
                };
                // Every other part outside quotes ends with the name of a label.
                let names = labels.split('"').step_by(2);
                let names = names.filter_map(|part| part.strip_suffix('='));
                let names = names.map(|name| name.trim_start_matches(',').to_owned());
                entry.labels.extend(names.filter(|name| name != "le"));
            }
        }
    }

    /// Adds labels to a metric that was scraped, but without a series that would have them. Has no
    /// effect on a metric that was not.
    pub fn declare(&mut self, name: &str, labels: &[&str]) {
        if let Some(entry) = self.0.get_mut(name) {
            entry.labels.extend(labels.iter().map(ToString::to_string));
        }
    }

    /// Fails unless the page has these tables below the line `<!-- section -->`; writes them with
    /// `UPDATE=1`.
    pub fn compare(&self, section: &str) -> Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = root.join(PAGE);
        let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        let begin = format!("<!-- {section} -->\n");
        let end = format!("<!-- end of {section} -->");
        let (before, rest) = text.split_once(&begin).with_context(|| begin.clone())?;
        let (found, after) = rest.split_once(&end).with_context(|| end.clone())?;
        let table = self.render();
        if found == table {
            return Ok(());
        }
        if Update::from_environment()? == Update::Differing {
            let text = [before, &begin, &table, &end, after].concat();
            return fs::write(&page, text).context("failed to write the page");
        }
        let mut lines = found.lines().zip(table.lines());
        let first = lines.find(|(found, expected)| found != expected);
        bail!("{PAGE}, {section}, differs (UPDATE=1 writes it), first in {first:?}")
    }

    fn render(&self) -> String {
        let mut table = "\n| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
        for (name, Entry { kind, help, labels }) in &self.0 {
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            // Writing to a String cannot fail.
            let _ = writeln!(
                table,
                "| `{name}` | {kind} | {} | {help} |",
                labels.join(", ")
            );
        }
        table + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_has_the_labels_of_all_its_series() {
        let mut reference = Reference::default();
        reference.add(
            "# HELP took How long.\n# TYPE took histogram\ntook_bucket{le=\"1\",ip_family=\"IPv4\"} 1\n\
             # HELP asked_total Requests.\n# TYPE asked_total counter\nasked_total{code=\"a,b=\"} 1\n",
        );
        reference.add("# HELP asked_total Requests.\n# TYPE asked_total counter\nasked_total{verb=\"GET\"} 1\n");
        reference.add("# HELP held Connections.\n# TYPE held gauge\n");
        reference.declare("held", &["state", "ip_family"]);
        reference.declare("unknown", &["state"]);
        let table = reference.render();
        assert!(!table.contains("unknown"), "{table}");
        assert!(
            table.contains("| `held` | gauge | ip_family, state | Connections. |"),
            "{table}"
        );
        assert!(
            table.contains("| `took` | histogram | ip_family | How long. |"),
            "{table}"
        );
        assert!(
            table.contains("| `asked_total` | counter | code, verb | Requests. |"),
            "{table}"
        );
    }
}
