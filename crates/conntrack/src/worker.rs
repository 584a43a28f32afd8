//! The loop: from what is programmed to passes.

use std::time::{Duration, Instant};

use dataplane::Family;
use netlink::conntrack::FlowSocket;

use crate::agenda::Agenda;
use crate::feed::Received;
use crate::pass::{BUDGET, KernelTable};
use crate::{Feed, Outcome, Pass, PassError, Watchlist};

/// Keeps the flows of this thread's network namespace in step with what `feed` says is programmed,
/// until it is closed. `publish` is given every pass. Memory does not grow with the table; at most
/// a tenth of one CPU is used.
pub fn run(feed: &Feed, mut publish: impl FnMut(Pass)) {
    let mut agendas = Family::ALL.map(Agenda::new);
    loop {
        let next = agendas.iter().filter_map(Agenda::due).min();
        let patience = next.map(|due| due.saturating_duration_since(Instant::now()));
        let mut steps = match feed.receive(patience) {
            Received::Steps(steps) => steps,
            Received::Closed => return,
        };
        let now = Instant::now();
        for (agenda, family) in agendas.iter_mut().zip(Family::ALL) {
            for knowledge in steps.remove(&family).unwrap_or_default() {
                agenda.learn(knowledge, now);
            }
        }
        for agenda in &mut agendas {
            let start = Instant::now();
            let Some(watchlist) = agenda.start(start) else {
                continue;
            };
            let mut pass = commit(&watchlist, feed);
            let end = Instant::now();
            pass.took = end - start;
            agenda.finish(&pass.outcome, pass.took, end);
            publish(pass);
        }
    }
}

/// One pass, through sockets of its own: whatever became of those of the last does not matter.
fn commit(watchlist: &Watchlist, feed: &Feed) -> Pass {
    let family = watchlist.family();
    let newest = || feed.newest(family);
    match FlowSocket::open() {
        Ok(mut kernel) => Pass::commit(watchlist, newest, &mut KernelTable, &mut kernel, BUDGET),
        Err(error) => Pass {
            family,
            took: Duration::ZERO,
            listed: 0,
            unreadable: 0,
            deleted: 0,
            outcome: Outcome::Failed(PassError::Open(error)),
        },
    }
}
