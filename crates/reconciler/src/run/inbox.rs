//! Where commands come from.

use std::sync::mpsc;
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

impl Inbox for mpsc::Receiver<Command> {
    fn receive(&mut self, wait: Option<Duration>) -> Received {
        let received = match wait {
            Some(wait) => self.recv_timeout(wait),
            None => self.recv().map_err(mpsc::RecvTimeoutError::from),
        };
        match received {
            Ok(command) => Received::Command(command),
            Err(mpsc::RecvTimeoutError::Timeout) => Received::Nothing,
            Err(mpsc::RecvTimeoutError::Disconnected) => Received::Closed,
        }
    }
}
