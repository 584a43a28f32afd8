//! External changes to Signpost's rules: listens for them, makes the reconciler check at once, and
//! names the program that made them.

mod actor;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use backend::{ChangeListener, ExternalChange, ForeignChange, ListenError};
use crds::event::{self, EventReason};
use dataplane::{Family, Mode};
use modes::Listener;
use reconciler::{Command, CommandSender, FamilyStatus, RepairBackoff, RepairedDrift, Report};
use runtime::CancellationToken;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

pub(crate) use actor::WRITER;
use actor::observe_actor;
use events::{Announcement, EventObject, Events};

use crate::foreign_proxies::ForeignProxies;
use crate::latest::changed;
use crate::programmed::Programmed;

/// How long a program is not announced again after an announcement.
const SILENCE: Duration = Duration::from_secs(60);

/// Why a listener failed.
#[derive(Debug, Error)]
pub(crate) enum WatchError {
    #[error("failed to subscribe to notifications from the kernel")]
    Join(#[source] ListenError),
    #[error("failed to receive notifications from the kernel")]
    Receive(#[source] ListenError),
}

/// Passes every external change of nf_tables to the reconciler, from the first programmed state
/// until `stop` is cancelled and the listener interrupted. Blocks its thread; waits for reports on
/// `runtime`.
pub(crate) fn watch(
    mut listener: impl ChangeListener,
    programmed: &Programmed,
    proxies: &ForeignProxies,
    commands: &CommandSender,
    runtime: &Handle,
    stop: &CancellationToken,
) -> Result<(), WatchError> {
    // The commits at startup are the largest, and while a listener exists the kernel writes a
    // message for each element. Once one family is programmed, both families have had their first
    // sync.
    expect_report(programmed, runtime, stop, has_programmed);
    pass_on(&mut listener, proxies, commands, || !stop.is_cancelled())
}

/// Does the same for iptables, for each listener in turn. A listener that subscribes to the kernel
/// starts once iptables is active in a family. Each runs until the tables are closed.
pub(crate) fn watch_iptables(
    listeners: &Receiver<Listener>,
    programmed: &Programmed,
    proxies: &ForeignProxies,
    commands: &CommandSender,
    runtime: &Handle,
    stop: &CancellationToken,
) -> Result<(), WatchError> {
    // Ends when the sender is dropped, at the end of the process.
    while let Ok(listener) = listeners.recv() {
        let Listener {
            mut notification_listener,
            open_tables,
        } = listener;
        let is_in_use = || {
            let mut families = programmed.modes().into_values();
            families.any(|family| family.active_mode == Some(Mode::Iptables))
        };
        // Polling costs other programs nothing, so it may begin at once.
        let waits = notification_listener.listens();
        expect_report(programmed, runtime, stop, |_| {
            !waits || is_in_use() || !open_tables.lasts()
        });
        if open_tables.lasts() {
            let goes_on = || open_tables.lasts() && !stop.is_cancelled();
            pass_on(&mut notification_listener, proxies, commands, goes_on)?;
        }
    }
    Ok(())
}

/// Waits for a report for which `is_it` is true, or until `stop` is cancelled.
fn expect_report(
    programmed: &Programmed,
    runtime: &Handle,
    stop: &CancellationToken,
    mut is_it: impl FnMut(&Report) -> bool,
) {
    let mut report = programmed.report();
    runtime.block_on(async {
        // Both arms are cancel safe: neither consumes anything.
        tokio::select! {
            () = stop.cancelled() => {}
            _ = report.wait_for(|report| report.as_deref().is_some_and(&mut is_it)) => {}
        }
    });
}

/// Listens, passes changes to Signpost's rules to the reconciler, and posts every external change
/// to `proxies`.
fn pass_on(
    listener: &mut dyn ChangeListener,
    proxies: &ForeignProxies,
    commands: &CommandSender,
    goes_on: impl Fn() -> bool,
) -> Result<(), WatchError> {
    listener.join().map_err(WatchError::Join)?;
    // Until now there was no listener: assume a possible change.
    let mut change = ForeignChange::OwnRules(ExternalChange::possible());
    loop {
        if change != ForeignChange::None {
            proxies.post_change();
        }
        if let ForeignChange::OwnRules(mut external_change) = change {
            external_change.actor = external_change.actor.map(observe_actor);
            if let Some(actor) = &external_change.actor {
                debug!(%actor, "another program has changed Signpost's rules");
            }
            commands.send(Command::Drifted(external_change));
        }
        if !goes_on() {
            return Ok(());
        }
        change = listener.receive().map_err(WatchError::Receive)?;
    }
}

fn has_programmed(report: &Report) -> bool {
    let programmed = |family: &FamilyStatus| family.programmed_since.is_some();
    report.families.iter().any(programmed)
}

/// Announces repairs, and that repairs are held back, until `stop` is cancelled.
pub(crate) async fn announce(
    mut report: watch::Receiver<Option<Arc<Report>>>,
    events: Events,
    stop: CancellationToken,
) {
    let mut reported = Announced::default();
    loop {
        // Both arms are cancel safe: the next report includes the counts of a missed one.
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed(&mut report) => {}
        }
        let report = report.borrow_and_update().clone();
        let announcements = report.map(|report| reported.announcements(&report, Instant::now()));
        for announcement in announcements.into_iter().flatten() {
            events.announce(announcement);
        }
    }
}

/// What has been announced.
#[derive(Debug, Default)]
struct Announced {
    repairs: BTreeMap<Family, u64>,
    /// When each program was announced, for as long as that suppresses another announcement.
    programs: BTreeMap<String, Instant>,
    repair_backoff: Option<RepairBackoff>,
}

// === impl Announced ===

impl Announced {
    /// Returns the announcements for what is new in `report`.
    fn announcements(&mut self, report: &Report, now: Instant) -> Vec<Announcement> {
        self.programs
            .retain(|_, reported| now.duration_since(*reported) < SILENCE);
        let mut repaired: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for family in &report.families {
            let before = self.repairs.insert(family.family, family.drifts);
            if let Some(repaired_drift) = &family.last_repaired_drift
                && before.unwrap_or_default() < family.drifts
            {
                let program = repaired_drift.actor.as_ref().map(|actor| &*actor.program);
                let notes = repaired.entry(program.unwrap_or_default().to_owned());
                notes.or_default().push(note(family.family, repaired_drift));
            }
        }
        let mut announcements = Vec::new();
        for (program, notes) in repaired {
            if let Entry::Vacant(silent) = self.programs.entry(program) {
                silent.insert(now);
                announcements.push(about_node(event::RULES_DRIFTED, notes.join("; ")));
            }
        }
        if let Some(repair_backoff) = &report.repair_backoff
            && self.repair_backoff.as_ref() != Some(repair_backoff)
        {
            announcements.push(about_node(event::CONTESTED, repair_backoff.to_string()));
        }
        self.repair_backoff.clone_from(&report.repair_backoff);
        announcements
    }
}

fn note(family: Family, repaired_drift: &RepairedDrift) -> String {
    format!(
        "{family}: {repaired_drift}, repaired after {:.0?}",
        repaired_drift.repaired_after
    )
}

fn about_node(reason: EventReason, note: String) -> Announcement {
    Announcement {
        regarding: EventObject::Node,
        reason,
        note,
    }
}

#[cfg(test)]
mod tests;
