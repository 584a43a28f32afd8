//! Connects and prints the result.
//!
//! `probe once` prints a line for each connection. `probe watch` prints `running` after the first
//! answer, continues until its input ends, and prints a tally in JSON; `probe keep` does the same
//! over one connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, Subcommand};
use demo::network::{Connection, Outcome, Tally};

/// Connects and prints the result.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// Make a fixed number of connections.
    Once {
        /// The number of connections.
        #[arg(long, default_value_t = 1)]
        count: u32,
        #[command(flatten)]
        connection: Connection,
    },
    /// Make new connections until the input ends.
    Watch {
        /// The interval from the start of one connection to the start of the next, in milliseconds.
        #[arg(long)]
        every_ms: u64,
        /// The time limit of a TCP handshake, in milliseconds.
        #[arg(long)]
        handshake_ms: u64,
        #[command(flatten)]
        connection: Connection,
    },
    /// Make requests over one TCP connection or one UDP flow until the input ends.
    Keep {
        /// The interval between two requests, in milliseconds.
        #[arg(long)]
        every_ms: u64,
        #[command(flatten)]
        connection: Connection,
    },
}

fn main() -> Result<()> {
    match Cli::parse().mode {
        Mode::Once { count, connection } => {
            for _ in 0..count {
                println!("{}", connection.outcome(connection.deadline()));
            }
        }
        Mode::Watch {
            every_ms,
            handshake_ms,
            connection,
        } => {
            let handshake = Duration::from_millis(handshake_ms);
            let tally = tally(Duration::from_millis(every_ms), || {
                connection.outcome(handshake)
            });
            println!("{}", serde_json::to_string(&tally)?);
        }
        Mode::Keep {
            every_ms,
            connection,
        } => {
            let mut kept = None;
            let tally = tally(Duration::from_millis(every_ms), || {
                let outcome = connection.ask_over(&mut kept);
                outcome.unwrap_or_else(|error| {
                    kept = None;
                    Outcome::of_error(&error)
                })
            });
            println!("{}", serde_json::to_string(&tally)?);
        }
    }
    Ok(())
}

/// Calls `ask` until the input ends; prints a line after the first answer.
fn tally(every: Duration, mut ask: impl FnMut() -> Outcome) -> Tally {
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    thread::spawn(move || {
        // An error ends the input too.
        drop(io::copy(&mut io::stdin(), &mut io::sink()));
        stop.store(true, Ordering::Relaxed);
    });
    let start = Instant::now();
    let mut tally = Tally::default();
    let mut due = start;
    while !stopped.load(Ordering::Relaxed) {
        let outcome = ask();
        tally.count(&outcome, start.elapsed());
        if tally.answers() == 1 && matches!(outcome, Outcome::Answered { .. }) {
            println!("running");
        }
        due += every;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    tally.end(start.elapsed());
    tally
}
