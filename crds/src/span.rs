//! Durations as users of kube-proxy write them: `30s`, `1h30m`, `10ms`.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::rule::{self, SPAN_TOO_LONG};

/// A non-negative length of time in whole milliseconds, at most [`Span::MAX`].
///
/// The text form is that of Gateway API durations (GEP-2257) plus milliseconds: one to four groups
/// of one to five digits and a unit (`h`, `m`, `s` or `ms`), which are added up. Printing gives the
/// shortest such text, so `90s` is printed as `1m30s`; equality and hashing compare the length, not
/// the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

/// A text that is not a [`Span`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSpanError {
    /// The text has another form.
    #[error("must be a duration such as 30s, 1h30m or 10ms")]
    Form,
    /// The text is a duration longer than [`Span::MAX`].
    #[error("{}", SPAN_TOO_LONG.message)]
    TooLong,
}

/// The pattern that the API server checks before any rule.
pub const SPAN_PATTERN: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";

/// Four groups of five digits and the two letters of `ms`.
const LONGEST_TEXT: usize = 28;

const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

// === impl Span ===

impl Span {
    /// Zero. Some fields define it as "leave the kernel's value unchanged".
    pub const ZERO: Self = Self(Duration::ZERO);

    /// The longest span: as many hours as five digits can express, so that every span can be
    /// printed.
    pub const MAX: Self = Self(Duration::from_secs(99_999 * 3_600));

    /// `count` milliseconds, at most [`Span::MAX`].
    #[must_use]
    pub const fn milliseconds(count: u64) -> Self {
        let span = Duration::from_millis(count);
        if span.as_millis() > Self::MAX.0.as_millis() {
            return Self::MAX;
        }
        Self(span)
    }

    /// `count` seconds, at most [`Span::MAX`].
    #[must_use]
    pub const fn seconds(count: u64) -> Self {
        Self::milliseconds(count.saturating_mul(1_000))
    }

    /// `count` minutes, at most [`Span::MAX`].
    #[must_use]
    pub const fn minutes(count: u64) -> Self {
        Self::seconds(count.saturating_mul(60))
    }

    /// `count` hours, at most [`Span::MAX`].
    #[must_use]
    pub const fn hours(count: u64) -> Self {
        Self::minutes(count.saturating_mul(60))
    }

    /// The same length of time as a [`Duration`].
    #[must_use]
    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl From<Duration> for Span {
    /// The whole milliseconds of `duration`, at most [`Span::MAX`].
    fn from(duration: Duration) -> Self {
        Self::milliseconds(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        span.0
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, size) in UNITS {
            let count = rest / size;
            rest %= size;
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Span {
    type Err = ParseSpanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut rest = text;
        let mut total = 0_u64;
        let mut groups = 0;
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (count, after) = rest.split_at(digits);
            let letters = after.bytes().take_while(u8::is_ascii_lowercase).count();
            let (unit, next) = after.split_at(letters);
            let size = UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .map(|(_, size)| size);
            groups += 1;
            match (count.parse::<u64>(), size) {
                (Ok(count_of), Some(size)) if count.len() <= 5 && groups <= 4 => {
                    total += count_of * size
                }
                _ => return Err(ParseSpanError::Form),
            }
            rest = next;
        }
        if groups == 0 {
            return Err(ParseSpanError::Form);
        }
        let span = Self(Duration::from_millis(total));
        if span > Self::MAX {
            return Err(ParseSpanError::TooLong);
        }
        Ok(span)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Span {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": LONGEST_TEXT,
            "pattern": SPAN_PATTERN,
            "x-kubernetes-validations": rule::list(&[&SPAN_TOO_LONG]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_text_people_know_is_read() {
        for (text, milliseconds) in [
            ("30s", 30_000),
            ("10ms", 10),
            ("0s", 0),
            ("1h30m", 5_400_000),
            ("24h", 86_400_000),
            ("90s", 90_000),
            ("1h1m1s1ms", 3_661_001),
        ] {
            assert_eq!(text.parse(), Ok(Span::milliseconds(milliseconds)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "30",
            "s",
            "-1s",
            "1.5s",
            "1d",
            "1s ",
            "100000s",
            "1s1s1s1s1s",
            "1us",
            "5 minutes",
        ] {
            assert_eq!(text.parse::<Span>(), Err(ParseSpanError::Form), "{text:?}");
        }
        assert_eq!("99999h1s".parse::<Span>(), Err(ParseSpanError::TooLong));
    }

    #[test]
    fn a_measured_time_is_reported_in_whole_milliseconds_and_never_too_long() {
        let reported = |duration: Duration| Span::from(duration).to_string();
        assert_eq!(reported(Duration::from_micros(1_234_999)), "1s234ms");
        assert_eq!(reported(Duration::from_micros(999)), "0s");
        assert_eq!(Span::from(Duration::MAX), Span::MAX);
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back_as_the_same_span(milliseconds in 0_u64..=99_999 * 3_600_000) {
            let span = Span::milliseconds(milliseconds);
            prop_assert_eq!(span.to_string().parse(), Ok(span));
        }
    }
}
