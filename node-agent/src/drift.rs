//! Others who change our rules: hears of them and has the loop look at once; says who it was.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use backend::Disturbance;
use backend_nftables::Disturbances;
use dataplane::Family;
use reconciler::{Command, Contest, Damage, FamilyStatus, Orders, Report};
use runtime::Stop;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::debug;

use crate::board::Board;
use crate::events::{Announcement, Events, Regarding, Severity};

/// How long it may take until the thread that listens notices that the process ends.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long nothing more is announced about the same program.
const SILENCE: Duration = Duration::from_secs(60);

/// Why nothing more can be heard.
#[derive(Debug, Error)]
pub(crate) enum WatchError {
    #[error("failed to ask the kernel for notifications")]
    Join(#[source] netlink::OpenError),
    #[error("failed to receive notifications of the kernel")]
    Receive(#[source] io::Error),
}

/// Passes every disturbance on to the loop, from when it has first programmed something until told
/// to stop. Blocks its thread; `runtime` is where it waits for reports.
pub(crate) fn watch(
    mut disturbances: Disturbances,
    board: &Board,
    orders: &Orders,
    runtime: &Handle,
    stop: &Stop,
) -> Result<(), WatchError> {
    // The commits of a start are the largest ones, and while somebody listens the kernel writes a
    // message for each element. Whatever came of the start, both families have had their turn.
    let mut report = board.report();
    runtime.block_on(async {
        // Both arms are cancel safe: neither takes anything out of anywhere.
        tokio::select! {
            () = stop.stopped() => {}
            _ = report.wait_for(|report| report.as_deref().is_some_and(has_programmed)) => {}
        }
    });
    disturbances.join().map_err(WatchError::Join)?;
    // Between the start and now, nobody has listened.
    orders.send(Command::Drifted(Disturbance::possible()));
    while !stop.is_stopped() {
        let disturbance = disturbances
            .receive(PATIENCE)
            .map_err(WatchError::Receive)?;
        if let Some(disturbance) = disturbance {
            if let Some(culprit) = &disturbance.culprit {
                debug!(%culprit, "somebody changes our rules");
            }
            orders.send(Command::Drifted(disturbance));
        }
    }
    Ok(())
}

fn has_programmed(report: &Report) -> bool {
    let programmed = |family: &FamilyStatus| family.programmed_since.is_some();
    report.families.iter().any(programmed)
}

/// Announces what was repaired, and that repairs are held back, until told to stop.
pub(crate) async fn announce(board: Arc<Board>, events: Events, stop: Stop) {
    let mut report = board.report();
    let mut told = Told::default();
    loop {
        // Both arms are cancel safe: what a report that is missed here counts, the next one does.
        tokio::select! {
            () = stop.stopped() => return,
            changed = report.changed() => if changed.is_err() { return },
        }
        let report = report.borrow_and_update().clone();
        let announcements = report.map(|report| told.news(&report, Instant::now()));
        for announcement in announcements.into_iter().flatten() {
            events.announce(announcement);
        }
    }
}

/// What has been announced.
#[derive(Debug, Default)]
struct Told {
    repairs: BTreeMap<Family, u64>,
    /// When which program was announced, as long as that keeps it from being announced again.
    programs: BTreeMap<String, Instant>,
    contest: Option<Contest>,
}

// === impl Told ===

impl Told {
    /// What of `report` is news.
    fn news(&mut self, report: &Report, now: Instant) -> Vec<Announcement> {
        self.programs
            .retain(|_, told| now.duration_since(*told) < SILENCE);
        let mut repaired: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for family in &report.families {
            let before = self.repairs.insert(family.family, family.drifts);
            if let Some(damage) = &family.last_damage
                && before.unwrap_or_default() < family.drifts
            {
                let program = damage.culprit.as_ref().map(|culprit| &*culprit.program);
                let notes = repaired.entry(program.unwrap_or_default().to_owned());
                notes.or_default().push(note(family.family, damage));
            }
        }
        let mut news = Vec::new();
        for (program, notes) in repaired {
            if let Entry::Vacant(silent) = self.programs.entry(program) {
                silent.insert(now);
                news.push(warning("RulesDrifted", notes.join("; ")));
            }
        }
        if let Some(contest) = &report.contest
            && self.contest.as_ref() != Some(contest)
        {
            news.push(warning("RulesContested", contest.to_string()));
        }
        self.contest.clone_from(&report.contest);
        news
    }
}

fn note(family: Family, damage: &Damage) -> String {
    format!(
        "{family}: {damage}, repaired after {:.0?}",
        damage.repaired_after
    )
}

fn warning(reason: &'static str, note: String) -> Announcement {
    Announcement {
        regarding: Regarding::Node,
        severity: Severity::Warning,
        reason,
        note,
    }
}

#[cfg(test)]
mod tests;
