//! A process whose tasks behave as the command line says. The tests send it real signals and check
//! how it ends.
//!
//! ```text
//! cargo run --example supervised -- wait --grace-ms 500
//! ```

use std::future::pending;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Parser, ValueEnum};
use runtime::{CancellationToken, LogOptions, Supervisor};
use tracing::info;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    log: LogOptions,
    /// What the task called `worker` does.
    behaviour: Behaviour,
    /// How long tasks get to stop, in milliseconds.
    #[arg(long, default_value_t = 60_000)]
    grace_ms: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Behaviour {
    /// Ends when asked to stop.
    Wait,
    /// Never ends.
    Stubborn,
    /// Blocks every thread that tasks run on.
    Wedge,
    /// Never finishes its setup.
    SetUpForever,
    /// Fails at once.
    Fail,
    /// Panics at once.
    Panic,
    /// Panics at once, on a separate thread.
    ThreadPanic,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let grace = Duration::from_millis(arguments.grace_ms);
    runtime::run(&arguments.log, grace, move |supervisor, _| {
        set_up(arguments.behaviour, supervisor)
    })
}

async fn set_up(behaviour: Behaviour, supervisor: Supervisor) {
    if let Behaviour::Wedge = behaviour {
        // More than there are threads.
        for _ in 0..8 {
            supervisor.spawn("worker", async { block_forever() });
        }
    } else {
        supervisor.spawn("bystander", wait(supervisor.stop()));
    }
    match behaviour {
        Behaviour::Wait => supervisor.spawn("worker", wait(supervisor.stop())),
        Behaviour::Stubborn => supervisor.spawn("worker", run_forever()),
        Behaviour::Wedge => {}
        Behaviour::SetUpForever => run_forever().await,
        Behaviour::Fail => supervisor.spawn("worker", async { give_up() }),
        Behaviour::Panic => supervisor.spawn("worker", async { fall_over() }),
        Behaviour::ThreadPanic => supervisor.spawn_thread("worker", |_| fall_over()),
    }
}

async fn wait(stop: CancellationToken) {
    info!("running");
    stop.cancelled().await;
}

fn fall_over() {
    panic!("slot 7 is taken")
}

fn give_up() -> anyhow::Result<()> {
    Err(anyhow!("disk full")).context("failed to write the last good configuration")
}

async fn run_forever() {
    info!("running");
    pending().await
}

fn block_forever() {
    info!("running");
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}
