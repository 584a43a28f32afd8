//! The checks before a handover: notes, warnings and obstacles.

use std::fmt;

/// One result of the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) weight: Severity,
    pub(super) text: String,
}

/// The severity of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// For information only.
    Note,
    /// Prevents the handover unless it is forced.
    Warning,
    /// Makes the handover impossible.
    Obstacle,
}

/// How many Services, rules or chains are named; the rest is counted.
const NAMED: usize = 5;

// === impl Point ===

impl Point {
    pub(super) fn note(text: impl Into<String>) -> Point {
        Point {
            weight: Severity::Note,
            text: text.into(),
        }
    }

    pub(super) fn warning(text: impl Into<String>) -> Point {
        Point {
            weight: Severity::Warning,
            text: text.into(),
        }
    }

    pub(super) fn obstacle(text: impl Into<String>) -> Point {
        Point {
            weight: Severity::Obstacle,
            text: text.into(),
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.weight {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Obstacle => "obstacle",
        };
        write!(f, "{sign}: {}", self.text)
    }
}

/// Names the first of `things`, and counts the rest.
pub(super) fn some_of<T: ToString>(things: &[T]) -> String {
    let named = &things[..things.len().min(NAMED)];
    let named: Vec<String> = named.iter().map(T::to_string).collect();
    match things.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_counted_and_a_few_are_named() {
        let things = |count: u8| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(some_of(&things(2)), "0, 1");
        assert_eq!(some_of(&things(5)), "0, 1, 2, 3, 4");
        assert_eq!(some_of(&things(7)), "0, 1, 2, 3, 4 and 2 more");
    }
}
