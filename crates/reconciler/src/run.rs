//! The loop: from commands to syncs to reports.

mod command_receiver;
mod command_source;
mod report;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::{Backend, ExternalChange, Leftover};
use dataplane::{Dataplane, Family};

use crate::latency::{Backlog, Latency};
use crate::urgency::urgency;
use crate::{
    Clock, FamilyReconciler, FamilySync, Periods, Reason, Reconciler, RepairBackoff, RepairedDrift,
    Schedule, Stamps, Urgency,
};
pub use command_receiver::{CommandReceiver, CommandSender, command_receiver};
pub use command_source::{CommandSource, Received};
pub use report::{Activity, LoopEvent, Report, RunningSync};

/// The maximum number of commands taken after a sync is due and before it starts. More than can
/// arrive during any sync. Without a limit, a source that never stops sending would postpone the
/// sync forever.
const TAKEN_BEFORE_ROUND: usize = 4096;

/// A command to the loop.
#[derive(Debug)]
pub enum Command {
    /// The new desired state. Of several, the last one applies; the stamps of all of them are kept.
    Desired(Desired),
    /// The new settings.
    Settings(Settings),
    /// Another program may have changed the kernel.
    Drifted(ExternalChange),
    /// Read the kernel back and repair every difference, even if the last known state is the
    /// desired one.
    Resync(Reply),
    /// Return, leaving the kernel as it is.
    Stop,
}

/// The desired state of the kernel.
#[derive(Debug, Clone)]
pub struct Desired {
    /// All of it.
    pub dataplane: Dataplane,
    /// When the changes in it were made and received.
    pub stamps: Stamps,
}

/// The settings of the loop, from the profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How often to write and how often to check the kernel.
    pub periods: Periods,
    /// Whether to write at all.
    pub permission: Permission,
}

/// Whether the kernel may be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// The loop keeps the kernel at the desired state.
    Active,
    /// The kernel keeps what it has: the loop writes nothing, removes nothing and repairs no drift.
    /// The desired state is remembered and programmed once the pause ends.
    Paused,
    /// The kernel holds none of Signpost's rules: the loop removes them and writes nothing. What
    /// established connections need goes when they have ended. The desired state is remembered and
    /// programmed once this ends.
    Withdrawn,
}

/// Receives the outcome of a resync.
pub struct Reply(Box<dyn FnOnce(Resync) + Send>);

/// The outcome of a resync.
#[derive(Debug, Clone)]
pub enum Resync {
    /// The sync in each family.
    Done(Vec<Arc<FamilySync>>),
    /// No sync ran: the loop is paused or withdrawn.
    Paused,
}

/// Keeps the kernel at the desired state until a [`Command::Stop`] arrives or every sender is gone.
/// Writes nothing before the first [`Command::Desired`].
///
/// Calls `publish` when a sync begins, and with a report after every sync, when the loop is
/// paused or resumed, and when repairs are no longer delayed. The loop waits for each call to
/// return.
pub fn run<B: Backend>(
    reconciler: &mut Reconciler<B>,
    settings: Settings,
    command_source: &mut impl CommandSource,
    clock: &dyn Clock,
    publish: impl FnMut(LoopEvent<'_, B>),
) {
    let mut state = Loop {
        reconciler,
        clock,
        publish,
        schedule: Schedule::new(settings.periods),
        permission: Permission::Active,
        desired: None,
        backlog: Backlog::default(),
        replies: Vec::new(),
        repair_backoff: None,
        removal: None,
    };
    state.permit(settings.permission, settings.periods);
    while let Next::Sync(reason) = state.take_commands(command_source) {
        state.sync(reason);
    }
}

/// The state of the loop, in addition to that of its families.
struct Loop<'a, B: Backend, P> {
    reconciler: &'a mut Reconciler<B>,
    clock: &'a dyn Clock,
    publish: P,
    schedule: Schedule,
    permission: Permission,
    desired: Option<Dataplane>,
    backlog: Backlog,
    replies: Vec<Reply>,
    repair_backoff: Option<RepairBackoff>,
    /// The next attempt to remove everything, after one that failed or left something.
    removal: Option<Removal>,
}

/// A pending attempt to remove everything.
#[derive(Debug, Clone, Copy)]
struct Removal {
    at: Instant,
    /// How many attempts have failed in a row.
    failures: u32,
}

/// What to do after taking commands.
enum Next {
    Sync(Reason),
    End,
}

// === impl Loop ===

impl<B: Backend, P: FnMut(LoopEvent<'_, B>)> Loop<'_, B, P> {
    /// Takes commands until a sync is due, and then all commands that are already waiting.
    fn take_commands(&mut self, command_source: &mut impl CommandSource) -> Next {
        let mut taken_late = 0;
        loop {
            let wait = self.wait();
            let late = wait == Some(Duration::ZERO);
            taken_late += usize::from(late);
            let received = if late && taken_late > TAKEN_BEFORE_ROUND {
                Received::Nothing
            } else {
                command_source.receive(wait)
            };
            match received {
                Received::Command(Command::Stop) | Received::Closed => return Next::End,
                Received::Command(command) => self.take(command),
                Received::Nothing => {
                    self.remove_if_due();
                    if let Some(reason) = self.start() {
                        return Next::Sync(reason);
                    }
                    self.calm();
                }
            }
        }
    }

    /// The time until the next sync; `None` if none is scheduled.
    fn wait(&self) -> Option<Duration> {
        match self.permission {
            Permission::Paused => None,
            Permission::Withdrawn => {
                let removal = self.removal?;
                Some(removal.at.saturating_duration_since(self.clock.now()))
            }
            Permission::Active => {
                let due = self.schedule.due().map(|due| due.at);
                let next = due.into_iter().chain(self.schedule.calm_at()).min()?;
                Some(next.saturating_duration_since(self.clock.now()))
            }
        }
    }

    fn start(&mut self) -> Option<Reason> {
        match self.permission {
            Permission::Paused | Permission::Withdrawn => None,
            Permission::Active => self.schedule.start(self.clock.now()),
        }
    }

    fn take(&mut self, command: Command) {
        let now = self.clock.now();
        match command {
            Command::Desired(Desired { dataplane, stamps }) => {
                let urgency = match &self.desired {
                    Some(before) => urgency(before, &dataplane),
                    None => Urgency::Ordinary,
                };
                self.schedule.changed(now, urgency);
                let families = self.reconciler.families().iter();
                self.backlog
                    .add(families.map(FamilyReconciler::family), &stamps);
                self.desired = Some(dataplane);
            }
            Command::Settings(Settings {
                periods,
                permission,
            }) => {
                self.schedule.set_periods(periods);
                self.permit(permission, periods);
            }
            Command::Drifted(external_change) => {
                self.reconciler.disturb(&external_change, now);
                self.schedule.drifted(now);
            }
            Command::Resync(reply) => {
                self.schedule.requested(now);
                self.replies.push(reply);
                self.refuse_replies_if_paused();
            }
            Command::Stop => {}
        }
    }

    fn permit(&mut self, permission: Permission, periods: Periods) {
        if self.permission == permission {
            return;
        }
        self.permission = permission;
        self.removal = None;
        self.end_repair_backoff_if_paused();
        self.refuse_replies_if_paused();
        if permission == Permission::Withdrawn {
            // Start as after a restart: read the kernel back before the first write.
            self.schedule = Schedule::new(periods);
            if self.desired.is_some() {
                self.schedule.changed(self.clock.now(), Urgency::Ordinary);
            }
            self.remove(0);
        }
        self.publish_idle();
    }

    fn remove_if_due(&mut self) {
        if let Some(removal) = self.removal
            && removal.at <= self.clock.now()
        {
            self.remove(removal.failures);
            self.publish_idle();
        }
    }

    /// Removes all of Signpost's rules, after this many failed attempts. What established
    /// connections need is looked at again as often as the kernel is checked.
    fn remove(&mut self, failures: u32) {
        let removed = self.reconciler.commit_withdrawal(self.clock);
        let next = match removed {
            Ok(Leftover::Nothing) => None,
            Ok(Leftover::Connections(_)) => Some((self.schedule.sync_period(), 0)),
            Err(_) => {
                let delay = self.schedule.retry_delay(failures);
                Some((delay, failures.saturating_add(1)))
            }
        };
        self.removal = next.map(|(delay, failures)| Removal {
            at: self.clock.now() + delay,
            failures,
        });
    }

    /// While nothing is repaired, no repair is delayed.
    fn end_repair_backoff_if_paused(&mut self) {
        if self.permission != Permission::Active {
            self.repair_backoff = None;
        }
    }

    fn refuse_replies_if_paused(&mut self) {
        if self.permission != Permission::Active {
            for reply in self.replies.drain(..) {
                reply.send(Resync::Paused);
            }
        }
    }

    fn sync(&mut self, reason: Reason) {
        let Some(desired) = self.desired.clone() else {
            return;
        };
        let since = self.clock.wall_time();
        (self.publish)(LoopEvent::Began(RunningSync { reason, since }));
        // The changes from before this process started say nothing about its latency.
        let caught_up: Vec<Family> = self.caught_up().collect();
        let syncs = self.reconciler.sync(&desired, reason, self.clock);
        let repaired: Vec<&RepairedDrift> = syncs
            .iter()
            .filter_map(|r| r.repaired_drift.as_ref())
            .collect();
        let follow_up = self.reconciler.follow_up();
        self.schedule.finish(self.clock.now(), follow_up, &repaired);
        // A check is one of all families, so the slowest decides.
        let families = self.reconciler.families().iter();
        let check_period = families.filter_map(FamilyReconciler::check_period).max();
        self.schedule.set_check_period(check_period);
        self.update_repair_backoff();
        let latencies = syncs
            .iter()
            .filter_map(|sync| self.backlog.settle(sync))
            .filter(|latency| caught_up.contains(&latency.family))
            .collect();
        // A startup sync also reads the kernel back, which is what the request asked for.
        if matches!(reason, Reason::Requested | Reason::Startup) {
            for reply in self.replies.drain(..) {
                reply.send(Resync::Done(syncs.clone()));
            }
        }
        self.publish(Activity::Waiting, syncs, latencies);
    }

    /// Ends the backoff of repairs after a quiet period.
    fn calm(&mut self) {
        self.schedule.calm(self.clock.now());
        if self.repair_backoff.is_some() && self.schedule.held_back().is_none() {
            self.repair_backoff = None;
            self.publish_idle();
        }
    }

    /// Records the backoff of repairs once, when it begins, so that readers are notified of it once.
    fn update_repair_backoff(&mut self) {
        let Some(series) = self.schedule.held_back() else {
            self.repair_backoff = None;
            return;
        };
        self.repair_backoff.get_or_insert_with(|| RepairBackoff {
            since: self.clock.wall_time(),
            repairs: series.repairs,
            within: self.clock.now().saturating_duration_since(series.began),
            actor: series.actor.clone(),
        });
    }

    /// The families in which some sync has succeeded.
    fn caught_up(&self) -> impl Iterator<Item = Family> {
        let families = self.reconciler.families().iter();
        families
            .filter(|family| family.is_programmed())
            .map(FamilyReconciler::family)
    }

    fn publish_idle(&mut self) {
        let activity = match self.permission {
            Permission::Active => Activity::Waiting,
            Permission::Paused => Activity::Paused,
            Permission::Withdrawn => Activity::Withdrawn,
        };
        self.publish(activity, Vec::new(), Vec::new());
    }

    fn publish(
        &mut self,
        activity: Activity,
        finished: Vec<Arc<FamilySync>>,
        latencies: Vec<Latency>,
    ) {
        let report = Report {
            activity,
            families: self.reconciler.status(),
            repair_backoff: self.repair_backoff.clone(),
            finished,
            latencies,
        };
        (self.publish)(LoopEvent::Report(report, self.reconciler.families()));
    }
}

// === impl Reply ===

impl Reply {
    /// A reply that calls `receive` with the outcome, on the thread of the loop.
    pub fn new(receive: impl FnOnce(Resync) + Send + 'static) -> Reply {
        Reply(Box::new(receive))
    }

    fn send(self, resync: Resync) {
        (self.0)(resync);
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

#[cfg(test)]
mod tests;
