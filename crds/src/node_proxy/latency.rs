//! How long changes take to reach the kernel.

use std::{borrow::Cow, fmt, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::span::Span;

/// A whole number of microseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Microseconds(u64);

/// How long the changes of a sliding window took, in all and phase by phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SyncLatency {
    /// The length of the sliding window the figures are taken over.
    pub window: Span,

    /// From the receipt of a change to its sync, without compiling: reading it, and the wait of minSyncPeriod.
    pub decode: Quantiles,

    /// Compiling the change into the desired state of the kernel.
    pub compile: Quantiles,

    /// The sync that wrote it, to the kernel's acknowledgement.
    pub commit: Quantiles,

    /// From the receipt of a change to the kernel's acknowledgement.
    pub total: Quantiles,

    /// From the time the control plane saw the cause, as EndpointSlices carry it in an annotation, to the kernel's
    /// acknowledgement; absent while no slice carried one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_programming: Option<Quantiles>,

    /// The 99th percentile of total as text, such as 48ms.
    #[schemars(length(max = 32))]
    pub p99: String,
}

/// The spread of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Quantiles {
    /// Half of the changes took at most this many microseconds.
    pub p50_microseconds: Microseconds,
    /// 99 in 100 changes took at most this many microseconds.
    pub p99_microseconds: Microseconds,
    /// No change took longer than this many microseconds.
    pub max_microseconds: Microseconds,
}

/// The largest integer that every client of the API represents exactly.
const LARGEST: u64 = (1 << 53) - 1;

// === impl Microseconds ===

impl Microseconds {
    /// `count` microseconds, or the largest number that every JSON client keeps exactly.
    #[must_use]
    pub const fn new(count: u64) -> Self {
        Self(if count < LARGEST { count } else { LARGEST })
    }

    /// The number of microseconds.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.0
    }
}

impl From<Duration> for Microseconds {
    fn from(duration: Duration) -> Self {
        Self::new(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Microseconds> for Duration {
    fn from(microseconds: Microseconds) -> Self {
        Self::from_micros(microseconds.0)
    }
}

impl fmt::Display for Microseconds {
    /// Two or three digits and a suitable unit, for a column of a table: `850µs`, `1.2ms`, `48ms`,
    /// `3.1s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scaled = |f: &mut fmt::Formatter<'_>, unit: u64, name: &str| {
            let (whole, tenth) = (self.0 / unit, self.0 % unit * 10 / unit);
            if whole < 10 && tenth > 0 {
                write!(f, "{whole}.{tenth}{name}")
            } else {
                write!(f, "{whole}{name}")
            }
        };
        match self.0 {
            0..1_000 => write!(f, "{}µs", self.0),
            1_000..1_000_000 => scaled(f, 1_000, "ms"),
            _ => scaled(f, 1_000_000, "s"),
        }
    }
}

impl JsonSchema for Microseconds {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Microseconds".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "format": "int64", "minimum": 0})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_shows_a_short_number_with_a_unit() {
        for (count, text) in [
            (0, "0µs"),
            (850, "850µs"),
            (1_000, "1ms"),
            (1_240, "1.2ms"),
            (48_300, "48ms"),
            (3_100_000, "3.1s"),
            (61_000_000, "61s"),
        ] {
            assert_eq!(Microseconds::new(count).to_string(), text);
        }
    }
}
