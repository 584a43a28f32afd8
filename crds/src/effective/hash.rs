//! A short name for a configuration: equal for equal configurations, on every machine and in every
//! release.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{effective::EffectiveConfig, profile::ProxyProfileSpec};

/// The first 64 bits, in hexadecimal, of the SHA-256 of a configuration's canonical JSON (no spaces, keys in order).
///
/// A cryptographic hash because its definition never changes, unlike the hashers of the standard library, which promise
/// nothing across releases: a hash that moved with the compiler would make a whole fleet look out of date. 64 bits,
/// because users compare them by eye in a table and an attacker gains nothing by forging one.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct ConfigHash(#[schemars(length(max = 64))] String);

// === impl ConfigHash ===

impl ConfigHash {
    /// The hash of `config`.
    #[must_use]
    pub fn of(config: &EffectiveConfig) -> Self {
        Self::of_any(config)
    }

    /// The hash of all that `spec` says, of how it is rolled out as well.
    #[must_use]
    pub fn of_request(spec: &ProxyProfileSpec) -> Self {
        Self::of_any(spec)
    }

    fn of_any(value: &impl Serialize) -> Self {
        let mut text = String::new();
        // Every field is a string, a number, a boolean, or a list or map with text keys of these,
        // so it always converts to JSON.
        let value = serde_json::to_value(value).unwrap_or_default();
        render(&value, &mut text);
        let digest = Sha256::digest(text.as_bytes());
        Self(
            digest
                .iter()
                .take(8)
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        )
    }

    /// The hexadecimal text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConfigHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Writes canonical JSON. Sorts the keys itself: the order of a `serde_json` map depends on a
/// feature that any dependency can enable.
fn render(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(key, _)| *key);
            let pairs = fields.into_iter().map(|(key, value)| (Some(key), value));
            group('{', '}', pairs, text);
        }
        Value::Array(items) => group('[', ']', items.iter().map(|item| (None, item)), text),
        scalar => text.push_str(&scalar.to_string()),
    }
}

fn group<'a>(
    open: char,
    close: char,
    items: impl Iterator<Item = (Option<&'a String>, &'a Value)>,
    text: &mut String,
) {
    text.push(open);
    for (index, (key, value)) in items.enumerate() {
        if index > 0 {
            text.push(',');
        }
        if let Some(key) = key {
            text.push_str(&Value::String(key.clone()).to_string());
            text.push(':');
        }
        render(value, text);
    }
    text.push(close);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{profile::ProxyProfileSpec, span::Span};

    #[test]
    fn the_hash_of_the_default_configuration_is_the_same_everywhere() {
        // A change here means that every node of every cluster applies its configuration again.
        assert_eq!(
            ConfigHash::of(&EffectiveConfig::default()).as_str(),
            "8ef744d0e5ed887c"
        );
    }

    #[test]
    fn another_spelling_of_the_same_configuration_has_the_same_hash() {
        let of = |period: &str| {
            let sync_period = period.parse::<Span>().expect("a duration");
            ConfigHash::of(&EffectiveConfig::of(&ProxyProfileSpec {
                sync_period,
                ..ProxyProfileSpec::default()
            }))
        };
        assert_eq!(of("90s"), of("1m30s"));
        assert_ne!(of("90s"), of("91s"));
    }

    #[test]
    fn the_order_of_keys_does_not_reach_the_hash() {
        let mut text = String::new();
        render(
            &serde_json::json!({"b": [1, "x"], "a": {"d": true, "c": null}}),
            &mut text,
        );
        assert_eq!(text, r#"{"a":{"c":null,"d":true},"b":[1,"x"]}"#);
    }
}
