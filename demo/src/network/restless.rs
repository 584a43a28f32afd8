//! Somebody who changes nf_tables all the time, and nothing that is of interest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use netlink::Socket;
use netlink::nf_tables::{Family, Operation, Transaction};

use super::Namespace;

/// Begins a new generation of the ruleset as often as the kernel takes one, so that no listing of more
/// than one datagram ends as it began. Ends when this is dropped.
#[derive(Debug)]
pub struct Restless {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

// === impl Restless ===

impl Restless {
    /// Begins, in a table of its own.
    pub fn start(namespace: &Namespace) -> Result<Restless> {
        let mut socket = namespace.enter(Socket::open)??;
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let thread = thread::spawn(move || {
            let mut change = Transaction::new(Family::Ipv4, "restless".into());
            change.operations = vec![Operation::AddTable, Operation::DeleteTable];
            while !is_done.load(Ordering::Relaxed) {
                socket.commit(&change)?;
            }
            Ok(())
        });
        Ok(Restless {
            done,
            thread: Some(thread),
        })
    }

    /// Ends it; an error if it has failed before.
    pub fn finish(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.done.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        thread.join().map_err(|_| anyhow!("its thread panicked"))?
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        // Whoever wants to know has asked.
        let _ = self.end();
    }
}
