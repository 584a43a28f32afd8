//! How a command ended, as scripts see it.

use std::process::ExitCode;

/// How a command that did its work ended. A command that could not is an error: 1, or 2 for a wrong command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    /// Everything is as it should be: 0.
    AsItShouldBe,
    /// The command worked, and found something that is not as it should be: 3.
    NotAsItShouldBe,
}

/// What scripts get for [`Ending::NotAsItShouldBe`]. Not 1 or 2, which say that the command itself failed.
const NOT_AS_IT_SHOULD_BE: u8 = 3;

// === impl Ending ===

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> ExitCode {
        match ending {
            Ending::AsItShouldBe => ExitCode::SUCCESS,
            Ending::NotAsItShouldBe => ExitCode::from(NOT_AS_IT_SHOULD_BE),
        }
    }
}
