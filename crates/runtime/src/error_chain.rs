//! An error with all its causes on one line.

use std::error::Error;
use std::fmt;

use kube::core::Status;

/// Prints an error and its sources, outermost first, joined by `: `; see [`chain`].
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(&'a (dyn Error + 'static));

/// Prints `error` and all its sources once each.
///
/// Signpost's errors describe only their own layer. Many library errors repeat their source in
/// their own text and also return it as a source: a source whose text has already been printed is
/// left out. Of an answer of the API server, its message is printed: the text of such an error
/// also has all fields, as Rust prints them.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> Chain<'a> {
    Chain(error)
}

// === impl Chain ===

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = find_answer(self.0);
        // Errors of watches contain the text of the answer in their own.
        let describe = |error: &dyn Error| match answer {
            Some((answer, status)) => {
                let text = error
                    .to_string()
                    .replace(&answer.to_string(), &status.message);
                text.replace(&status.to_string(), &status.message)
            }
            None => error.to_string(),
        };
        let mut printed = describe(self.0);
        let mut next = self.0.source();
        while let Some(error) = next {
            let text = describe(error);
            if !stands_in(&printed, &text) {
                printed.push_str(": ");
                printed.push_str(&text);
            }
            next = error.source();
        }
        f.write_str(&printed)
    }
}

/// Finds the answer of the API server among `error` and its sources, if it has a message.
fn find_answer<'a>(error: &'a (dyn Error + 'static)) -> Option<(&'a kube::Error, &'a Status)> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(answer @ kube::Error::Api(status)) = error.downcast_ref() {
            return (!status.message.is_empty()).then_some((answer, status.as_ref()));
        }
        next = error.source();
    }
    None
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

    /// A refusal was printed with all fields of the answer: `(Status { status: Some(Failure), …`.
    #[test]
    fn of_an_answer_of_the_api_server_its_message_is_printed() {
        let message = "pods is forbidden: User \"jane\" cannot list resource \"pods\"";
        let status = Status::failure(message, "Forbidden").with_code(403);
        let answer = kube::Error::Api(status.boxed());
        assert_eq!(chain(&answer).to_string(), message);
        let watch = Watch(kube::Error::Api(
            Status::failure(message, "Forbidden").with_code(403).boxed(),
        ));
        assert_eq!(
            chain(&watch).to_string(),
            format!("failed to list: {message}")
        );
    }

    /// As `kube::runtime::watcher::Error`, whose text has that of its source.
    #[derive(Debug, Error)]
    #[error("failed to list: {0}")]
    struct Watch(#[source] kube::Error);

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
