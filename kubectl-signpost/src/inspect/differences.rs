//! Merges the answers of many nodes and keeps only the differences. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::agent::{Agreement, Answer};
use crate::ending::Ending;
use crate::output::counted;

/// The differences from the desired state that agents found, each once with its nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    agreeing: usize,
    found: BTreeMap<Vec<String>, Vec<String>>,
    failed: BTreeMap<String, Vec<String>>,
}

/// The machine-readable form of [`Differences`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Comparison {
    /// The result in one sentence.
    summary: String,
    differing: Vec<Group>,
    unanswered: Vec<Group>,
}

/// Nodes with the same result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Group {
    nodes: Vec<String>,
    lines: Vec<String>,
}

// === impl Differences ===

impl Differences {
    pub(super) fn add(&mut self, node: String, answer: &Answer) {
        let mut lines = marked(&answer.text);
        if lines.is_empty() && answer.agreement == Agreement::Differs {
            lines.push("kernel and desired state differ".to_owned());
        }
        match lines.is_empty() {
            true => self.agreeing += 1,
            false => self.found.entry(lines).or_default().push(node),
        }
    }

    pub(super) fn fail(&mut self, node: String, error: String) {
        // Remove the node's name, in which otherwise equal errors differ.
        let error = error.replace(&format!(" on node {node}"), "");
        self.failed.entry(error).or_default().push(node);
    }

    pub(crate) fn render(&self) -> String {
        // Writing to a String cannot fail.
        let mut text = String::new();
        for (lines, nodes) in &self.found {
            let _ = writeln!(text, "{}", nodes.join(", "));
            for line in lines {
                let _ = writeln!(text, "  {line}");
            }
        }
        for (error, nodes) in &self.failed {
            let _ = writeln!(text, "{}\n  no answer: {error}", nodes.join(", "));
        }
        text + &self.summarize() + "\n"
    }

    fn summarize(&self) -> String {
        let differing: usize = self.found.values().map(Vec::len).sum();
        let failed: usize = self.failed.values().map(Vec::len).sum();
        let agreeing = counted(self.agreeing, "node");
        match self.ending() {
            Ending::Success => format!("no differences on {agreeing}"),
            Ending::ProblemFound => format!(
                "{agreeing} without differences, {differing} with, {failed} without an answer"
            ),
        }
    }

    pub(crate) fn compare(&self) -> Comparison {
        let group = |lines: Vec<String>, nodes: &Vec<String>| Group {
            nodes: nodes.clone(),
            lines,
        };
        let differing = self.found.iter();
        let unanswered = self.failed.iter();
        Comparison {
            summary: self.summarize(),
            differing: differing
                .map(|(lines, nodes)| group(lines.clone(), nodes))
                .collect(),
            unanswered: unanswered
                .map(|(error, nodes)| group(vec![error.clone()], nodes))
                .collect(),
        }
    }

    pub(crate) fn ending(&self) -> Ending {
        match self.found.is_empty() && self.failed.is_empty() {
            true => Ending::Success,
            false => Ending::ProblemFound,
        }
    }
}

/// Returns the lines that the agent marked with `!`.
fn marked(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    let marked = lines.filter(|line| line.starts_with("! ") || line.contains(": ! "));
    marked.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str, agreement: Agreement) -> Answer {
        Answer {
            text: text.to_owned(),
            agreement,
        }
    }

    #[test]
    fn nodes_with_the_same_difference_are_named_together() {
        let mut found = Differences::default();
        let missing =
            "Service demo/web\n    ! missing in the kernel: services { x }\nIPv4: ! 1 to repair\n";
        found.add(
            "n1".to_owned(),
            &answer("Service demo/web\n", Agreement::Agrees),
        );
        found.add("n2".to_owned(), &answer(missing, Agreement::Differs));
        found.add("n3".to_owned(), &answer(missing, Agreement::Differs));
        found.fail("n4".to_owned(), "the Pod on node n4 is gone".to_owned());
        assert_eq!(
            found.render(),
            "n2, n3\n\
            \x20 ! missing in the kernel: services { x }\n\
            \x20 IPv4: ! 1 to repair\n\
            n4\n\
            \x20 no answer: the Pod is gone\n\
            1 node without differences, 2 with, 1 without an answer\n"
        );
        assert_eq!(found.ending(), Ending::ProblemFound);
        let comparison = serde_json::to_value(found.compare()).expect("JSON");
        assert_eq!(
            comparison,
            serde_json::json!({
                "summary": "1 node without differences, 2 with, 1 without an answer",
                "differing": [{
                    "nodes": ["n2", "n3"],
                    "lines": ["! missing in the kernel: services { x }", "IPv4: ! 1 to repair"],
                }],
                "unanswered": [{"nodes": ["n4"], "lines": ["the Pod is gone"]}],
            })
        );
    }

    #[test]
    fn where_all_agree_there_is_one_line() {
        let mut found = Differences::default();
        found.add(
            "n1".to_owned(),
            &answer("Service demo/web\n", Agreement::Agrees),
        );
        assert_eq!(found.render(), "no differences on 1 node\n");
        assert_eq!(found.ending(), Ending::Success);
    }
}
