//! Another program that changes its own table during the measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::network::Namespace;

/// A table with one set, unknown to both contenders.
const TABLE: &str =
    "add table inet neighbour; add set inet neighbour numbers { type inet_service; }";
/// The number of commands before the contender starts.
const ALONE: usize = 40;
/// The interval between two commands.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs `nft` repeatedly until it is stopped.
#[derive(Debug)]
pub(super) struct Neighbour {
    alone: Vec<Duration>,
    ending: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Duration>>>,
}

// === impl Neighbour ===

impl Neighbour {
    /// Starts on `node` and first runs alone for a while.
    pub(super) fn start(node: &Namespace) -> Result<Neighbour> {
        node.nft(&[TABLE])?;
        let alone = (0..ALONE).map(|number| write_once(node, number));
        let alone = alone.collect::<Result<_>>()?;
        let node = node.clone();
        let ending = Arc::new(AtomicBool::new(false));
        let reported = Arc::clone(&ending);
        let thread = thread::spawn(move || {
            let mut times = Vec::new();
            while !reported.load(Ordering::Relaxed) {
                times.push(write_once(&node, times.len())?);
                thread::sleep(PAUSE);
            }
            Ok(times)
        });
        Ok(Neighbour {
            alone,
            ending,
            thread,
        })
    }

    /// Returns the duration of each command: first those that ran alone, then the others.
    pub(super) fn stop(self) -> Result<[Vec<Duration>; 2]> {
        self.ending.store(true, Ordering::Relaxed);
        let joined = self.thread.join();
        let times = joined.map_err(|_| anyhow::anyhow!("the neighbour has panicked"))?;
        Ok([self.alone, times?])
    }
}

/// Adds an element, or removes the one added before.
fn write_once(node: &Namespace, number: usize) -> Result<Duration> {
    let verb = match number.is_multiple_of(2) {
        true => "add",
        false => "delete",
    };
    let command = format!("{verb} element inet neighbour numbers {{ 1 }}");
    let started = Instant::now();
    node.nft(&[&command])?;
    Ok(started.elapsed())
}
