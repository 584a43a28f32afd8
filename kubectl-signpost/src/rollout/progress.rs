//! Shows the progress of a rollout: in place on a terminal, elsewhere as a line for each change.

use std::env;
use std::io::{self, IsTerminal};
use std::time::Duration;

use crate::print;

/// Where the progress is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    /// A terminal whose last rows show the progress.
    Terminal { rows: usize },
    /// A file or a pipe, with its last line.
    Lines { last: String },
}

/// Separates the clauses in one line.
pub(super) const SEPARATOR: &str = "; ";
/// Without automatic wrapping (DECAWM), a terminal cuts a line that is wider than it, so that each
/// line takes one row and the rows to replace are known.
const CUT: &str = "\u{1b}[?7l";
const WRAP: &str = "\u{1b}[?7h";
/// Erases from the cursor to the end of the screen.
const ERASE: &str = "\u{1b}[J";

// === impl Progress ===

impl Progress {
    /// Chooses by whether standard output is a terminal that moves its cursor.
    pub(super) fn on_standard_output() -> Progress {
        let moves = |kind: &str| !kind.is_empty() && kind != "dumb";
        let moves = env::var("TERM").is_ok_and(|kind| moves(&kind));
        match moves && io::stdout().is_terminal() {
            true => Progress::Terminal { rows: 0 },
            false => Progress::Lines {
                last: String::new(),
            },
        }
    }

    /// Shows the present state, of a rollout that was followed for so long.
    pub(super) fn show(&mut self, clauses: &[String], followed: Duration) -> io::Result<()> {
        print(&self.draw(clauses, followed))
    }

    /// Shows the last state, in one line that stays.
    pub(super) fn finish(&mut self, clauses: &[String]) -> io::Result<()> {
        print(&self.conclude(clauses))
    }

    /// Leaves what is shown on the terminal, because other text follows it.
    pub(super) fn leave(&mut self) {
        if let Progress::Terminal { rows } = self {
            *rows = 0;
        }
    }

    /// Returns the text that replaces what is shown.
    fn draw(&mut self, clauses: &[String], followed: Duration) -> String {
        let Progress::Terminal { rows } = self else {
            return self.conclude(clauses);
        };
        let mut lines = clauses.to_vec();
        lines.push(format!("followed for {} s", followed.as_secs()));
        let text = format!("{}{CUT}{}\n{WRAP}", erase(*rows), lines.join("\n  "));
        *rows = lines.len();
        text
    }

    /// Returns the text that replaces what is shown by one line; empty if it is the last one.
    fn conclude(&mut self, clauses: &[String]) -> String {
        let line = clauses.join(SEPARATOR) + "\n";
        match self {
            Progress::Terminal { rows } => erase(std::mem::take(rows)) + &line,
            Progress::Lines { last } if *last == line => String::new(),
            Progress::Lines { last } => {
                last.clone_from(&line);
                line
            }
        }
    }
}

/// Returns the sequence that erases the last rows of a terminal.
fn erase(rows: usize) -> String {
    match rows {
        0 => String::new(),
        rows => format!("\r\u{1b}[{rows}A{ERASE}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn clauses(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_terminal_shows_one_state_and_keeps_the_last() {
        let mut progress = Progress::Terminal { rows: 0 };
        let first = progress.draw(&clauses(&["a", "wave 1"]), SECOND);
        assert_eq!(
            first,
            "\u{1b}[?7la\n  wave 1\n  followed for 1 s\n\u{1b}[?7h"
        );
        let second = progress.draw(&clauses(&["b"]), SECOND * 2);
        assert_eq!(
            second,
            "\r\u{1b}[3A\u{1b}[J\u{1b}[?7lb\n  followed for 2 s\n\u{1b}[?7h"
        );
        let last = progress.conclude(&clauses(&["c", "d"]));
        assert_eq!(last, "\r\u{1b}[2A\u{1b}[Jc; d\n");
    }

    #[test]
    fn an_error_below_what_is_shown_is_not_erased() {
        let mut progress = Progress::Terminal { rows: 0 };
        progress.draw(&clauses(&["a"]), SECOND);
        progress.leave();
        assert_eq!(progress.conclude(&clauses(&["b"])), "b\n");
    }

    #[test]
    fn a_pipe_gets_a_line_for_each_change() {
        let mut progress = Progress::Lines {
            last: String::new(),
        };
        assert_eq!(progress.draw(&clauses(&["a", "b"]), SECOND), "a; b\n");
        assert_eq!(progress.draw(&clauses(&["a", "b"]), SECOND * 2), "");
        assert_eq!(progress.draw(&clauses(&["c"]), SECOND * 3), "c\n");
        assert_eq!(progress.conclude(&clauses(&["c"])), "");
    }
}
