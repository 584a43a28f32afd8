//! A short day of changes and faults on two nodes: nothing is lost, and nothing is left.

use std::time::Duration;

use anyhow::Result;
use libtest_mimic::Arguments;
use tests::binaries;
use tests::control_plane::build_programs;
use tests::network::enter_private_namespaces;
use tests::soak::{Settings, measure};
use tests::trial::trial;

fn main() -> Result<()> {
    build_programs()?;
    enter_private_namespaces()?;
    let name =
        "t354_changes_flushes_kills_and_outages_together_lose_no_connection_and_leave_no_object";
    let trials = vec![trial(name, soak)];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn soak() -> Result<()> {
    let figures = measure(
        binaries::find("signpost-agent")?,
        Settings {
            size: (400, 3),
            changes: 9,
            connections: 40,
            kept: 10,
            duration: Duration::from_secs(30),
            interval: Duration::from_secs(10),
            flush_every: Duration::from_secs(5),
            kill_every: Duration::from_secs(8),
            outage_every: Duration::from_secs(20),
            outage: Duration::from_secs(5),
        },
    )?;
    println!("{}", figures.page());
    figures.ensure_nothing_lost()
}
