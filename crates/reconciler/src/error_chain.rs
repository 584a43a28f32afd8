//! The text of an error and its causes, in one line.

use std::error::Error;

/// The text of `error` and of every cause below it, outermost first, separated by colons.
pub(crate) fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::error_chain;
    use backend::{CommitError, Effect, Recovery};
    use dataplane::Family;

    #[test]
    fn every_cause_is_reported_once() {
        let busy = std::io::Error::other("resource busy");
        let error = CommitError {
            family: Family::Ipv4,
            recovery: Recovery::Retry,
            effect: Effect::None,
            source: Box::new(busy),
        };
        assert_eq!(
            error_chain(&error),
            "failed to commit IPv4 rules: resource busy"
        );
    }
}
