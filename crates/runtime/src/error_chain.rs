//! An error with all its causes on one line.

use std::error::Error;
use std::fmt;

/// Prints an error and its sources, outermost first, joined by `: `; see [`chain`].
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(&'a (dyn Error + 'static));

/// Prints `error` and all its sources once each.
///
/// Signpost's errors describe only their own layer. Many library errors repeat their source in
/// their own text and also return it as a source: a source whose text has already been printed is
/// left out.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> Chain<'a> {
    Chain(error)
}

// === impl Chain ===

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printed = self.0.to_string();
        let mut next = self.0.source();
        while let Some(error) = next {
            let text = error.to_string();
            if !stands_in(&printed, &text) {
                printed.push_str(": ");
                printed.push_str(&text);
            }
            next = error.source();
        }
        f.write_str(&printed)
    }
}

/// Whether `text` occurs in `printed` as separate words, so that the source `5` does not match a
/// part of `port 53`.
fn stands_in(printed: &str, text: &str) -> bool {
    let inside_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.is_empty()
        || printed.match_indices(text).any(|(start, found)| {
            !inside_word(printed[..start].chars().next_back())
                && !inside_word(printed[start + found.len()..].chars().next())
        })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io;

    use thiserror::Error;

    use super::*;

    /// Checks that `error` describes only its own layer and that its chain repeats nothing.
    /// Returns the text of the chain.
    #[track_caller]
    pub(crate) fn assert_no_doubling(error: &(dyn Error + 'static)) -> String {
        let own = error.to_string();
        if let Some(source) = error.source() {
            assert!(
                !own.contains(&source.to_string()),
                "{own:?} repeats its source"
            );
        }
        let text = chain(error).to_string();
        let mut parts: Vec<_> = text.split(": ").collect();
        let all = parts.len();
        parts.sort_unstable();
        parts.dedup();
        assert_eq!(parts.len(), all, "{text:?} repeats itself");
        text
    }

    #[test]
    #[should_panic(expected = "repeats its source")]
    fn an_error_that_repeats_its_source_is_found() {
        assert_no_doubling(&ParseError(io::Error::other("x")));
    }

    #[derive(Debug, Error)]
    #[error("failed to read {file}")]
    struct ReadError {
        file: &'static str,
        source: ParseError,
    }

    #[derive(Debug, Error)]
    #[error("bad document: {0}")]
    struct ParseError(#[source] io::Error);

    #[derive(Debug, Error)]
    #[error("no such port 53")]
    struct Port(#[source] Number);

    #[derive(Debug, Error)]
    #[error("5")]
    struct Number;

    #[test]
    fn a_source_repeated_by_its_parent_is_printed_once() {
        let error = ReadError {
            file: "a.yaml",
            source: ParseError(io::Error::other("line 3 ends early")),
        };
        assert_eq!(
            chain(&error).to_string(),
            "failed to read a.yaml: bad document: line 3 ends early"
        );
    }

    #[test]
    fn a_source_that_is_only_part_of_a_word_is_printed() {
        assert_eq!(chain(&Port(Number)).to_string(), "no such port 53: 5");
    }

    #[test]
    fn an_error_behind_anyhow_prints_the_same() {
        let error = anyhow::Error::from(ReadError {
            file: "a.yaml",
            source: ParseError(io::Error::other("x")),
        })
        .context("outer");
        assert_eq!(
            chain(error.as_ref()).to_string(),
            "outer: failed to read a.yaml: bad document: x"
        );
    }
}
