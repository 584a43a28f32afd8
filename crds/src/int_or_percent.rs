//! A number of nodes, or a percentage of them.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::rule::{self, MAX_UNAVAILABLE};

/// A number of nodes, absolute or as a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntOrPercent {
    /// This many nodes, at least 1.
    Count(u32),
    /// This share of the matched nodes, 1 to 100.
    Percent(u8),
}

/// A value that is neither a count from 1 nor a percentage from 1% to 100%.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", MAX_UNAVAILABLE.message)]
pub struct ParseIntOrPercentError;

/// Nine digits, which fit the 32 bits that the API server uses for such numbers.
const MOST_NODES: u32 = 999_999_999;

// === impl IntOrPercent ===

impl IntOrPercent {
    /// The number of nodes out of `total`: a percentage is rounded down, but to no less than one,
    /// because zero would silently stop a rollout (`paused` is for that).
    #[must_use]
    pub fn of(self, total: usize) -> usize {
        let allowed = match self {
            Self::Count(count) => usize::try_from(count).unwrap_or(usize::MAX),
            Self::Percent(percent) => total.saturating_mul(usize::from(percent)) / 100,
        };
        allowed.max(1)
    }
}

impl fmt::Display for IntOrPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for IntOrPercent {
    type Err = ParseIntOrPercentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (digits, percent) = match text.strip_suffix('%') {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) || digits.starts_with('0') {
            return Err(ParseIntOrPercentError);
        }
        match digits.parse::<u32>() {
            Ok(count @ 1..=MOST_NODES) if !percent => Ok(Self::Count(count)),
            Ok(share @ 1..=100) if percent => u8::try_from(share)
                .map(Self::Percent)
                .map_err(|_| ParseIntOrPercentError),
            _ => Err(ParseIntOrPercentError),
        }
    }
}

impl Serialize for IntOrPercent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for IntOrPercent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = IntOrPercent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of nodes or a percentage")
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<Self::Value, E> {
                count.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> Result<Self::Value, E> {
                count.to_string().parse().map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for IntOrPercent {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "IntOrPercent".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 10,
            "x-kubernetes-validations": rule::list(&[&MAX_UNAVAILABLE]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_down_but_never_to_nothing() {
        for (share, total, allowed) in [
            ("10%", 100, 10),
            ("10%", 19, 1),
            ("10%", 3, 1),
            ("100%", 7, 7),
            ("1%", 0, 1),
        ] {
            let share: IntOrPercent = share.parse().expect("a percentage");
            assert_eq!(share.of(total), allowed, "{share} of {total}");
        }
        assert_eq!(IntOrPercent::Count(5).of(3), 5);
        assert_eq!("5".parse(), Ok(IntOrPercent::Count(5)));
    }

    #[test]
    fn nothing_and_more_than_everything_are_refused() {
        for text in ["0%", "101%", "0", "", "-5", "%", "+5%", "05%", "five"] {
            assert!(text.parse::<IntOrPercent>().is_err(), "{text}");
        }
        assert!(serde_json::from_str::<IntOrPercent>("0").is_err());
        assert!(serde_json::from_str::<IntOrPercent>("-1").is_err());
    }
}
