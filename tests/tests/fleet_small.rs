//! The measurement of `make fleet` with a few nodes, which still form all waves.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::fleet::{Figures, Settings, measure};

/// The number of nodes: with the default of `maxUnavailable`, one changes at a time.
const NODES: usize = 8;

#[test]
fn a_fleet_is_measured_and_handed_over_node_by_node_and_an_operator_at_rest_writes_nothing()
-> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let figures = runtime.block_on(measure(Settings {
        nodes: NODES,
        watched: Duration::from_secs(2),
        tries: 1,
    }))?;
    let rest = &figures.rest;
    ensure!(rest.operator < 0.1, "at rest: {rest}");
    ensure!(
        rest.agents == 0.0,
        "at rest, agents with Leases wrote: {rest}"
    );

    let handovers = &figures.handovers;
    for handover in [handovers.handback, handovers.takeover] {
        let generations = [handover.fewest_generations, handover.most_generations];
        ensure!(generations == [1, 1], "{handover:?}");
        ensure!(handover.most_at_once == 1, "{handover:?}");
    }
    let refused = &handovers.refused;
    let verdict = &refused.verdict;
    ensure!(
        verdict.node == refused.node && verdict.reason == "HandoverRefused",
        "{refused:?}"
    );
    // There and back, and no second node.
    let changed = [(refused.node.clone(), 2)].into();
    ensure!(refused.changed == changed, "{refused:?}");

    let sizes = [figures.clone(), figures];
    for (table, columns) in [(Figures::table(&sizes), 2), (Figures::growth(&sizes), 1)] {
        let cells = |line: &str| line.split('|').filter(|cell| !cell.is_empty()).count();
        let is_whole = table.lines().all(|line| cells(line) == columns + 1);
        ensure!(is_whole, "{table}");
    }
    Ok(())
}
