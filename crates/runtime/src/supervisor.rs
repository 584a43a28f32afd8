//! One owner of every task of the process, and what follows when one ends.
//!
//! ```text
//!   main thread, a runtime of its own          worker threads, plain threads
//!   signals ----> supervise -- cancellation --> task, task, thread, ...
//!      exit code <----'  ^------ how it ended -----'
//! ```
//!
//! The two sides do not share a runtime, so that tasks which block every worker cannot keep a
//! signal or the end of the grace period from being noticed.

mod panic_log;

use std::collections::HashMap;
use std::error::Error;
use std::ffi::CString;
use std::fmt::Display;
use std::future::Future;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rustix::thread::set_name;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::task_local;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::error_chain::chain;
use crate::logging::{Log, LogOptions};
use crate::signals::{Signal, Signals};

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
    stop: CancellationToken,
}

/// How a task ended: without an error, or with the one it returned or panicked with.
pub type TaskEnd = Result<(), Box<dyn Error + Send + Sync>>;

/// What a task may return: nothing, or a result whose error says why it gave up.
pub trait TaskResult: Send + 'static {
    /// How the task that returned this ended.
    fn into_end(self) -> TaskEnd;
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
        let name = name.into();
        let task = TASK.scope(name.clone(), async { task.await.into_end() });
        self.hand_over(name, |tasks, runtime| tasks.spawn_on(task, runtime));
    }

    /// Runs `work` on a thread of its own for the rest of the process: for loops that block.
    ///
    /// It has to look at its token between waits. A thread that does not end within the grace
    /// period is left behind and dies with the process.
    pub fn spawn_thread<R>(
        &self,
        name: impl Into<String>,
        work: impl FnOnce(CancellationToken) -> R + Send + 'static,
    ) where
        R: TaskResult,
    {
        let (name, stop) = (name.into(), self.stop());
        let thread = name.clone();
        let work = move || {
            // For debuggers, which cut it off; a name with a zero in it is not worth an error.
            let _ = CString::new(thread.as_str()).map(|name| set_name(&name));
            TASK.sync_scope(thread, || work(stop).into_end())
        };
        self.hand_over(name, |tasks, runtime| {
            tasks.spawn_blocking_on(work, runtime)
        });
    }

    /// The token that says when the process is ending.
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    fn hand_over(
        &self,
        name: String,
        spawn: impl FnOnce(&mut JoinSet<TaskEnd>, &Handle) -> AbortHandle + Send + 'static,
    ) {
        let spawn = Box::new(spawn);
        // Refused only when the process is ending, when nothing new may start.
        let _ = self.jobs.send(Job { name, spawn });
    }
}

// === impl TaskResult ===

impl TaskResult for () {
    fn into_end(self) -> TaskEnd {
        Ok(())
    }
}

impl<E> TaskResult for Result<(), E>
where
    E: Into<Box<dyn Error + Send + Sync>> + Send + 'static,
{
    fn into_end(self) -> TaskEnd {
        self.map_err(Into::into)
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
/// `start` also gets the log, whose level and format can change. It sets things up and returns; an error from it ends
/// the process with exit code 1. It does not need to look at the stop token: a signal drops it where it waits.
pub fn run<S, F>(log: &LogOptions, grace: Duration, start: S) -> ExitCode
where
    S: FnOnce(Supervisor, Log) -> F + Send + 'static,
    F: Future<Output: TaskResult> + Send + 'static,
{
    let log = match log.apply() {
        Ok(log) => log,
        Err(error) => return refuse_to_start(&chain(&error)),
    };
    let start = |supervisor| start(supervisor, log);
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
    let stop = CancellationToken::new();
    // If the wait for the tasks is dropped, they are stopped, too.
    let _told_when_dropped = stop.clone().drop_guard();
    let (sender, mut jobs) = mpsc::unbounded_channel();
    let supervisor = Supervisor {
        jobs: sender,
        stop: stop.clone(),
    };
    let mut tasks = Tasks::default();
    let start = async move { start(supervisor).await.into_end() };
    let mut start = runtime.spawn(TASK.scope("start".to_owned(), start));
    let mut started = false;

    // No arm loses anything when dropped halfway: channels, signals and a join set are cancel
    // safe. A signal goes first, so that a flood of ended tasks cannot hide it.
    let mut end = loop {
        let (task, end) = tokio::select! {
            biased;
            signal = signals.recv() => {
                info!(signal = signal.name(), "stopping");
                break End::Stopped { overdue: Vec::new() };
            }
            ended = &mut start, if !started => {
                started = true;
                match outcome(ended) {
                    Ok(()) => continue,
                    failed => ("start".to_owned(), failed),
                }
            }
            Some(ended) = tasks.next_end() => ended,
            Some(job) = jobs.recv() => {
                tasks.start(job, &runtime);
                continue;
            }
        };
        match &end {
            Ok(()) => error!(task, "task ended unexpectedly: stopping the process"),
            Err(problem) => {
                error!(task, error = %chain(&**problem), "task ended with an error: stopping the process");
            }
        }
        break End::TaskEnded { task, end };
    };
    jobs.close();
    stop.cancel();
    // It does not know how to stop.
    start.abort();
    let all_ended = timeout(grace, async {
        while let Some((task, end)) = tasks.next_end().await {
            if let Err(problem) = end {
                warn!(task, error = %chain(&*problem), "a task failed while stopping");
            }
        }
    });
    tokio::select! {
        biased;
        signal = signals.recv() => {
            warn!(signal = signal.name(), "received a second stop signal: exiting immediately");
            return End::Forced(signal);
        }
        _ = all_ended => {}
    }
    let mut left: Vec<String> = tasks.names.into_values().collect();
    left.sort();
    if !left.is_empty() {
        let tasks = left.join(", ");
        warn!(
            tasks,
            ?grace,
            "tasks did not stop in time: exiting without them"
        );
    }
    if let End::Stopped { overdue } = &mut end {
        *overdue = left;
        info!("stopped");
    }
    end
}

task_local! {
    /// The name of the task that is being polled.
    static TASK: String;
}

/// Something to run until the process ends.
struct Job {
    name: String,
    spawn: Box<Spawn>,
}

type Spawn = dyn FnOnce(&mut JoinSet<TaskEnd>, &Handle) -> AbortHandle + Send;

/// All running tasks. Dropping it aborts those that are not threads.
#[derive(Default)]
struct Tasks {
    running: JoinSet<TaskEnd>,
    names: HashMap<Id, String>,
}

#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
struct Panicked(String);

// === impl Tasks ===

impl Tasks {
    fn start(&mut self, job: Job, runtime: &Handle) {
        let task = (job.spawn)(&mut self.running, runtime);
        self.names.insert(task.id(), job.name);
    }

    /// Waits for one to end; nothing when none runs. Cancel safe.
    async fn next_end(&mut self) -> Option<(String, TaskEnd)> {
        let (id, end) = match self.running.join_next_with_id().await? {
            Ok((id, end)) => (id, Ok(end)),
            Err(error) => (error.id(), Err(error)),
        };
        Some((self.names.remove(&id)?, outcome(end)))
    }
}

/// How a task ended that returned, panicked or was aborted.
fn outcome(joined: Result<TaskEnd, JoinError>) -> TaskEnd {
    let panic = match joined.map_err(JoinError::try_into_panic) {
        Ok(end) => return end,
        Err(Ok(panic)) => panic,
        // None of those that are waited for is ever aborted.
        Err(Err(aborted)) => return Err(aborted.into()),
    };
    let text = panic.downcast::<String>().map(|text| *text);
    let text = text.or_else(|panic| panic.downcast::<&str>().map(|text| (*text).to_owned()));
    // What is not text has nothing to show.
    let text = text.unwrap_or_else(|_| "without a message".to_owned());
    Err(Panicked(text).into())
}

/// On standard error, because there is no log to say it in yet.
fn refuse_to_start(why: &dyn Display) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests;
