//! The checks before a handover: notes, warnings and obstacles.

use std::fmt;

use backend::first_of;

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
pub(super) fn some_of<T: fmt::Display>(things: &[T]) -> String {
    first_of(things, NAMED)
}
