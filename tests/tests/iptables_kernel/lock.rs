//! The lock of iptables-legacy.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use backend::{Backend, Effect, Recovery, Rendered};
use tests::deadline::patience;
use tests::programmed::program;

use crate::damages::services;
use crate::ground::Ground;

/// The patience of a change that waits in vain.
const SHORT: Duration = Duration::from_millis(300);
/// Longer than any process holds the lock here.
const LONG: Duration = Duration::from_secs(60);

/// Another process that holds the lock.
struct Holder(Child);

// === impl Holder ===

impl Holder {
    /// Starts the process; returns when it holds the lock.
    fn start(ground: &Ground) -> Result<Holder> {
        let mut command = Command::new("flock");
        command.arg(ground.lock_file());
        // `exec` leaves one process to end, and cat ends with its input if this test does not end
        // it.
        command.args(["sh", "-c", "echo held && exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .context("unable to run flock: install util-linux")?;
        let output = child.stdout.take().context("it has an output")?;
        let holder = Holder(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line == "held\n", "flock says {line:?}");
        Ok(holder)
    }

    fn process(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    /// Releases the lock: flock ends with its command, which ends with its input.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            eprintln!("failed to wait for flock: {error}");
        }
    }
}

/// Failure story T37 (kubernetes#105742, amazon-vpc-cni-k8s#2948).
pub(crate) fn held_by_another_process(ground: &Ground) -> Result<()> {
    let dataplane = services(1..=3, 8080);
    let [mut impatient, _] = ground.open_with(SHORT)?;
    let holder = Holder::start(ground)?;
    let rules = impatient.render(&dataplane, &Rendered::default());
    let change = impatient.diff(&Rendered::default().rules, &rules);
    let started = Instant::now();
    let Err(error) = impatient.commit(change) else {
        anyhow::bail!("it took no heed of the lock");
    };
    let waited = started.elapsed();
    ensure!(
        waited >= SHORT && waited < patience(LONG),
        "it waited {waited:?}"
    );
    ensure!(
        (error.recovery, error.effect) == (Recovery::Retry, Effect::None),
        "{error:?}"
    );
    ensure!(impatient.lock_wait() >= SHORT, "the wait is not reported");
    let process = holder.process();
    let text = format!("{:#}", anyhow::Error::from(error));
    let named = format!("flock (process {process})");
    ensure!(text.contains(&named), "no {named:?} in {text:?}");

    let [mut patient, _] = ground.open_with(LONG)?;
    let (begins, begun) = mpsc::channel();
    let committed = thread::scope(|scope| -> Result<_> {
        let commit = scope.spawn(|| -> Result<_> {
            begins.send(())?;
            let observed = program(&mut patient, &dataplane, &Rendered::default())?;
            Ok((Instant::now(), observed))
        });
        begun.recv()?;
        // The commit cannot finish before the lock is released, however late it starts.
        let released = Instant::now();
        drop(holder);
        let Ok(committed) = commit.join() else {
            anyhow::bail!("the commit panicked");
        };
        let (ended, observed) = committed?;
        Ok((ended - released, observed))
    });
    let (after, observed) = committed?;
    ensure!(
        patient.observe()? == observed.rules,
        "something else is held"
    );
    println!("legacy: given up after {waited:.0?}; committed {after:.0?} after the release");
    Ok(())
}
