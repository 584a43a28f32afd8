//! The source of commands.

use std::time::Duration;

use super::Command;

/// A source of commands for the loop.
pub trait CommandSource {
    /// Returns the next command. Waits for it this long, or without limit for `None`.
    fn receive(&mut self, wait: Option<Duration>) -> Received;
}

/// The result of waiting for a command.
#[derive(Debug)]
pub enum Received {
    /// A command.
    Command(Command),
    /// No command arrived in time.
    Nothing,
    /// Every sender is gone.
    Closed,
}
