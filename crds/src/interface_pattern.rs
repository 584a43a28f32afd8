//! Patterns for names of network interfaces.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::rule::{self, INTERFACE_PATTERN};

/// The longest name of an interface (`IFNAMSIZ`, without the terminating zero).
const LONGEST: usize = 15;

/// The name of an interface, or the beginning of names followed by `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Cow<'_, str>", into = "String")]
pub struct InterfacePattern(String);

/// A text that is no pattern for names of interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", INTERFACE_PATTERN.message)]
pub struct ParseInterfacePatternError;

// === impl InterfacePattern ===

impl InterfacePattern {
    /// Whether it matches the interface called `name`.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => self.0 == name,
        }
    }
}

impl FromStr for InterfacePattern {
    type Err = ParseInterfacePatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let letters = text.strip_suffix('*').unwrap_or(text);
        let mut bytes = letters.bytes();
        let is_name = bytes.all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b'*');
        match is_name && (1..=LONGEST).contains(&text.len()) {
            true => Ok(Self(text.to_owned())),
            false => Err(ParseInterfacePatternError),
        }
    }
}

impl TryFrom<Cow<'_, str>> for InterfacePattern {
    type Error = ParseInterfacePatternError;

    fn try_from(text: Cow<'_, str>) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<InterfacePattern> for String {
    fn from(pattern: InterfacePattern) -> Self {
        pattern.0
    }
}

impl fmt::Display for InterfacePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl JsonSchema for InterfacePattern {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "InterfacePattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": LONGEST,
            "x-kubernetes-validations": rule::list(&[&INTERFACE_PATTERN]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_or_the_beginning_of_names() {
        let matches = |pattern: &str, name: &str| {
            let pattern: InterfacePattern = pattern.parse().expect(pattern);
            pattern.matches(name)
        };
        assert!(matches("eth0", "eth0"));
        assert!(!matches("eth0", "eth01"));
        assert!(matches("veth*", "veth7a"));
        assert!(matches("veth*", "veth"));
        assert!(!matches("veth*", "eth0"));
        assert!(matches("*", "eth0"));
        for text in [
            "",
            "et/h",
            "eth 0",
            "e*h",
            "**",
            "a234567890123456",
            "\u{e9}th0",
        ] {
            assert!(text.parse::<InterfacePattern>().is_err(), "{text}");
        }
    }
}
