//! The nodes that a profile selects: a label selector, evaluated without an API server.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rule::{
    self, EXPRESSION_KEY, EXPRESSION_VALUE, EXPRESSION_VALUES_ABSENT, EXPRESSION_VALUES_GIVEN,
    LABEL_KEYS, LABEL_VALUES,
};

/// A label selector: a node is selected when every part holds. Empty selects every node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    /// Labels the node must have with exactly these values, at most 32.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(
        extend("maxProperties" = 32, "x-kubernetes-validations" = rule::list(&[&LABEL_KEYS, &LABEL_VALUES])),
        schema_with = "label_map"
    )]
    pub match_labels: BTreeMap<String, String>,

    /// Further requirements on the node's labels, at most 16.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<Requirement>,
}

/// One requirement on a node's labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rule::list(&[
    &EXPRESSION_KEY, &EXPRESSION_VALUES_GIVEN, &EXPRESSION_VALUES_ABSENT, &EXPRESSION_VALUE,
])))]
pub struct Requirement {
    /// The key of the label, such as topology.kubernetes.io/zone.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,

    /// How the label is compared. In: it has one of the values. NotIn: it has none of them, or the node does not have
    /// the label. Exists: the node has the label. DoesNotExist: it does not.
    pub operator: Operator,

    /// The values that In and NotIn compare the label with, 1 to 64. Omitted with Exists and DoesNotExist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub values: Vec<String>,
}

/// How a label is compared with values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// The label is there and has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

fn label_map(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": 63},
    })
}

// === impl NodeSelector ===

impl NodeSelector {
    /// Whether a node with these labels is selected.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
            && self
                .match_expressions
                .iter()
                .all(|requirement| requirement.holds(labels))
    }
}

// === impl Requirement ===

impl Requirement {
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let label = labels.get(&self.key);
        match self.operator {
            Operator::In => label.is_some_and(|label| self.values.contains(label)),
            Operator::NotIn => label.is_none_or(|label| !self.values.contains(label)),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
        }
    }
}

/// Whether `text` is a label key: an optional DNS name and a slash, then a name of at most 63
/// characters.
pub(crate) fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        None => is_label_name(text),
        Some((prefix, name)) => is_dns_name(prefix) && is_label_name(name),
    }
}

/// Whether `text` is a label value: empty, or a valid name of a key.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_name(text)
}

fn is_label_name(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.len() <= 63 && text.bytes().all(inside) && ends_alphanumeric(text)
}

fn is_dns_name(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 253
        && text
            .split('.')
            .all(|part| part.bytes().all(inside) && ends_alphanumeric(part))
}

fn ends_alphanumeric(text: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    ends(text.bytes().next()) && ends(text.bytes().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> BTreeMap<String, String> {
        [("role", "edge"), ("zone", "a")]
            .map(|(key, value)| (key.into(), value.into()))
            .into()
    }

    fn requires(operator: Operator, key: &str, values: &[&str]) -> NodeSelector {
        NodeSelector {
            match_expressions: vec![Requirement {
                key: key.into(),
                operator,
                values: values.iter().map(|value| (*value).into()).collect(),
            }],
            ..NodeSelector::default()
        }
    }

    #[test]
    fn an_empty_selector_selects_every_node() {
        assert!(NodeSelector::default().selects(&BTreeMap::new()));
    }

    #[test]
    fn every_operator_is_held_against_the_labels() {
        use Operator::{DoesNotExist, Exists, In, NotIn};
        for (selector, selected) in [
            (requires(In, "role", &["edge", "core"]), true),
            (requires(In, "role", &["core"]), false),
            (requires(In, "absent", &["core"]), false),
            (requires(NotIn, "role", &["core"]), true),
            (requires(NotIn, "role", &["edge"]), false),
            (requires(NotIn, "absent", &["edge"]), true),
            (requires(Exists, "role", &[]), true),
            (requires(Exists, "absent", &[]), false),
            (requires(DoesNotExist, "absent", &[]), true),
            (requires(DoesNotExist, "role", &[]), false),
        ] {
            assert_eq!(selector.selects(&labels()), selected, "{selector:?}");
        }
    }

    #[test]
    fn match_labels_and_expressions_must_all_hold() {
        let mut selector = requires(Operator::Exists, "zone", &[]);
        selector.match_labels.insert("role".into(), "edge".into());
        assert!(selector.selects(&labels()));
        selector.match_labels.insert("role".into(), "core".into());
        assert!(!selector.selects(&labels()));
    }

    #[test]
    fn label_keys_and_values_are_those_of_kubernetes() {
        for key in [
            "role",
            "a.b/c",
            "node-role.kubernetes.io/control-plane",
            "A_b.c-1",
        ] {
            assert!(is_label_key(key), "{key}");
        }
        for key in ["", "/a", "a/", "A/b", "a//b", "-a", "a b", "a./b"] {
            assert!(!is_label_key(key), "{key}");
        }
        assert!(is_label_value("") && is_label_value("v1.2_3"));
        assert!(!is_label_value("a ") && !is_label_value(&"a".repeat(64)));
    }
}
