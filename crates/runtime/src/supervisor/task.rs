//! Tasks as values, and how they end.

use std::any::Any;
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::task_local;

use crate::error_chain::chain;

type BoxError = Box<dyn Error + Send + Sync>;
type Body = Pin<Box<dyn Future<Output = TaskEnd> + Send>>;

task_local! {
    /// The name of the task that is being polled.
    pub(super) static TASK: String;
}

/// How a task ended.
#[derive(Debug)]
pub enum TaskEnd {
    /// It returned without an error.
    Returned,
    /// It returned an error.
    Failed(BoxError),
    /// It panicked, with this message.
    Panicked(String),
}

/// What a task may return: nothing, or a result whose error says why it gave up.
pub trait TaskResult: Send + 'static {
    /// How the task that returned this ended.
    fn into_end(self) -> TaskEnd;
}

/// Something to run until the process ends.
pub(super) struct Job {
    name: String,
    one_shot: bool,
    body: Body,
}

/// That a task ended.
pub(super) struct Ended {
    pub(super) task: String,
    pub(super) one_shot: bool,
    pub(super) end: TaskEnd,
}

/// All running tasks. Dropping it aborts those that are not threads.
pub(super) struct Tasks {
    runtime: Handle,
    running: JoinSet<TaskEnd>,
    names: HashMap<Id, Running>,
}

struct Running {
    name: String,
    one_shot: Option<AbortHandle>,
}

// === impl TaskEnd ===

impl TaskEnd {
    /// What went wrong, with every cause; nothing when it just returned.
    pub(super) fn problem(&self) -> Option<impl fmt::Display + '_> {
        match self {
            TaskEnd::Returned => None,
            TaskEnd::Failed(error) => Some(chain(error.as_ref()).to_string()),
            TaskEnd::Panicked(message) => Some(format!("panicked: {message}")),
        }
    }
}

impl TaskResult for () {
    fn into_end(self) -> TaskEnd {
        TaskEnd::Returned
    }
}

impl<E> TaskResult for Result<(), E>
where
    E: Into<BoxError> + Send + 'static,
{
    fn into_end(self) -> TaskEnd {
        match self {
            Ok(()) => TaskEnd::Returned,
            Err(error) => TaskEnd::Failed(error.into()),
        }
    }
}

// === impl Job ===

impl Job {
    pub(super) fn asynchronous<F>(name: String, task: F) -> Self
    where
        F: Future<Output: TaskResult> + Send + 'static,
    {
        let body = Box::pin(TASK.scope(name.clone(), async move { task.await.into_end() }));
        Job {
            name,
            one_shot: false,
            body,
        }
    }

    /// A task that is expected to return.
    pub(super) fn one_shot<F>(name: String, task: F) -> Self
    where
        F: Future<Output: TaskResult> + Send + 'static,
    {
        Job {
            one_shot: true,
            ..Job::asynchronous(name, task)
        }
    }

    pub(super) fn blocking<R: TaskResult>(
        name: String,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Self {
        let thread_name = name.clone();
        let body = Box::pin(async move {
            let (sender, receiver) = oneshot::channel();
            let started = thread::Builder::new().name(thread_name).spawn(move || {
                let end = match catch_unwind(AssertUnwindSafe(work)) {
                    Ok(result) => result.into_end(),
                    Err(payload) => TaskEnd::Panicked(panic_message(payload.as_ref())),
                };
                // Nobody listens any more once the process has given up waiting.
                let _ = sender.send(end);
            });
            match started {
                Ok(_) => receiver.await.unwrap_or(TaskEnd::Returned),
                Err(error) => TaskEnd::Failed(Box::new(ThreadError(error))),
            }
        });
        Job {
            name,
            one_shot: false,
            body,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("failed to start a thread")]
struct ThreadError(#[source] io::Error);

// === impl Tasks ===

impl Tasks {
    pub(super) fn new(runtime: Handle) -> Self {
        Tasks {
            runtime,
            running: JoinSet::new(),
            names: HashMap::new(),
        }
    }

    pub(super) fn start(&mut self, job: Job) {
        let handle = self.running.spawn_on(job.body, &self.runtime);
        let id = handle.id();
        let one_shot = job.one_shot.then_some(handle);
        self.names.insert(
            id,
            Running {
                name: job.name,
                one_shot,
            },
        );
    }

    /// Waits for one to end; nothing when none runs. Cancel safe.
    pub(super) async fn next_end(&mut self) -> Option<Ended> {
        let (id, end) = match self.running.join_next_with_id().await? {
            Ok((id, end)) => (id, end),
            Err(error) => {
                let id = error.id();
                // What is no panic is an abort, and only one-shot tasks are ever aborted.
                let end = match error.try_into_panic() {
                    Ok(payload) => TaskEnd::Panicked(panic_message(payload.as_ref())),
                    Err(_) => TaskEnd::Returned,
                };
                (id, end)
            }
        };
        let Running { name, one_shot } = self.names.remove(&id)?;
        Some(Ended {
            task: name,
            one_shot: one_shot.is_some(),
            end,
        })
    }

    /// Drops the one-shot tasks where they wait: they do not know how to stop.
    pub(super) fn abort_one_shots(&self) {
        for running in self.names.values() {
            if let Some(task) = &running.one_shot {
                task.abort();
            }
        }
    }

    /// Those still running, in alphabetical order.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self
            .names
            .values()
            .map(|running| running.name.clone())
            .collect();
        names.sort();
        names
    }
}

/// What a panic said. A payload that is not text has nothing to show.
pub(super) fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "without a message".to_owned()
    }
}
