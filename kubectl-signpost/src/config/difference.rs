//! The changes that a profile would make on nodes. Pure.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use crds::resolve::Ranking;
use crds::{EffectiveConfig, NodeFacts, NodeProxySpec, ProxyProfile};
use serde_json::Value;

/// The nodes for each change.
pub(super) type Groups = BTreeMap<Change, Vec<String>>;

/// The change on a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// Fields of its configuration change.
    Fields(Vec<FieldChange>),
    /// The node receives its first configuration, with this mode.
    First { mode: String },
    /// No profile applies to the node any more.
    Last,
}

/// A changed field, with its values as JSON.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FieldChange {
    field: String,
    before: String,
    after: String,
}

/// The maximum number of names in one line.
const MOST_NAMED: usize = 10;

/// Computes the changes on each node that profile `name` configures or would configure.
pub(super) fn compare(profiles: &[ProxyProfile], name: &str, nodes: &[NodeFacts]) -> Groups {
    let ranking = Ranking::of(profiles);
    let mut groups = Groups::new();
    for node in nodes {
        let resolution = ranking.resolve(node);
        let before = node.current.as_deref();
        let after = resolution.effective.as_deref();
        let concerns = |spec: &NodeProxySpec| spec.profile_name == name;
        if !before.is_some_and(concerns) && !after.is_some_and(concerns) {
            continue;
        }
        if let Some(change) = change(before, after) {
            groups.entry(change).or_default().push(node.name.clone());
        }
    }
    groups
}

fn change(before: Option<&NodeProxySpec>, after: Option<&NodeProxySpec>) -> Option<Change> {
    match (before, after) {
        (None, None) => None,
        (None, Some(after)) => Some(Change::First {
            mode: after.config.mode.to_string(),
        }),
        (Some(_), None) => Some(Change::Last),
        (Some(before), Some(after)) => {
            let json = |config: &EffectiveConfig| serde_json::to_value(config).unwrap_or_default();
            let fields = fields(&json(&before.config), &json(&after.config));
            (!fields.is_empty()).then_some(Change::Fields(fields))
        }
    }
}

/// Returns the fields in which two objects differ, by name.
pub(crate) fn fields(before: &Value, after: &Value) -> Vec<FieldChange> {
    let leaves = |object: &Value| {
        let mut leaves = BTreeMap::new();
        collect(object, "", &mut leaves);
        leaves
    };
    let (before, after) = (leaves(before), leaves(after));
    let names = before.keys().chain(after.keys());
    let names: std::collections::BTreeSet<&String> = names.collect();
    let absent = || "(absent)".to_owned();
    names
        .into_iter()
        .map(|name| FieldChange {
            field: name.clone(),
            before: before.get(name).cloned().unwrap_or_else(absent),
            after: after.get(name).cloned().unwrap_or_else(absent),
        })
        .filter(|change| change.before != change.after)
        .collect()
}

/// Flattens a value into leaves. A list is one leaf, because part of a list has no meaning.
fn collect(value: &Value, path: &str, leaves: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let below = match path {
                    "" => name.clone(),
                    path => format!("{path}.{name}"),
                };
                collect(value, &below, leaves);
            }
        }
        leaf => {
            leaves.insert(path.to_owned(), leaf.to_string());
        }
    }
}

/// Renders each change once, with its nodes.
pub(super) fn render(name: &str, groups: &Groups) -> String {
    if groups.is_empty() {
        return format!("ProxyProfile {name} changes nothing on any node\n");
    }
    let mut text = String::new();
    for (change, nodes) in groups {
        let named = nodes[..nodes.len().min(MOST_NAMED)].join(", ");
        let more = nodes.len().saturating_sub(MOST_NAMED);
        // Writing to a String cannot fail.
        let _ = match more {
            0 => writeln!(text, "{named}"),
            more => writeln!(text, "{named} and {more} more"),
        };
        match change {
            Change::First { mode } => {
                let _ = writeln!(text, "  the first configuration, mode {mode}");
            }
            Change::Last => {
                text += "  no profile selects these nodes any more: their NodeProxy objects are deleted\n";
            }
            Change::Fields(fields) => {
                for field in fields {
                    let _ = writeln!(text, "  {field}");
                }
            }
        }
    }
    text
}

// === impl FieldChange ===

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.field, self.before, self.after)
    }
}

#[cfg(test)]
mod tests;
