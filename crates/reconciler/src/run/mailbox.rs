//! Commands on their way from other threads: the newest of each kind, never a queue.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use backend::Disturbance;

use super::{Command, Desired, Inbox, Received, Reply, Settings};

/// Where commands are left. Clones leave them in the same place. A kernel that hangs for minutes
/// under churn makes nothing pile up here but what a person asked for.
#[derive(Debug, Clone)]
pub struct Orders {
    waiting: Arc<Mutex<Waiting>>,
    wake: SyncSender<()>,
}

/// Where the loop finds them.
#[derive(Debug)]
pub struct Mailbox {
    waiting: Arc<Mutex<Waiting>>,
    wake: Receiver<()>,
}

/// What has not been taken yet.
#[derive(Debug, Default)]
struct Waiting {
    stop: bool,
    settings: Option<Settings>,
    desired: Option<Desired>,
    disturbance: Option<Disturbance>,
    replies: Vec<Reply>,
}

/// A mailbox and the way to leave commands in it.
pub fn mailbox() -> (Orders, Mailbox) {
    let waiting = Arc::default();
    // One wake-up is as good as many.
    let (sender, receiver) = sync_channel(1);
    let orders = Orders {
        waiting: Arc::clone(&waiting),
        wake: sender,
    };
    let wake = receiver;
    (orders, Mailbox { waiting, wake })
}

// === impl Orders ===

impl Orders {
    /// Leaves a command; never waits for the loop. One that replaces an older one takes over what
    /// counts of it: its stamps, its families and culprit. A loop that has ended takes no notice.
    pub fn send(&self, command: Command) {
        lock(&self.waiting).add(command);
        // Full: a wake-up is on its way.
        let _ = self.wake.try_send(());
    }
}

// === impl Mailbox ===

impl Inbox for Mailbox {
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
            Command::Drifted(newer) => match &mut self.disturbance {
                Some(disturbance) => disturbance.merge(newer),
                None => self.disturbance = Some(newer),
            },
            Command::Resync(reply) => self.replies.push(reply),
        }
    }

    /// The end first, then what the others depend on.
    fn take(&mut self) -> Option<Command> {
        if self.stop {
            return Some(Command::Stop);
        }
        let settings = self.settings.take().map(Command::Settings);
        settings
            .or_else(|| self.desired.take().map(Command::Desired))
            .or_else(|| self.disturbance.take().map(Command::Drifted))
            .or_else(|| self.replies.pop().map(Command::Resync))
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    // What is behind it is whole between any two statements that change it.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
