//! The rejections of all nodes, grouped by object.

use std::collections::BTreeMap;

use serde::Serialize;

use super::rollouts::Names;
use crate::dashboard::facts::ClusterState;

/// All rejections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::dashboard) struct Rejections {
    /// The objects; those rejected by most nodes come first.
    objects: Vec<RejectedObject>,
    /// The number of objects not listed.
    more_objects: usize,
    /// Nodes that reject more objects than their status names.
    nodes_with_more: Names,
}

/// A rejected object, or parts of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct RejectedObject {
    /// The kind, namespace and name, such as `Service shop/cart`.
    object: String,
    parts: Vec<RejectedPart>,
}

/// A rejected field of the object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct RejectedPart {
    field: String,
    message: String,
    nodes: Names,
}

/// The maximum number of objects listed.
const MOST_OBJECTS: usize = 500;

// === impl Rejections ===

impl Rejections {
    pub(in crate::dashboard) fn of(facts: &ClusterState) -> Rejections {
        let mut objects: BTreeMap<&str, BTreeMap<(&str, &str), Vec<&str>>> = BTreeMap::new();
        let mut with_more: Vec<&str> = Vec::new();
        for (node, observed) in &facts.proxies.objects {
            let Some(status) = &observed.proxy.status else {
                continue;
            };
            let rejections = &status.rejections;
            if usize::try_from(rejections.total).is_ok_and(|total| total > rejections.first.len()) {
                with_more.push(node);
            }
            for rejection in &rejections.first {
                let parts = objects.entry(&rejection.object).or_default();
                let nodes = parts.entry((&rejection.field, &rejection.message));
                nodes.or_default().push(node);
            }
        }
        let total = objects.len();
        let mut objects: Vec<RejectedObject> = objects
            .into_iter()
            .map(|(object, parts)| RejectedObject {
                object: object.to_owned(),
                parts: parts
                    .into_iter()
                    .map(|((field, message), nodes)| RejectedPart {
                        field: field.to_owned(),
                        message: message.to_owned(),
                        nodes: Names::of(&nodes),
                    })
                    .collect(),
            })
            .collect();
        // The sort is stable: objects rejected by the same number of nodes stay sorted by name.
        objects.sort_by_key(|object| std::cmp::Reverse(object.most_nodes()));
        objects.truncate(MOST_OBJECTS);
        Rejections {
            more_objects: total - objects.len(),
            objects,
            nodes_with_more: Names::of(&with_more),
        }
    }
}

// === impl RejectedObject ===

impl RejectedObject {
    fn most_nodes(&self) -> usize {
        let nodes = self.parts.iter().map(|part| part.nodes.total);
        nodes.max().unwrap_or_default()
    }
}
