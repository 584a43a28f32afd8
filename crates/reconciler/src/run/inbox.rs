//! Where commands come from.

use std::time::Duration;

use super::Command;

/// Where the loop takes its commands from.
pub trait Inbox {
    /// The next command, waiting for it this long, or without end for `None`.
    fn receive(&mut self, wait: Option<Duration>) -> Received;
}

/// What came of waiting for a command.
#[derive(Debug)]
pub enum Received {
    /// This one.
    Command(Command),
    /// None in this time.
    Nothing,
    /// Nobody is left who could send one.
    Closed,
}
