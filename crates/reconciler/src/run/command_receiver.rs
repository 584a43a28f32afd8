//! Commands from other threads: the newest of each kind, never a queue.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use backend::ExternalChange;

use super::{Command, CommandSource, Desired, Received, Reply, Settings};

/// The sending side. Clones share the mailbox. Even while the kernel hangs for minutes under churn,
/// only resync requests accumulate here.
#[derive(Debug, Clone)]
pub struct CommandSender {
    waiting: Arc<Mutex<Waiting>>,
    wake: SyncSender<()>,
}

/// The receiving side, for the loop.
#[derive(Debug)]
pub struct CommandReceiver {
    waiting: Arc<Mutex<Waiting>>,
    wake: Receiver<()>,
}

/// The commands that the loop has not taken yet.
#[derive(Debug, Default)]
struct Waiting {
    stop: bool,
    settings: Option<Settings>,
    desired: Option<Desired>,
    external_change: Option<ExternalChange>,
    replies: Vec<Reply>,
}

/// Creates a mailbox and its sending side.
pub fn command_receiver() -> (CommandSender, CommandReceiver) {
    let waiting = Arc::default();
    // One pending wake-up is enough.
    let (sender, receiver) = sync_channel(1);
    let commands = CommandSender {
        waiting: Arc::clone(&waiting),
        wake: sender,
    };
    let wake = receiver;
    (commands, CommandReceiver { waiting, wake })
}

// === impl CommandSender ===

impl CommandSender {
    /// Leaves a command; never waits for the loop. A command that replaces an older one keeps its
    /// stamps, or its families and actor. A loop that has ended ignores it.
    pub fn send(&self, command: Command) {
        lock(&self.waiting).add(command);
        // Full: a wake-up is already pending.
        let _ = self.wake.try_send(());
    }
}

// === impl CommandReceiver ===

impl CommandSource for CommandReceiver {
    fn receive(&mut self, wait: Option<Duration>) -> Received {
        let end = wait.and_then(|wait| Instant::now().checked_add(wait));
        loop {
            if let Some(command) = lock(&self.waiting).take() {
                return Received::Command(command);
            }
            let woken = match end {
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    self.wake.recv_timeout(left)
                }
                None => self.wake.recv().map_err(RecvTimeoutError::from),
            };
            match woken {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => return Received::Nothing,
                Err(RecvTimeoutError::Disconnected) => {
                    let last = lock(&self.waiting).take();
                    return last.map_or(Received::Closed, Received::Command);
                }
            }
        }
    }
}

// === impl Waiting ===

impl Waiting {
    fn add(&mut self, command: Command) {
        match command {
            Command::Stop => self.stop = true,
            Command::Settings(settings) => self.settings = Some(settings),
            Command::Desired(newer) => match &mut self.desired {
                Some(desired) => {
                    desired.dataplane = newer.dataplane;
                    desired.stamps.merge(&newer.stamps);
                }
                None => self.desired = Some(newer),
            },
            Command::Drifted(newer) => match &mut self.external_change {
                Some(external_change) => external_change.merge(newer),
                None => self.external_change = Some(newer),
            },
            Command::Resync(reply) => self.replies.push(reply),
        }
    }

    /// Takes the next command: stop first, then the settings, then the desired state, then the
    /// rest.
    fn take(&mut self) -> Option<Command> {
        if self.stop {
            return Some(Command::Stop);
        }
        let settings = self.settings.take().map(Command::Settings);
        settings
            .or_else(|| self.desired.take().map(Command::Desired))
            .or_else(|| self.external_change.take().map(Command::Drifted))
            .or_else(|| self.replies.pop().map(Command::Resync))
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    // The value is consistent between any two statements that change it.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
