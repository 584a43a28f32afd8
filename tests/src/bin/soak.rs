//! An hour of changes and faults on two nodes: `make soak`. See `bench/README.md`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use jiff::Zoned;
use tests::binaries;
use tests::control_plane::build_programs;
use tests::network::enter_private_namespaces;
use tests::soak::{Settings, measure};

/// Runs two agents among changes, flushed rules, kills and outages of the API server, and prints a
/// table. Fails if a connection or a change is lost.
#[derive(Debug, Parser)]
struct Arguments {
    /// The whole duration, in minutes.
    #[arg(long, default_value_t = 60)]
    minutes: u32,
    /// The duration of a row, in seconds.
    #[arg(long, default_value_t = 120)]
    row: u64,
    /// The number of Services.
    #[arg(long, default_value_t = 10_000)]
    services: u32,
    /// The number of endpoints of each Service.
    #[arg(long, default_value_t = 5)]
    endpoints: u32,
    /// The number of endpoints replaced per second.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    changes: u32,
    /// The number of new connections per second on each node.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// The number of TCP connections on each node that stay open.
    #[arg(long, default_value_t = 50)]
    kept: u32,
    /// The seconds from one flush of rules to the next.
    #[arg(long, default_value_t = 60)]
    flush: u64,
    /// The seconds from one kill of the agent to the next.
    #[arg(long, default_value_t = 120)]
    kill: u64,
    /// The seconds from one absence of the API server to the next.
    #[arg(long, default_value_t = 600)]
    outage: u64,
    /// The path of the agent; by default the one that cargo has built next to this program.
    #[arg(long)]
    agent: Option<PathBuf>,
    /// The folder of the table.
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let agent = match arguments.agent {
        Some(agent) => agent,
        None => binaries::find("signpost-agent")?,
    };
    build_programs()?;
    enter_private_namespaces()?;
    let began = Zoned::now();
    let figures = measure(
        agent,
        Settings {
            size: (arguments.services, arguments.endpoints),
            changes: arguments.changes,
            connections: arguments.connections,
            kept: arguments.kept,
            duration: Duration::from_secs(60) * arguments.minutes,
            interval: Duration::from_secs(arguments.row),
            flush_every: Duration::from_secs(arguments.flush),
            kill_every: Duration::from_secs(arguments.kill),
            outage_every: Duration::from_secs(arguments.outage),
            outage: Duration::from_secs(20),
        },
    )?;
    let page = figures.page();
    println!("\n{page}");
    fs::create_dir_all(&arguments.out).context("failed to make the folder of results")?;
    let (services, endpoints) = (arguments.services, arguments.endpoints);
    let name = format!("{}-soak-{services}x{endpoints}.md", began.date());
    let file = arguments.out.join(name);
    let title = format!("# {} minutes of changes and faults", arguments.minutes);
    fs::write(&file, format!("{title}\n\n{page}"))
        .with_context(|| format!("failed to write {}", file.display()))?;
    figures.ensure_nothing_lost()
}
