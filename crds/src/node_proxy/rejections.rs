//! The rejections of a node, within the bounds of a status.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Objects, or parts of them, that are rejected: all of them counted, some of each namespace named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rejections {
    /// How many there are.
    pub total: u32,
    /// At most 20 of them, in the order of object and field: the first of each namespace, then the second of each, and
    /// so on, so that no namespace hides another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub first: Vec<Rejection>,
}

/// One object, or part of it, that is rejected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rejection {
    /// The object, as kind, namespace and name: Service shop/cart.
    #[schemars(length(max = 512))]
    pub object: String,
    /// The field that is at fault, such as `spec.ports[0].port`.
    #[schemars(length(max = 256))]
    pub field: String,
    /// What is wrong with it.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// The maximum length of [`Rejections::first`].
pub const MOST_REJECTIONS: usize = 20;

// === impl Rejections ===

impl Rejections {
    /// Creates the list from `rejections`, truncated to what the API server accepts: a status that
    /// it refuses for its length would lose everything else that the node reports.
    #[must_use]
    pub fn of(rejections: impl IntoIterator<Item = Rejection>) -> Self {
        let mut all: Vec<Rejection> = rejections.into_iter().collect();
        let total = u32::try_from(all.len()).unwrap_or(u32::MAX);
        all.sort();
        let mut of_namespaces: BTreeMap<String, usize> = BTreeMap::new();
        let mut in_turn: Vec<(usize, Rejection)> = Vec::with_capacity(all.len());
        for rejection in all {
            let namespace = namespace_of(&rejection.object).to_owned();
            let before = of_namespaces.entry(namespace).or_default();
            in_turn.push((*before, rejection));
            *before += 1;
        }
        in_turn.sort();
        in_turn.truncate(MOST_REJECTIONS);
        let mut first: Vec<Rejection> = in_turn
            .into_iter()
            .map(|(_, rejection)| rejection)
            .collect();
        for rejection in &mut first {
            cut(&mut rejection.object, 512);
            cut(&mut rejection.field, 256);
            cut(&mut rejection.message, 1024);
        }
        Self { total, first }
    }

    /// Whether there are no rejections.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }
}

/// The namespace in [`Rejection::object`]; empty for a cluster-scoped object.
fn namespace_of(object: &str) -> &str {
    let name = object.split_once(' ').map_or(object, |(_, name)| name);
    name.split_once('/').map_or("", |(namespace, _)| namespace)
}

/// Truncates `text` to at most `most` bytes at a character boundary. The API counts characters, of
/// which there are no more.
pub(crate) fn cut(text: &mut String, most: usize) {
    text.truncate(text.floor_char_boundary(most));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_rejections_are_counted_and_the_first_are_named() {
        let many = (0..50).rev().map(|number| Rejection {
            object: format!("Service shop/s{number:02}"),
            field: "spec.ports".into(),
            message: "é".repeat(2000),
        });
        let rejections = Rejections::of(many);
        assert_eq!(rejections.total, 50);
        assert_eq!(rejections.first.len(), MOST_REJECTIONS);
        assert_eq!(rejections.first[0].object, "Service shop/s00");
        assert_eq!(rejections.first[0].message.chars().count(), 512);
    }

    #[test]
    fn t95_a_namespace_with_many_rejections_hides_those_of_no_other() {
        let of = |object: String| Rejection {
            object,
            field: "spec.externalIPs".into(),
            message: "is not served".into(),
        };
        let crowd = (0..10_000).map(|number| of(format!("Service aaa/s{number:05}")));
        let others = ["Service shop/web", "Service shop/cart", "Node node-1"];
        let rejections = Rejections::of(crowd.chain(others.map(|name| of(name.into()))));
        assert_eq!(rejections.total, 10_003);
        let named: Vec<&str> = rejections.first.iter().map(|r| &*r.object).collect();
        assert_eq!(
            named[..5],
            [
                "Node node-1",
                "Service aaa/s00000",
                "Service shop/cart",
                "Service aaa/s00001",
                "Service shop/web",
            ]
        );
        assert_eq!(named.len(), MOST_REJECTIONS);
    }
}
