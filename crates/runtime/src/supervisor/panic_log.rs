//! Logs panics with the name of the task.

use std::backtrace::Backtrace;
use std::panic::{self, PanicHookInfo};
use std::thread;

use tracing::{debug, error};

use super::TASK;

/// Installs a panic hook that writes to the log. Release builds abort on a panic, so this is the
/// last line and the only one that can name the task.
pub(super) fn install() {
    panic::set_hook(Box::new(report));
}

fn report(panic: &PanicHookInfo<'_>) {
    let task = TASK.try_with(Clone::clone).unwrap_or_else(|_| {
        thread::current()
            .name()
            .unwrap_or("unnamed thread")
            .to_owned()
    });
    let message = panic.payload_as_str().unwrap_or("without a message");
    let place = panic
        .location()
        .map(ToString::to_string)
        .unwrap_or_default();
    error!(task, place, "panicked: {message}");
    debug!(task, "{}", Backtrace::force_capture());
}
