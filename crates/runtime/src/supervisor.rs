//! The single owner of every task of the process, and what it does when one ends.
//!
//! ```text
//!   main thread, separate runtime               worker threads, plain threads
//!   signals ----> supervise -- cancellation --> task, task, thread, ...
//!      exit code <----'  ^------ how it ended -----'
//! ```
//!
//! The two sides have separate runtimes, so that tasks which block every worker cannot delay the
//! handling of a signal or of the end of the grace period.

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

use crate::descriptor_limit::raise_descriptor_limit;
use crate::error_chain::chain;
use crate::logging::{Log, LogOptions};
use crate::signals::{Signal, Signals};

/// How long tasks get to end by themselves: a third of the 30 s after which a kubelet kills a Pod,
/// so that a process which needs all of it still ends with its own exit code.
pub const GRACE: Duration = Duration::from_secs(10);

/// The maximum number of worker threads. More only cost memory: the work between two kernel commits
/// is short, and nodes with a hundred cores are common.
const MOST_WORKERS: usize = 4;

/// Passes tasks to their owner. Cheap to clone; tasks may hold a clone and start further tasks.
///
/// If a task returns, fails or panics before the process was asked to stop, the process logs its
/// name and ends with exit code 1: otherwise it would appear alive without doing its work. Release
/// builds abort on a panic, after that log line.
#[derive(Debug, Clone)]
pub struct Supervisor {
    jobs: mpsc::UnboundedSender<Job>,
    stop: CancellationToken,
}

/// How a task ended: without an error, or with the error it returned or panicked with.
pub type TaskEnd = Result<(), Box<dyn Error + Send + Sync>>;

/// What a task may return: nothing, or a result with the error that ended it.
pub trait TaskResult: Send + 'static {
    /// Converts the value that a task returned.
    fn into_end(self) -> TaskEnd;
}

/// Why a supervised process ended.
#[derive(Debug)]
pub enum End {
    /// It was asked to end, and did.
    Stopped {
        /// The tasks that were still running after the grace period.
        overdue: Vec<String>,
    },
    /// A task ended before the process was asked to stop.
    TaskEnded {
        /// The name of the task.
        task: String,
        /// How it ended.
        end: TaskEnd,
    },
    /// A signal arrived while the process was already stopping.
    Forced(Signal),
}

// === impl Supervisor ===

impl Supervisor {
    /// Runs `task` for the rest of the process. Log lines refer to it by `name`.
    ///
    /// The task must end when [`stop`](Supervisor::stop) is cancelled; what it returns then is only
    /// logged. A task that is passed while the process is stopping is not started.
    pub fn spawn<F>(&self, name: impl Into<String>, task: F)
    where
        F: Future<Output: TaskResult> + Send + 'static,
    {
        let name = name.into();
        let task = TASK.scope(name.clone(), async { task.await.into_end() });
        self.hand_over(name, |tasks, runtime| tasks.spawn_on(task, runtime));
    }

    /// Runs `work` on a separate thread for the rest of the process: for loops that block.
    ///
    /// It must check its token between waits. A thread that does not end within the grace period is
    /// abandoned and ends with the process.
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
            // For debuggers; the kernel truncates the name. A name that contains a NUL is not worth
            // an error.
            let _ = CString::new(thread.as_str()).map(|name| set_name(&name));
            TASK.sync_scope(thread, || work(stop).into_end())
        };
        self.hand_over(name, |tasks, runtime| {
            tasks.spawn_blocking_on(work, runtime)
        });
    }

    /// The token that is cancelled when the process ends.
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    fn hand_over(
        &self,
        name: String,
        spawn: impl FnOnce(&mut JoinSet<TaskEnd>, &Handle) -> AbortHandle + Send + 'static,
    ) {
        let spawn = Box::new(spawn);
        // Fails only while the process is ending, when no new task may start.
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
    /// The exit code of the process: 0 after an orderly stop, 1 after a task ended, 130 or 143
    /// after a second signal cut the stop short.
    pub fn exit_code(&self) -> u8 {
        match self {
            End::Stopped { .. } => 0,
            End::TaskEnded { .. } => 1,
            End::Forced(signal) => signal.exit_code(),
        }
    }
}

/// Runs a whole program: starts logging, catches signals, runs `start` and every task that it
/// passes to the supervisor, and returns the value for `main` to return.
///
/// `start` also gets the log, whose level and format can change. It sets things up and returns; its
/// error ends the process with exit code 1. It does not need to check the stop token: a signal
/// drops it at its next await.
pub fn run<S, F>(log: &LogOptions, grace: Duration, start: S) -> ExitCode
where
    S: FnOnce(Supervisor, Log) -> F + Send + 'static,
    F: Future<Output: TaskResult> + Send + 'static,
{
    let log = match log.apply() {
        Ok(log) => log,
        Err(error) => return refuse_to_start(&chain(&error)),
    };
    // Listeners and connections are as many as Services and their clients ask for.
    raise_descriptor_limit();
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
    // Do not wait for them any longer: the grace period has passed.
    tasks.shutdown_background();
    match end {
        Ok(end) => ExitCode::from(end.exit_code()),
        Err(error) => refuse_to_start(&chain(&error)),
    }
}

/// Runs `start`, then the tasks that it passed on, on `runtime`, until a signal arrives or one of
/// the tasks ends. Then cancels the stop token and waits for the tasks, at most for `grace` or
/// until another signal arrives. Logs all of this. Must be polled on a runtime with timers.
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
    // If this future is dropped, the tasks are stopped, too.
    let _reported_when_dropped = stop.clone().drop_guard();
    let (sender, mut jobs) = mpsc::unbounded_channel();
    let supervisor = Supervisor {
        jobs: sender,
        stop: stop.clone(),
    };
    let mut tasks = Tasks::default();
    let start = async move { start(supervisor).await.into_end() };
    let mut start = runtime.spawn(TASK.scope("start".to_owned(), start));
    let mut started = false;

    // All arms are cancel safe: channels, signals and a join set lose nothing. Signals come first,
    // so that a flood of ended tasks cannot hide them.
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
    // It does not observe the stop token.
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

/// A task to run until the process ends.
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

    /// Waits for a task to end; returns `None` if none runs. Cancel safe.
    async fn next_end(&mut self) -> Option<(String, TaskEnd)> {
        let (id, end) = match self.running.join_next_with_id().await? {
            Ok((id, end)) => (id, Ok(end)),
            Err(error) => (error.id(), Err(error)),
        };
        Some((self.names.remove(&id)?, outcome(end)))
    }
}

/// Converts the result of a task that returned, panicked or was aborted.
fn outcome(joined: Result<TaskEnd, JoinError>) -> TaskEnd {
    let panic = match joined.map_err(JoinError::try_into_panic) {
        Ok(end) => return end,
        Err(Ok(panic)) => panic,
        // Tasks in a join set are never aborted before they are joined.
        Err(Err(aborted)) => return Err(aborted.into()),
    };
    let text = panic.downcast::<String>().map(|text| *text);
    let text = text.or_else(|panic| panic.downcast::<&str>().map(|text| (*text).to_owned()));
    // A payload that is not text cannot be shown.
    let text = text.unwrap_or_else(|_| "without a message".to_owned());
    Err(Panicked(text).into())
}

/// Prints to standard error, because logging has not started yet.
fn refuse_to_start(why: &dyn Display) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests;
