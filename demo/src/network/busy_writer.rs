//! A program that continuously makes irrelevant changes to nf_tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use netlink::Socket;
use netlink::nf_tables::{Family, Operation, Transaction};

use super::Namespace;

/// Starts a new generation of the ruleset as often as the kernel allows, so that every dump of more
/// than one datagram is interrupted. Stops on drop.
#[derive(Debug)]
pub struct BusyWriter {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

// === impl BusyWriter ===

impl BusyWriter {
    /// Starts the changes in a separate table.
    pub fn start(namespace: &Namespace) -> Result<BusyWriter> {
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
        Ok(BusyWriter {
            done,
            thread: Some(thread),
        })
    }

    /// Stops the changes; returns an error if one has failed.
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

impl Drop for BusyWriter {
    fn drop(&mut self) {
        // Errors are reported only by `finish`.
        let _ = self.end();
    }
}
