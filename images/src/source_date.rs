//! When sources were last changed.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use thiserror::Error;

/// The time of the sources that an image was made from, which stands for every time in it: the time
/// of the build would make each build another image.
///
/// Seconds since 1970, as in the variable `SOURCE_DATE_EPOCH`
/// (<https://reproducible-builds.org/specs/source-date-epoch/>). Prints as RFC 3339 wants it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SourceDate(Timestamp);

/// A text is no [`SourceDate`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is not a number of seconds since 1970")]
pub struct ParseSourceDateError {
    text: String,
}

// === impl SourceDate ===

impl SourceDate {
    /// Seconds since 1970.
    pub fn seconds(self) -> u64 {
        let seconds = self.0.as_second();
        u64::try_from(seconds).expect("what is parsed has no sign")
    }
}

impl FromStr for SourceDate {
    type Err = ParseSourceDateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seconds = text.parse::<u32>().ok().map(i64::from);
        let date = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
        date.map(SourceDate).ok_or_else(|| ParseSourceDateError {
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for SourceDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for SourceDate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_a_date() {
        let date: SourceDate = "1767225600".parse().expect("a date");
        assert_eq!(date.to_string(), "2026-01-01T00:00:00Z");
        assert_eq!(date.seconds(), 1_767_225_600);
        assert_eq!(SourceDate::default().to_string(), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in ["", "-1", "2026-01-01", "1e9"] {
            let error = text.parse::<SourceDate>().expect_err("no date");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
