//! How a command ended, as scripts see it.

use std::process::ExitCode;

/// How a command that did its work ended. A command that could not is an error: 1, or 2 for a wrong command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    /// The command worked and found no problem: 0.
    Success,
    /// The command worked and found a problem: 3.
    ProblemFound,
}

/// What scripts get for [`Ending::ProblemFound`]. Not 1 or 2, which say that the command itself failed.
const PROBLEM_FOUND: u8 = 3;

// === impl Ending ===

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> ExitCode {
        match ending {
            Ending::Success => ExitCode::SUCCESS,
            Ending::ProblemFound => ExitCode::from(PROBLEM_FOUND),
        }
    }
}
