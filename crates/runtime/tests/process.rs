//! How a supervised process ends, as seen from outside: real signals, exit codes, log lines.
//!
//! The process is the example `supervised`. Cargo builds it for `cargo test`, but not for `cargo
//! test --test process`, which runs the last build.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const DEADLINE: Duration = Duration::from_secs(30);

/// A running example, killed at the end of the test in any case.
struct Supervised {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Supervised {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(example())
            .args(arguments)
            .env_remove("SIGNPOST_LOG")
            .env_remove("SIGNPOST_LOG_FORMAT")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the example is built together with the tests");
        let stderr = child.stderr.take().expect("standard error is piped");
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Supervised {
            child,
            lines,
            seen: Vec::new(),
        }
    }

    /// Waits for a log line with all of `words`.
    fn await_line(&mut self, words: &[&str]) -> String {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if words.iter().all(|word| line.contains(word)) => return line,
                Ok(line) => self.seen.push(line),
                Err(_) => panic!("no line with {words:?} after {:#?}", self.seen),
            }
        }
    }

    /// Waits until the task under test and the second task run.
    fn await_both_tasks(&mut self) {
        self.await_line(&["running"]);
        self.await_line(&["running"]);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal)
            .expect("the child is the test's and still there");
    }

    fn await_exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is the test's") {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "still running after {:#?}",
                self.seen
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // Fails if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn example() -> PathBuf {
    let test = env::current_exe().expect("a running test has a path");
    let profile = test
        .ancestors()
        .nth(2)
        .expect("tests are in a directory below the profile's");
    profile.join("examples").join("supervised")
}

#[test]
fn reported_to_stop_it_exits_with_zero() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut process = Supervised::start(&["wait"]);
        process.await_line(&["running"]);
        process.signal(signal);
        process.await_line(&["stopped"]);
        assert_eq!(process.await_exit().code(), Some(0));
    }
}

#[test]
fn reported_a_second_time_it_ends_at_once() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut process = Supervised::start(&["stubborn"]);
        process.await_both_tasks();
        process.signal(Signal::TERM);
        process.await_line(&["stopping"]);
        process.signal(signal);
        assert_eq!(process.await_exit().code(), Some(code));
    }
}

#[test]
fn a_task_that_does_not_stop_is_named_and_left_behind() {
    let mut process = Supervised::start(&["stubborn", "--grace-ms", "50"]);
    process.await_both_tasks();
    process.signal(Signal::TERM);
    process.await_line(&["did not stop in time", "tasks=\"worker\""]);
    assert_eq!(process.await_exit().code(), Some(0));
}

#[test]
fn tasks_that_block_every_thread_do_not_keep_it_from_stopping() {
    let mut process = Supervised::start(&["wedge", "--grace-ms", "50"]);
    // One line for each worker thread.
    for _ in 0..thread::available_parallelism().map_or(1, |processors| processors.get().min(4)) {
        process.await_line(&["running"]);
    }
    process.signal(Signal::TERM);
    process.await_line(&["did not stop in time"]);
    assert_eq!(process.await_exit().code(), Some(0));
}

#[test]
fn a_set_up_that_hangs_can_be_stopped() {
    let mut process = Supervised::start(&["set-up-forever"]);
    process.await_line(&["running"]);
    process.signal(Signal::TERM);
    process.await_line(&["stopped"]);
    assert_eq!(process.await_exit().code(), Some(0));
}

#[test]
fn a_task_that_fails_ends_it_and_is_named_with_every_cause_once() {
    let mut process = Supervised::start(&["fail"]);
    let line = process.await_line(&["ERROR", "task ended", "worker"]);
    assert!(
        line.contains("failed to write the last good configuration: disk full"),
        "{line}"
    );
    assert_eq!(line.matches("disk full").count(), 1, "{line}");
    assert_eq!(process.await_exit().code(), Some(1));
}

#[test]
fn a_panic_ends_it_and_names_the_task_and_the_place() {
    for behaviour in ["panic", "thread-panic"] {
        let mut process = Supervised::start(&[behaviour]);
        process.await_line(&[
            "ERROR",
            "panicked: slot 7 is taken",
            "worker",
            "supervised.rs:",
        ]);
        process.await_line(&["ERROR", "task ended", "worker", "slot 7 is taken"]);
        assert_eq!(process.await_exit().code(), Some(1));
    }
}

#[test]
fn json_lines_are_json() {
    let mut process = Supervised::start(&["fail", "--log-format", "json"]);
    let line = process.await_line(&["task ended"]);
    let line: serde_json::Value = serde_json::from_str(&line).expect("each line is one document");
    assert_eq!(line["level"], "ERROR");
    assert_eq!(line["task"], "worker");
    assert_eq!(
        line["error"],
        "failed to write the last good configuration: disk full"
    );
    process.await_exit();
    for line in process.seen.drain(..).chain(process.lines.iter()) {
        serde_json::from_str::<serde_json::Value>(&line).expect("every line is one document");
    }
}

#[test]
fn the_filter_decides_what_is_logged() {
    let mut process = Supervised::start(&["fail", "--log", "error"]);
    process.await_line(&["task ended"]);
    process.await_exit();
    assert!(process.seen.is_empty(), "{:#?}", process.seen);
}

#[test]
fn a_filter_that_does_not_parse_is_named() {
    let mut process = Supervised::start(&["wait", "--log", "info,=="]);
    process.await_line(&["error: failed to parse the log filter \"info,==\" (flag --log"]);
    assert_eq!(process.await_exit().code(), Some(1));
}
