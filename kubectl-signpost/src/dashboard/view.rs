//! The content of the page as a value, with one part per question. Pure.

pub(super) mod drift;
pub(super) mod nodes;
pub(super) mod rejections;
pub(super) mod rollouts;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::connection::Connection;
use super::facts::ClusterState;
use drift::Drift;
use nodes::NodeRow;
use rejections::Rejections;
use rollouts::Rollouts;

/// The whole content of the page.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct View {
    connection: Connection,
    rollouts: Rollouts,
    nodes: BTreeMap<String, Arc<NodeRow>>,
    rejections: Rejections,
    drift: Drift,
}

/// The difference between two views. A part that has not changed is absent.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Change<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<&'a Connection>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollouts: Option<&'a Rollouts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<NodesChange<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejections: Option<&'a Rejections>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drift: Option<&'a Drift>,
}

/// The nodes that changed.
#[derive(Debug, PartialEq, Serialize)]
struct NodesChange<'a> {
    /// Whether `put` lists all nodes.
    whole: bool,
    /// The new and changed nodes.
    put: Vec<&'a NodeRow>,
    /// The names of the removed nodes.
    gone: Vec<&'a str>,
}

// === impl View ===

impl View {
    pub(super) fn of(facts: &ClusterState) -> View {
        let observed = facts.proxies.objects.iter();
        let observed = observed.map(|(name, observed)| (name.clone(), observed.row.clone()));
        let mut nodes: BTreeMap<String, Arc<NodeRow>> = observed.collect();
        for name in facts.unconfigured() {
            let row = Arc::new(NodeRow::without_configuration(name.clone()));
            nodes.insert(name, row);
        }
        View {
            connection: facts.connection(),
            rollouts: Rollouts::of(facts),
            nodes,
            rejections: Rejections::of(facts),
            drift: Drift::of(facts),
        }
    }

    /// Returns the difference from `before` to this view, or the whole view if the page shows
    /// nothing yet.
    pub(super) fn difference<'a>(&'a self, before: Option<&'a View>) -> Change<'a> {
        Change {
            connection: changed(before.map(|view| &view.connection), &self.connection),
            rollouts: changed(before.map(|view| &view.rollouts), &self.rollouts),
            nodes: self.difference_of_nodes(before),
            rejections: changed(before.map(|view| &view.rejections), &self.rejections),
            drift: changed(before.map(|view| &view.drift), &self.drift),
        }
    }

    fn difference_of_nodes<'a>(&'a self, before: Option<&'a View>) -> Option<NodesChange<'a>> {
        let Some(before) = before else {
            return Some(NodesChange {
                whole: true,
                put: self.nodes.values().map(AsRef::as_ref).collect(),
                gone: Vec::new(),
            });
        };
        let is_new = |(name, row): &(&String, &Arc<NodeRow>)| {
            let known = before.nodes.get(*name);
            known.is_none_or(|known| !Arc::ptr_eq(known, row) && known != *row)
        };
        let put = self.nodes.iter().filter(is_new);
        let put: Vec<&NodeRow> = put.map(|(_, row)| row.as_ref()).collect();
        let gone = before.nodes.keys();
        let gone = gone.filter(|name| !self.nodes.contains_key(*name));
        let gone: Vec<&str> = gone.map(String::as_str).collect();
        let is_same = put.is_empty() && gone.is_empty();
        (!is_same).then_some(NodesChange {
            whole: false,
            put,
            gone,
        })
    }
}

fn changed<'a, T: PartialEq>(before: Option<&T>, now: &'a T) -> Option<&'a T> {
    (before != Some(now)).then_some(now)
}

#[cfg(test)]
mod tests;
