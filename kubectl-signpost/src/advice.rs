//! The next step for the user after an error. Pure.

use std::error::Error as StdError;

use thiserror::Error;

use crate::agent::AskError;
use crate::cluster::ClusterError;

/// The address of a page of the documentation, which users of the program do not have as a file.
macro_rules! page {
    ($page:literal) => {
        concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/", $page)
    };
}
pub(crate) use page;

/// An error with the next step for the user.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what}")]
pub(crate) struct Problem {
    what: String,
    pub(crate) next: String,
}

/// The next step after an error of another type.
const ANYTHING_ELSE: &str = "run this again; if it fails again, report it with the archive that `kubectl signpost sysdump` writes";

/// Returns an error with the next step.
pub(crate) fn problem(what: impl Into<String>, next: impl Into<String>) -> Problem {
    Problem {
        what: what.into(),
        next: next.into(),
    }
}

/// Returns the next step after `error`.
pub(crate) fn next(error: &anyhow::Error) -> &str {
    let known = find::<Problem>(error).map(|problem| problem.next.as_str());
    known
        .or_else(|| find(error).map(ClusterError::advice))
        .or_else(|| find(error).map(AskError::advice))
        .unwrap_or(ANYTHING_ELSE)
}

/// Finds an error of type `E` in the chain of `error`, also if it was added as context.
fn find<E: StdError + Send + Sync + 'static>(error: &anyhow::Error) -> Option<&E> {
    let cause = || error.chain().find_map(|cause| cause.downcast_ref());
    error.downcast_ref().or_else(cause)
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn advice_is_found_wherever_it_is_in_a_chain() {
        let own = || problem("no port", "name it");
        let io = || std::io::Error::other("no such file");
        for error in [
            own().into(),
            anyhow::Error::from(own()).context("failed to follow it"),
            Err::<(), _>(io()).context(own()).expect_err("an error"),
            None::<()>.context(own()).expect_err("nothing"),
        ] {
            assert_eq!(next(&error), "name it", "{error:#}");
        }
        assert_eq!(next(&anyhow!("something")), ANYTHING_ELSE);
    }
}
