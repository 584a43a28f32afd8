//! The measurement of `make fleet` with the fewest nodes that still form all waves.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::fleet::{Figures, Settings, measure};

#[test]
fn a_fleet_is_measured_and_an_operator_at_rest_writes_nothing() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let figures = runtime.block_on(measure(Settings {
        nodes: 5,
        watched: Duration::from_secs(2),
        tries: 1,
    }))?;
    let rest = &figures.rest;
    ensure!(rest.operator < 0.1, "at rest: {rest}");
    ensure!(
        rest.agents == 0.0,
        "at rest, agents with Leases wrote: {rest}"
    );
    let sizes = [figures.clone(), figures];
    for (table, columns) in [(Figures::table(&sizes), 2), (Figures::growth(&sizes), 1)] {
        let cells = |line: &str| line.split('|').filter(|cell| !cell.is_empty()).count();
        let is_whole = table.lines().all(|line| cells(line) == columns + 1);
        ensure!(is_whole, "{table}");
    }
    Ok(())
}
