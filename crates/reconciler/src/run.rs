//! The loop: from commands to rounds to reports.

mod inbox;
mod mailbox;
mod report;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::{Backend, Disturbance};
use dataplane::{Dataplane, Family};

use crate::latency::{Backlog, Latency};
use crate::urgency::urgency;
use crate::{
    Clock, Contest, Damage, Domain, Periods, Reason, Reconciler, Round, Schedule, Stamps, Urgency,
};
pub use inbox::{Inbox, Received};
pub use mailbox::{Mailbox, Orders, mailbox};
pub use report::{Activity, News, Report, UnderWay};

/// How many commands are taken in once a round is due before it starts. More than can have piled up
/// during any round; without an end to it, a source that never falls silent would put it off.
const TAKEN_BEFORE_ROUND: usize = 4096;

/// What the loop is told.
#[derive(Debug)]
pub enum Command {
    /// This is wanted from now on. Of several, the last counts; the stamps of all of them do.
    Desired(Desired),
    /// Go by these from now on.
    Settings(Settings),
    /// The kernel may have been changed by somebody else.
    Drifted(Disturbance),
    /// Look at the kernel and program everything anew where it differs, whatever is believed.
    Resync(Reply),
    /// Return, leaving the kernel as it is.
    Stop,
}

/// What is wanted of the kernel.
#[derive(Debug, Clone)]
pub struct Desired {
    /// All of it.
    pub dataplane: Dataplane,
    /// When what is new in it came about.
    pub stamps: Stamps,
}

/// What a profile says about the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How often to write, how often to look.
    pub periods: Periods,
    /// Whether to do so at all.
    pub permission: Permission,
}

/// Whether the kernel may be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// It is kept up with what is wanted.
    Active,
    /// It keeps what it has: nothing is written, nothing is removed, drift is not repaired. What
    /// is wanted is remembered, and programmed once this ends.
    Paused,
    /// It holds nothing of ours: what is there is removed, and nothing is written. What is wanted is
    /// remembered, and programmed once this ends.
    Withdrawn,
}

/// Where the outcome of a resync goes.
pub struct Reply(Box<dyn FnOnce(Resync) + Send>);

/// The outcome of a resync.
#[derive(Debug, Clone)]
pub enum Resync {
    /// The round in each family.
    Done(Vec<Arc<Round>>),
    /// None: the loop is paused, or nothing of ours is to be in the kernel.
    Paused,
}

/// Keeps the kernel at what is wanted until it is told to stop or nobody is left to tell it
/// anything. Nothing is written before the first [`Command::Desired`].
///
/// `publish` is told that a round begins, and given a report after every round, when the loop is paused
/// or resumed, and when repairs are no longer held back; it delays rounds for as long as it takes.
pub fn run<B: Backend>(
    reconciler: &mut Reconciler<B>,
    settings: Settings,
    inbox: &mut impl Inbox,
    clock: &dyn Clock,
    publish: impl FnMut(News<'_, B>),
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
        contest: None,
        removal: None,
    };
    state.permit(settings.permission, settings.periods);
    while let Next::Round(reason) = state.take_commands(inbox) {
        state.round(reason);
    }
}

/// What the loop knows beside what its domains know.
struct Loop<'a, B: Backend, P> {
    reconciler: &'a mut Reconciler<B>,
    clock: &'a dyn Clock,
    publish: P,
    schedule: Schedule,
    permission: Permission,
    desired: Option<Dataplane>,
    backlog: Backlog,
    replies: Vec<Reply>,
    contest: Option<Contest>,
    /// The next attempt to remove everything, after one that failed.
    removal: Option<Removal>,
}

/// An attempt to remove everything that is due.
#[derive(Debug, Clone, Copy)]
struct Removal {
    at: Instant,
    /// How many have failed before.
    failures: u32,
}

/// What to do after taking commands.
enum Next {
    Round(Reason),
    End,
}

// === impl Loop ===

impl<B: Backend, P: FnMut(News<'_, B>)> Loop<'_, B, P> {
    /// Takes commands until a round is due, and whatever else is there by then.
    fn take_commands(&mut self, inbox: &mut impl Inbox) -> Next {
        let mut taken_late = 0;
        loop {
            let wait = self.wait();
            let late = wait == Some(Duration::ZERO);
            taken_late += usize::from(late);
            let received = if late && taken_late > TAKEN_BEFORE_ROUND {
                Received::Nothing
            } else {
                inbox.receive(wait)
            };
            match received {
                Received::Command(Command::Stop) | Received::Closed => return Next::End,
                Received::Command(command) => self.take(command),
                Received::Nothing => {
                    self.remove_if_due();
                    if let Some(reason) = self.start() {
                        return Next::Round(reason);
                    }
                    self.calm();
                }
            }
        }
    }

    /// How long until the next round; `None` while there is none.
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
                self.backlog.add(self.reconciler.families(), &stamps);
                self.desired = Some(dataplane);
            }
            Command::Settings(Settings {
                periods,
                permission,
            }) => {
                self.schedule.set_periods(periods);
                self.permit(permission, periods);
            }
            Command::Drifted(disturbance) => {
                self.reconciler.disturb(&disturbance, now);
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
        self.end_contest_if_paused();
        self.refuse_replies_if_paused();
        if permission == Permission::Withdrawn {
            // What follows is as after a start: the kernel is looked at before it is written to.
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

    /// Removes everything that is ours, after so many attempts that have failed.
    fn remove(&mut self, failures: u32) {
        let removed = self.reconciler.commit_removal(self.clock);
        self.removal = removed.is_err().then(|| Removal {
            at: self.clock.now() + self.schedule.retry_delay(failures),
            failures: failures.saturating_add(1),
        });
    }

    /// While nothing is repaired, no repair is held back.
    fn end_contest_if_paused(&mut self) {
        if self.permission != Permission::Active {
            self.contest = None;
        }
    }

    fn refuse_replies_if_paused(&mut self) {
        if self.permission != Permission::Active {
            for reply in self.replies.drain(..) {
                reply.send(Resync::Paused);
            }
        }
    }

    fn round(&mut self, reason: Reason) {
        let Some(desired) = self.desired.clone() else {
            return;
        };
        let since = self.clock.wall_time();
        (self.publish)(News::Began(UnderWay { reason, since }));
        // What was there before this process came says nothing about how fast it is.
        let caught_up: Vec<Family> = self.caught_up().collect();
        let rounds = self.reconciler.round(&desired, reason, self.clock);
        let repaired: Vec<&Damage> = rounds.iter().filter_map(|r| r.damage.as_ref()).collect();
        let sequel = self.reconciler.sequel();
        self.schedule.finish(self.clock.now(), sequel, &repaired);
        self.judge_contest();
        let latencies = rounds
            .iter()
            .filter_map(|round| self.backlog.settle(round))
            .filter(|latency| caught_up.contains(&latency.family))
            .collect();
        // A startup round looks at the kernel, too, which is all that was asked for.
        if matches!(reason, Reason::Requested | Reason::Startup) {
            for reply in self.replies.drain(..) {
                reply.send(Resync::Done(rounds.clone()));
            }
        }
        self.publish(Activity::Waiting, rounds, latencies);
    }

    /// Ends a contest that nobody has gone on with for some time.
    fn calm(&mut self) {
        self.schedule.calm(self.clock.now());
        if self.contest.is_some() && self.schedule.held_back().is_none() {
            self.contest = None;
            self.publish_idle();
        }
    }

    /// What is said of a contest stays as it was when it began: who reads it is told once.
    fn judge_contest(&mut self) {
        let Some(streak) = self.schedule.held_back() else {
            self.contest = None;
            return;
        };
        self.contest.get_or_insert_with(|| Contest {
            since: self.clock.wall_time(),
            repairs: streak.repairs,
            within: self.clock.now().saturating_duration_since(streak.began),
            culprit: streak.culprit.clone(),
        });
    }

    /// The families in which some round has succeeded.
    fn caught_up(&self) -> impl Iterator<Item = Family> {
        let domains = self.reconciler.domains().iter();
        domains
            .filter(|domain| domain.is_programmed())
            .map(Domain::family)
    }

    fn publish_idle(&mut self) {
        let activity = match self.permission {
            Permission::Active => Activity::Waiting,
            Permission::Paused => Activity::Paused,
            Permission::Withdrawn => Activity::Withdrawn,
        };
        self.publish(activity, Vec::new(), Vec::new());
    }

    fn publish(&mut self, activity: Activity, finished: Vec<Arc<Round>>, latencies: Vec<Latency>) {
        let report = Report {
            activity,
            families: self.reconciler.status(),
            contest: self.contest.clone(),
            finished,
            latencies,
        };
        (self.publish)(News::Report(report, self.reconciler.domains()));
    }
}

// === impl Reply ===

impl Reply {
    /// Calls `receive` with the outcome, on the thread of the loop.
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
