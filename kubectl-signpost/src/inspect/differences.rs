//! Merges the answers of many nodes and keeps only the differences. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

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
    /// Adds the answer of an agent, in JSON.
    pub(super) fn add(&mut self, node: String, answer: &Answer) {
        let mut lines = differing(&answer.text);
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

/// Returns the differences that an explanation in JSON has, one a line. What is rejected, or not
/// served, is none.
fn differing(explanation: &str) -> Vec<String> {
    let Ok(explanation) = serde_json::from_str::<Value>(explanation) else {
        return Vec::new();
    };
    let each = |value: &Value, list: &str| value[list].as_array().cloned().unwrap_or_default();
    let mut pieces = Vec::new();
    let mut frontends = Vec::new();
    for service in each(&explanation, "services") {
        frontends.extend(each(&service, "frontends"));
        pieces.extend(each(&service, "memberships"));
    }
    frontends.push(explanation["unclaimed"].clone());
    for frontend in &frontends {
        pieces.extend(each(frontend, "elements"));
        pieces.extend(each(frontend, "chains"));
    }
    let kernel = each(&explanation, "kernel");
    for family in &kernel {
        pieces.extend(each(family, "damaged"));
    }
    let sentences = kernel.iter().filter_map(|family| {
        let (name, table) = (family["family"].as_str()?, family["table"].as_str()?);
        table.starts_with("! ").then(|| format!("{name}: {table}"))
    });
    let mut lines: Vec<String> = Vec::new();
    // In mode iptables, frontends share chains.
    for line in pieces.iter().filter_map(difference).chain(sentences) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Returns how a piece differs from the desired state, in the words of the agent's text.
fn difference(piece: &Value) -> Option<String> {
    let mark = match piece["state"].as_str()? {
        "missing" => "missing in the kernel",
        "leftover" => "leftover",
        "different" => "differs",
        _ => return None,
    };
    Some(format!("! {mark}: {}", piece["piece"].as_str()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        let rejected = json!({
            "unsupportedFields": ["Service demo/web, externalIPs[0]: 10.0.0.1 is an address of the node"],
            "frontends": [{"address": "10.0.0.1:80/tcp", "refused": "is an address of the node", "elements": []}],
        });
        let whole = json!({"services": [rejected], "kernel": [{"family": "IPv4", "table": "as programmed"}]});
        let rule = "iptables -t nat -A SIGNPOST-SERVICES ! -s 10.0.0.0/8 -m comment --comment \"a rule with more than a hundred columns\"";
        let missing = json!({
            "services": [{
                "frontends": [
                    {"elements": [{"piece": "services { x }", "state": "missing"}, {"piece": "services { y }", "state": "present"}]},
                    {"chains": [{"piece": "chain lb-2", "state": "different", "found": []}, {"piece": "old", "state": "draining"}]},
                    {"chains": [{"piece": "chain lb-2", "state": "different", "found": []}]},
                ],
                "memberships": [{"piece": "cluster-ips { z }", "state": "leftover"}],
                "unsupportedFields": ["a field"],
            }],
            "kernel": [{"family": "IPv4", "table": "! 1 to repair", "damaged": [{"piece": rule, "state": "missing"}]}],
        });
        let missing = missing.to_string();
        found.add(
            "n1".to_owned(),
            &answer(&whole.to_string(), Agreement::Agrees),
        );
        found.add("n2".to_owned(), &answer(&missing, Agreement::Differs));
        found.add("n3".to_owned(), &answer(&missing, Agreement::Differs));
        found.fail("n4".to_owned(), "the Pod on node n4 is gone".to_owned());
        assert_eq!(
            found.render(),
            format!(
                "n2, n3\n\
            \x20 ! leftover: cluster-ips {{ z }}\n\
            \x20 ! missing in the kernel: services {{ x }}\n\
            \x20 ! differs: chain lb-2\n\
            \x20 ! missing in the kernel: {rule}\n\
            \x20 IPv4: ! 1 to repair\n\
            n4\n\
            \x20 no answer: the Pod is gone\n\
            1 node without differences, 2 with, 1 without an answer\n"
            )
        );
        assert_eq!(found.ending(), Ending::ProblemFound);
        let comparison = serde_json::to_value(found.compare()).expect("JSON");
        assert_eq!(
            comparison,
            json!({
                "summary": "1 node without differences, 2 with, 1 without an answer",
                "differing": [{
                    "nodes": ["n2", "n3"],
                    "lines": [
                        "! leftover: cluster-ips { z }",
                        "! missing in the kernel: services { x }",
                        "! differs: chain lb-2",
                        format!("! missing in the kernel: {rule}"),
                        "IPv4: ! 1 to repair",
                    ],
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
            &answer(r#"{"services": []}"#, Agreement::Agrees),
        );
        assert_eq!(found.render(), "no differences on 1 node\n");
        assert_eq!(found.ending(), Ending::Success);
    }
}
