//! Which programs change Signpost's rules, and on which nodes.

use std::collections::BTreeMap;

use crds::condition::reason::{REPAIRS_HELD_BACK, advice};
use crds::event::RULES_DRIFTED;
use jiff::Timestamp;
use serde::Serialize;

use crate::dashboard::facts::ClusterState;

/// The repairs of all nodes, grouped by program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(in crate::dashboard) struct Drift {
    programs: Vec<Program>,
}

/// A program that changed rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Program {
    /// Its name; `None` if the kernel does not name the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The number of nodes on which it changed rules.
    total: usize,
    /// The number of those on which it keeps changing them.
    contested: usize,
    /// The next step for the user.
    advice: Option<&'static str>,
    /// Some of the nodes; those with delayed repairs come first.
    first: Vec<DriftOnNode>,
}

/// The repairs on a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
struct DriftOnNode {
    /// Whether repairs are not delayed. Sorts the delayed ones first.
    #[serde(skip)]
    is_quiet: bool,
    node: String,
    repairs: u64,
    /// The number of elements and objects that the repairs wrote, as text.
    changed: String,
    last_found: Timestamp,
}

/// The maximum number of nodes listed.
const MOST_NODES: usize = 20;

// === impl Drift ===

impl Drift {
    pub(in crate::dashboard) fn of(facts: &ClusterState) -> Drift {
        let mut programs: BTreeMap<Option<&str>, Vec<DriftOnNode>> = BTreeMap::new();
        for (node, observed) in &facts.proxies.objects {
            for drift in &observed.row.report.drift {
                let nodes = programs.entry(drift.program.as_deref()).or_default();
                nodes.push(DriftOnNode {
                    is_quiet: !drift.continues,
                    node: node.clone(),
                    repairs: drift.repairs,
                    changed: format!(
                        "{}, {}",
                        counted(drift.elements, "element"),
                        counted(drift.objects, "object")
                    ),
                    last_found: drift.last_found.0,
                });
            }
        }
        let programs = programs.into_iter();
        let mut programs: Vec<Program> = programs
            .map(|(name, nodes)| Program::new(name, nodes))
            .collect();
        // Stable: of as many nodes, by name.
        programs.sort_by_key(|program| std::cmp::Reverse((program.contested, program.total)));
        Drift { programs }
    }
}

fn counted(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

// === impl Program ===

impl Program {
    fn new(name: Option<&str>, mut nodes: Vec<DriftOnNode>) -> Program {
        let contested = nodes.iter().filter(|node| !node.is_quiet).count();
        let total = nodes.len();
        nodes.sort();
        nodes.truncate(MOST_NODES);
        Program {
            name: name.map(str::to_owned),
            total,
            contested,
            advice: match contested {
                0 => Some(RULES_DRIFTED.advice),
                _ => advice(REPAIRS_HELD_BACK.name),
            },
            first: nodes,
        }
    }
}
