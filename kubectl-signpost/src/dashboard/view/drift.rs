//! Which programs change Signpost's rules, and on which nodes.

use std::collections::BTreeMap;

use crds::condition::RULES_CONTESTED;
use crds::condition::reason::{REPAIRS_HELD_BACK, advice};
use crds::event::RULES_DRIFTED;
use serde::Serialize;

use crate::dashboard::facts::ClusterState;

/// The last repair of each node, grouped by program.
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

/// The last repair reported by a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
struct DriftOnNode {
    /// Whether repairs are not delayed. Sorts the delayed ones first.
    #[serde(skip)]
    is_quiet: bool,
    node: String,
    /// The message of the condition RulesContested.
    message: String,
}

/// The maximum number of nodes listed.
const MOST_NODES: usize = 20;
/// The text after the name of a program in the condition's message.
const BEHIND_NAME: &str = " (process ";

// === impl Drift ===

impl Drift {
    pub(in crate::dashboard) fn of(facts: &ClusterState) -> Drift {
        let mut programs: BTreeMap<Option<&str>, Vec<DriftOnNode>> = BTreeMap::new();
        for (node, observed) in &facts.proxies.objects {
            let status = observed.proxy.status.as_ref();
            let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
            let found = conditions.find(|condition| condition.type_ == RULES_CONTESTED);
            // An empty message means that the agent has repaired nothing since it started.
            let Some(condition) = found.filter(|condition| !condition.message.is_empty()) else {
                continue;
            };
            let nodes = programs.entry(name_in(&condition.message)).or_default();
            nodes.push(DriftOnNode {
                is_quiet: condition.status != "True",
                node: node.clone(),
                message: condition.message.clone(),
            });
        }
        let programs = programs.into_iter();
        let mut programs: Vec<Program> = programs
            .map(|(name, nodes)| Program::new(name, nodes))
            .collect();
        // The sort is stable: programs with the same counts stay sorted by name.
        programs.sort_by_key(|program| std::cmp::Reverse((program.contested, program.total)));
        Drift { programs }
    }
}

/// Returns the program named in a message:
/// `last repaired at TIME: IPv4: nft (process 7) had changed …`, or
/// `since TIME, nft (process 7) keeps changing …`. Returns `None` for other messages, which are
/// shown unchanged.
fn name_in(message: &str) -> Option<&str> {
    let (before, _) = message.split_once(BEHIND_NAME)?;
    let ends = [": ", ", "].map(|end| before.rfind(end).map(|at| at + end.len()));
    let start = ends.into_iter().flatten().max()?;
    Some(&before[start..])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_as_agents_name_them() {
        for (message, name) in [
            (
                "last repaired at 2026-11-24T00:00:00Z: IPv4: nft (process 7) had changed 2 elements and 0 objects",
                Some("nft"),
            ),
            (
                "since 2026-11-24T00:00:00Z, kube-router (process 71) keeps changing the rules: repaired 6 times within 4.2 s",
                Some("kube-router"),
            ),
            (
                "last repaired at 2026-11-24T00:00:00Z: IPv6: another program had changed 1 elements and 0 objects",
                None,
            ),
        ] {
            assert_eq!(name_in(message), name, "{message}");
        }
    }
}
