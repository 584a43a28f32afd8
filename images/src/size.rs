//! How large something is.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A number of bytes. Prints in megabytes, of a million bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    /// Bytes.
    pub bytes: u64,
}

/// A text is no [`Size`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is not a whole number with B, kB or MB behind it, such as 30MB")]
pub struct ParseSizeError {
    text: String,
}

/// Larger ones first: each ends in `B`.
const UNITS: [(&str, u64); 3] = [("MB", 1_000_000), ("kB", 1_000), ("B", 1)];

// === impl Size ===

impl Size {
    /// That of `content`.
    pub fn of(content: &[u8]) -> Size {
        let bytes = u64::try_from(content.len()).expect("no memory has more than 64 bits of bytes");
        Size { bytes }
    }
}

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut units = UNITS.iter();
        let split = units.find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
        let parsed = split.and_then(|(number, unit)| Some((number.parse::<u64>().ok()?, unit)));
        let bytes = parsed.and_then(|(number, unit)| number.checked_mul(*unit));
        bytes
            .map(|bytes| Size { bytes })
            .ok_or_else(|| ParseSizeError {
                text: text.to_owned(),
            })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.bytes.saturating_add(50_000) / 100_000;
        write!(f, "{}.{} MB", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_printed() {
        for (text, bytes, printed) in [
            ("30MB", 30_000_000, "30.0 MB"),
            ("1250kB", 1_250_000, "1.3 MB"),
            ("1B", 1, "0.0 MB"),
            ("0B", 0, "0.0 MB"),
        ] {
            let size: Size = text.parse().expect("a size");
            assert_eq!((size.bytes, size.to_string().as_str()), (bytes, printed));
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "30", "MB", "-1MB", "1.5MB", "99999999999999999MB"] {
            let error = text.parse::<Size>().expect_err("no size");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
