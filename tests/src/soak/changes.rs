//! Replaces endpoints at a steady rate, and follows each change to the kernels of both nodes.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::{PATIENCE, Settings};
use crate::bench::writer::{Writer, Written};
use crate::bench::{ListenerThread, Population};

/// The step from one changed Service to the next: a prime, so that every Service is changed once
/// before any is changed twice.
const STRIDE: u32 = 7919;
/// How long it takes at least to look again whether the API server is back.
const PAUSE: Duration = Duration::from_millis(50);

/// A thread that changes endpoints.
#[derive(Debug)]
pub(super) struct Changes {
    shared: Arc<Shared>,
    /// Missing once it has been joined.
    thread: Option<JoinHandle<Result<()>>>,
    /// The changes that a node may still not have.
    under_way: Vec<(Written, [Option<Duration>; 2])>,
}

#[derive(Debug, Default)]
struct Shared {
    written: Mutex<Vec<Written>>,
    is_away: AtomicBool,
    ending: AtomicBool,
}

/// Changes that have reached both nodes, or took too long.
#[derive(Debug, Default)]
pub(super) struct Followed {
    /// From the API server's answer to each node's kernel.
    pub(super) delays: [Vec<Duration>; 2],
    /// Changes that a node did not have after [`PATIENCE`].
    pub(super) lost: u64,
}

// === impl Changes ===

impl Changes {
    /// Starts to change `population`. Both listeners are prepared for each change.
    pub(super) fn start(
        writer: &Arc<Writer>,
        mut population: Population,
        listeners: [Arc<ListenerThread>; 2],
        settings: &Settings,
    ) -> Changes {
        let shared = Arc::new(Shared::default());
        let (writer, progress, rate) = (Arc::clone(writer), Arc::clone(&shared), settings.changes);
        let thread = thread::spawn(move || {
            let mut turn: u32 = 0;
            while !progress.ending.load(Ordering::Relaxed) {
                if progress.is_away.load(Ordering::SeqCst) {
                    thread::sleep(PAUSE);
                    continue;
                }
                let mut replacements = Vec::new();
                for _ in 0..rate {
                    let service = turn.wrapping_mul(STRIDE) % population.services();
                    turn = (turn + 1) % population.services();
                    let replacement = population.replace_endpoint(service);
                    listeners
                        .iter()
                        .for_each(|listener| listener.expect(replacement.fresh));
                    replacements.push(replacement);
                }
                match writer.replace_steadily(replacements, Duration::from_secs(1) / rate) {
                    Ok(written) => progress.lock().extend(written),
                    // The next change of these Services writes all of their endpoints.
                    Err(_) if progress.is_away.load(Ordering::SeqCst) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        Changes {
            shared,
            thread: Some(thread),
            under_way: Vec::new(),
        }
    }

    /// From now on, changes may fail, and none are begun.
    pub(super) fn pause(&self) {
        self.shared.is_away.store(true, Ordering::SeqCst);
    }

    /// Continues after [`Changes::pause`].
    pub(super) fn resume(&self) {
        self.shared.is_away.store(false, Ordering::SeqCst);
    }

    /// Returns the changes since the last call that need not be followed any longer.
    pub(super) fn follow(&mut self, listeners: &[Arc<ListenerThread>; 2]) -> Followed {
        let written = mem::take(&mut *self.shared.lock());
        let written = written.into_iter().map(|written| (written, [None; 2]));
        self.under_way.extend(written);
        let mut followed = Followed::default();
        self.under_way.retain_mut(|(written, delays)| {
            for (delay, listener) in delays.iter_mut().zip(listeners) {
                if delay.is_none() {
                    let received = listener.received(written.address);
                    *delay = received.map(|at| at.saturating_duration_since(written.answered));
                }
            }
            match *delays {
                [Some(first), Some(second)] => {
                    followed.delays[0].push(first);
                    followed.delays[1].push(second);
                    false
                }
                _ if written.answered.elapsed() > PATIENCE => {
                    followed.lost += 1;
                    false
                }
                _ => true,
            }
        });
        followed
    }

    /// Fails if the thread has ended, with the reason.
    pub(super) fn ensure_continues(&mut self) -> Result<()> {
        match self.thread.take_if(|thread| thread.is_finished()) {
            Some(thread) => match thread.join() {
                Ok(ended) => ended.context("changes have ended"),
                Err(_) => Err(anyhow!("the thread of changes has panicked")),
            },
            None => Ok(()),
        }
    }

    /// Ends the changes and follows the last of them.
    pub(super) fn end(&mut self, listeners: &[Arc<ListenerThread>; 2]) -> Result<Followed> {
        self.shared.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            joined.map_err(|_| anyhow!("the thread of changes has panicked"))??;
        }
        let started = Instant::now();
        let mut followed = self.follow(listeners);
        while !self.under_way.is_empty() && started.elapsed() <= PATIENCE + PAUSE {
            thread::sleep(PAUSE);
            followed.add(self.follow(listeners));
        }
        followed.lost += u64::try_from(mem::take(&mut self.under_way).len())?;
        Ok(followed)
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Followed ===

impl Followed {
    /// Adds changes that were followed later.
    pub(super) fn add(&mut self, other: Followed) {
        for (delays, others) in self.delays.iter_mut().zip(other.delays) {
            delays.extend(others);
        }
        self.lost += other.lost;
    }
}
