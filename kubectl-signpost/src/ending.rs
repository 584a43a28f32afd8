//! The exit codes for scripts.

use std::process::ExitCode;

/// The result of a command that completed. A command that failed exits with 1, or with 2 for an
/// invalid command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    /// The command worked and found no problem: 0.
    Success,
    /// The command worked and found a problem: 3.
    ProblemFound,
}

/// The exit code of [`Ending::ProblemFound`]. Not 1 or 2, which mean that the command itself
/// failed.
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
