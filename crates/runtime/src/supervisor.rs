//! One owner of every task of the process, and what follows when one ends.
//!
//! ```text
//!   main thread, a runtime of its own          worker threads, plain threads
//!   signals ----> supervise ----- Stop ------> task, task, thread, ...
//!      exit code <----'  ^------ how it ended -----'
//! ```
//!
//! The two sides do not share a runtime, so that tasks which block every worker cannot keep a
//! signal or the end of the grace period from being noticed.

mod panic_log;
mod task;

use std::fmt::Display;
use std::future::Future;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::error_chain::chain;
use crate::logging::LogOptions;
use crate::signals::{Signal, Signals};
use crate::stop::{Stop, Stopper};
use task::{Ended, Job, Tasks};
pub use task::{TaskEnd, TaskResult};

/// How long tasks get to end by themselves. A third of the 30 s that a kubelet gives a Pod before
/// it kills, so that a process which needs all of it still ends by its own exit code.
pub const GRACE: Duration = Duration::from_secs(10);

/// More worker threads than this only cost memory: the work between two kernel commits is short,
/// and nodes with a hundred cores are common.
const MOST_WORKERS: usize = 4;

/// Hands tasks to their owner. Cheap to clone; tasks may carry a clone and start further tasks.
///
/// A task that ends before the process was asked to stop, whether it returns, fails or panics,
/// ends the process with exit code 1 and a log line that names it: what is left would be a process
/// that looks alive and does not do its work. Release builds abort on a panic, after that log line.
#[derive(Debug, Clone)]
pub struct Supervisor {
    jobs: mpsc::UnboundedSender<Job>,
    stop: Stop,
}

/// Why a supervised process ended.
#[derive(Debug)]
pub enum End {
    /// It was asked to, and did. Carries the names of tasks that overran the grace period.
    Stopped {
        /// Tasks that were still running.
        overdue: Vec<String>,
    },
    /// A task ended that should not have.
    TaskEnded {
        /// Which.
        task: String,
        /// How.
        end: TaskEnd,
    },
    /// A signal came while it was already stopping.
    Forced(Signal),
}

// === impl Supervisor ===

impl Supervisor {
    /// Runs `task` for the rest of the process. `name` is what log lines call it.
    ///
    /// The task ends when [`stop`](Supervisor::stop) says so; what it returns then is only logged.
    /// A task handed over while the process is stopping is not started.
    pub fn spawn<F>(&self, name: impl Into<String>, task: F)
    where
        F: Future<Output: TaskResult> + Send + 'static,
    {
        self.hand_over(Job::asynchronous(name.into(), task));
    }

    /// Runs `work` on a thread of its own for the rest of the process: for loops that block.
    ///
    /// It has to look at its [`Stop`] between waits. A thread that does not end within the grace
    /// period is left behind and dies with the process.
    pub fn spawn_thread<R>(
        &self,
        name: impl Into<String>,
        work: impl FnOnce(Stop) -> R + Send + 'static,
    ) where
        R: TaskResult,
    {
        let stop = self.stop();
        self.hand_over(Job::blocking(name.into(), move || work(stop)));
    }

    /// The token that says when the process is ending.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    fn hand_over(&self, job: Job) {
        // Refused only when the process is ending, when nothing new may start.
        let _ = self.jobs.send(job);
    }
}

// === impl End ===

impl End {
    /// What the process should exit with: 0 after an orderly stop, 1 after a task ended, 130 or
    /// 143 when a second signal cut the stop short.
    pub fn exit_code(&self) -> u8 {
        match self {
            End::Stopped { .. } => 0,
            End::TaskEnded { .. } => 1,
            End::Forced(signal) => signal.exit_code(),
        }
    }
}

/// Runs a whole program: starts logging, catches signals, runs `start` and every task it hands to
/// the supervisor, and returns what `main` returns.
///
/// `start` sets things up and returns; an error from it ends the process with exit code 1. It does
/// not need to look at the stop token: a signal drops it where it waits.
pub fn run<S, F>(log: &LogOptions, grace: Duration, start: S) -> ExitCode
where
    S: FnOnce(Supervisor) -> F + Send + 'static,
    F: Future<Output: TaskResult> + Send + 'static,
{
    if let Err(error) = log.apply() {
        return refuse_to_start(&chain(&error));
    }
    panic_log::install();
    let workers = match thread::available_parallelism() {
        Ok(processors) => processors.get().min(MOST_WORKERS),
        Err(_) => MOST_WORKERS,
    };
    let tasks = Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build();
    let own = Builder::new_current_thread().enable_all().build();
    let (tasks, own) = match (tasks, own) {
        (Ok(tasks), Ok(own)) => (tasks, own),
        (Err(error), _) | (_, Err(error)) => {
            return refuse_to_start(&format_args!("failed to start threads: {error}"));
        }
    };
    let end = own.block_on(async {
        match Signals::of_process() {
            Ok(signals) => Ok(supervise(signals, grace, tasks.handle().clone(), start).await),
            Err(error) => Err(error),
        }
    });
    // Waiting for them is over: what still runs had its grace.
    tasks.shutdown_background();
    match end {
        Ok(end) => ExitCode::from(end.exit_code()),
        Err(error) => refuse_to_start(&chain(&error)),
    }
}

/// Runs `start`, then the tasks it handed over, on `runtime`, until a signal comes or one of them
/// ends; then tells them to stop and waits for them, `grace` at most, or until another signal
/// comes. Logs all of this. Needs to be polled on a runtime with timers.
pub async fn supervise<S, F>(
    mut signals: Signals,
    grace: Duration,
    runtime: Handle,
    start: S,
) -> End
where
    S: FnOnce(Supervisor) -> F + Send + 'static,
    F: Future<Output: TaskResult> + Send + 'static,
{
    let (stopper, stop) = Stop::new();
    let (sender, mut jobs) = mpsc::unbounded_channel();
    let supervisor = Supervisor { jobs: sender, stop };
    let mut tasks = Tasks::new(runtime);
    let start = async move { start(supervisor).await };
    tasks.start(Job::one_shot("start".to_owned(), start));

    // No arm loses anything when dropped halfway: channels, signals and a join set are cancel
    // safe. A signal goes first, so that a flood of ended tasks cannot hide it.
    let cause = loop {
        tokio::select! {
            biased;
            signal = signals.recv() => break Cause::Signal(signal),
            Some(ended) = tasks.next_end() => {
                if let Some(ended) = unexpected(ended) {
                    break Cause::Task(ended);
                }
            }
            Some(job) = jobs.recv() => tasks.start(job),
        }
    };
    jobs.close();
    cause.report();
    match drain(&stopper, &mut tasks, &mut signals, grace).await {
        Drained::Forced(signal) => {
            warn!(signal = signal.name(), "told again to stop: ending at once");
            End::Forced(signal)
        }
        Drained::Within { overdue } => cause.into_end(overdue),
    }
}

/// Why the process starts to stop.
enum Cause {
    Signal(Signal),
    Task(Ended),
}

/// How stopping went.
enum Drained {
    Forced(Signal),
    Within { overdue: Vec<String> },
}

/// The end, unless it is that of a one-shot task which did what it had to.
fn unexpected(ended: Ended) -> Option<Ended> {
    let expected = ended.one_shot && matches!(ended.end, TaskEnd::Returned);
    (!expected).then_some(ended)
}

/// Tells all tasks to stop and waits for them.
async fn drain(
    stopper: &Stopper,
    tasks: &mut Tasks,
    signals: &mut Signals,
    grace: Duration,
) -> Drained {
    stopper.stop();
    tasks.abort_one_shots();
    let all_ended = timeout(grace, async {
        while let Some(ended) = tasks.next_end().await {
            if let Some(problem) = ended.end.problem() {
                warn!(task = ended.task, error = %problem, "task ended badly while stopping");
            }
        }
    });
    tokio::select! {
        biased;
        signal = signals.recv() => return Drained::Forced(signal),
        _ = all_ended => {}
    }
    let overdue = tasks.names();
    if !overdue.is_empty() {
        warn!(
            tasks = overdue.join(", "),
            ?grace,
            "tasks did not stop in time and are left behind"
        );
    }
    Drained::Within { overdue }
}

impl Cause {
    fn report(&self) {
        match self {
            Cause::Signal(signal) => info!(signal = signal.name(), "stopping"),
            Cause::Task(Ended { task, end, .. }) => match end.problem() {
                Some(problem) => error!(task, error = %problem, "task ended: ending the process"),
                None => error!(task, "task ended without being told to: ending the process"),
            },
        }
    }

    fn into_end(self, overdue: Vec<String>) -> End {
        match self {
            Cause::Signal(_) => {
                info!("stopped");
                End::Stopped { overdue }
            }
            Cause::Task(Ended { task, end, .. }) => End::TaskEnded { task, end },
        }
    }
}

/// On standard error, because there is no log to say it in yet.
fn refuse_to_start(why: &dyn Display) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests;
