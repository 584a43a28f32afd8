//! The loop that turns programmed states into passes.

use std::time::Instant;

use dataplane::Family;

use crate::feed::Received;
use crate::pass::{BUDGET, KernelDeletions, KernelTable};
use crate::pass_schedule::PassSchedule;
use crate::{Feed, Pass};

/// Keeps the flows of this thread's network namespace consistent with what `feed` reports as
/// programmed, until the feed is closed. Calls `publish` with every pass. Memory use does not grow
/// with the table; the passes of a family use at most a tenth of one CPU, and a fiftieth while they
/// are short.
pub fn run(feed: &Feed, mut publish: impl FnMut(Pass)) {
    let mut agendas = Family::ALL.map(PassSchedule::new);
    let (mut table, mut deletions) = (KernelTable::default(), KernelDeletions::default());
    loop {
        let next = agendas.iter().filter_map(PassSchedule::due).min();
        let patience = next.map(|due| due.saturating_duration_since(Instant::now()));
        let mut steps = match feed.receive(patience) {
            Received::Steps(steps) => steps,
            Received::Closed => return,
        };
        let now = Instant::now();
        for (pass_schedule, family) in agendas.iter_mut().zip(Family::ALL) {
            for knowledge in steps.remove(&family).unwrap_or_default() {
                pass_schedule.learn(knowledge, now);
            }
        }
        for pass_schedule in &mut agendas {
            let start = Instant::now();
            let Some(stale_flows) = pass_schedule.start(start) else {
                continue;
            };
            let newest = || feed.newest(stale_flows.family());
            let mut pass = Pass::commit(&stale_flows, newest, &mut table, &mut deletions, BUDGET);
            let end = Instant::now();
            pass.took = end - start;
            pass_schedule.finish(&pass.outcome, pass.took, end);
            publish(pass);
        }
    }
}
