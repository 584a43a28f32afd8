//! One address family: a domain for each mode, of which one serves.

mod conclude;
mod switch;
mod unusable_modes;

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use backend::{
    Backend, CommitError, Connections, ExternalChange, Leftover, Receipt, Recovery, Rendered,
};
use dataplane::{Dataplane, Family, Mode};

use crate::domain::{Domain, Goal, Holding, Rest};
use crate::progress::Progress;
use crate::status::{Failing, FamilyStatus, Pace};
use crate::{Clock, DriftByProgram, Failure, FamilySync, Reason, RecentSyncs, RepairedDrift};
use unusable_modes::UnusableModes;

/// The share of a processor for checks of the kernel that nothing has asked for: one fiftieth.
const CHECK_SHARE: u32 = 50;
/// The shortest time between two of them.
const SHORTEST_CHECK_PERIOD: Duration = Duration::from_secs(1);

/// Keeps one address family at the desired state: a domain for each mode, of which one serves.
/// Families share no state, so one that fails leaves the other in service.
///
/// A switch makes before it breaks. The domain of the new mode is filled in parts, like a start.
/// Meanwhile the domain that serves follows the desired state. Once the new one is complete, the
/// rules of the others are removed.
#[derive(Debug)]
pub struct FamilyReconciler<B: Backend> {
    family: Family,
    /// Never empty. The first replaces another one that cannot be used.
    mode_domains: Vec<ModeDomain<B>>,
    /// The mode that serves, or `None` while none is known to.
    active: Option<Mode>,
    /// The mode that the last sync programmed: the desired one or its replacement.
    chosen: Option<Mode>,
    /// Why that mode failed in the last sync. It waits for its next attempt, others go on meanwhile.
    chosen_failure: Option<Failure>,
    unusable: UnusableModes,
    /// The modes that were given up while they served, or may have. Their rules go once the
    /// replacement is complete.
    abandoned: BTreeSet<Mode>,
    /// The modes that were given up while the kernel had rules of them that could not be removed.
    /// They are neither read nor tried again before these are removed: they are leftovers of this
    /// process, not an external change.
    outgoing: BTreeSet<Mode>,
    /// What the kernel was last known to implement completely. Keeps its value during a switch.
    programmed: Option<Dataplane>,
    /// Whether a switch was under way after the last sync.
    is_switching: bool,
    failing: Option<Failing>,
    /// When the first part of a large change was begun. `Some` while the last sync programmed only
    /// a part, if only in a mode that is being replaced, or is to be followed by attempts at what was
    /// refused before.
    unfinished: Option<Instant>,
    programmed_since: Option<SystemTime>,
    last_receipt: Option<SystemTime>,
    last_success: Option<SystemTime>,
    pace: Pace,
    drifts: u64,
    last_repaired_drift: Option<RepairedDrift>,
    drift_by_program: Arc<[DriftByProgram]>,
    count: u64,
    syncs: RecentSyncs,
    /// What the last withdrawal has left, if no sync followed.
    leftover: Leftover,
}

/// One mode of the family.
#[derive(Debug)]
struct ModeDomain<B: Backend> {
    mode: Mode,
    domain: Domain<B>,
    following: Following,
}

/// Whether the rules of a mode that is being replaced follow the desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Following {
    Follows,
    /// The last attempt failed with this error. The next part of the new mode does not wait for
    /// another one.
    Failed(String),
}

// === impl FamilyReconciler ===

impl<B: Backend> FamilyReconciler<B> {
    /// A family with one mode and no known kernel state.
    pub fn new(backend: B) -> FamilyReconciler<B> {
        FamilyReconciler::with_modes((Mode::default(), backend), Vec::new())
    }

    /// A family with a domain for each of these modes, and no known kernel state. `first` replaces
    /// another one that cannot be used.
    pub fn with_modes(first: (Mode, B), others: Vec<(Mode, B)>) -> FamilyReconciler<B> {
        let family = first.1.family();
        let mode_domain = |(mode, backend)| ModeDomain {
            mode,
            domain: Domain::new(backend),
            following: Following::Follows,
        };
        FamilyReconciler {
            family,
            mode_domains: iter::once(first).chain(others).map(mode_domain).collect(),
            active: None,
            chosen: None,
            chosen_failure: None,
            unusable: UnusableModes::default(),
            abandoned: BTreeSet::new(),
            outgoing: BTreeSet::new(),
            programmed: None,
            is_switching: false,
            failing: None,
            unfinished: None,
            programmed_since: None,
            last_receipt: None,
            last_success: None,
            pace: Pace::default(),
            drifts: 0,
            last_repaired_drift: None,
            drift_by_program: Arc::default(),
            count: 0,
            syncs: RecentSyncs::default(),
            leftover: Leftover::Nothing,
        }
    }

    /// The address family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The mode that serves, or `None` while none is known to.
    pub fn active_mode(&self) -> Option<Mode> {
        self.active
    }

    /// The mode that the last sync programmed: the desired one or its replacement.
    pub fn chosen_mode(&self) -> Option<Mode> {
        self.chosen
    }

    /// The modes that cannot be used on this node, each with the error and its causes.
    pub fn unusable_modes(&self) -> BTreeMap<Mode, String> {
        self.unusable.errors()
    }

    /// The unusable modes of which the kernel still has rules.
    pub fn outgoing_modes(&self) -> &BTreeSet<Mode> {
        &self.outgoing
    }

    /// The modes whose rules do not follow the desired state while another mode replaces them, each
    /// with the error and its causes.
    pub fn stalled_modes(&self) -> BTreeMap<Mode, String> {
        let mode_domains = self.mode_domains.iter();
        let failed = mode_domains.filter_map(|mode_domain| match &mode_domain.following {
            Following::Follows => None,
            Following::Failed(error) => Some((mode_domain.mode, error.clone())),
        });
        let unusable = self.unusable.errors().into_iter();
        let abandoned = unusable.filter(|(mode, _)| self.abandoned.contains(mode));
        failed.chain(abandoned).collect()
    }

    /// The backend that serves, or the one that is to.
    pub fn backend(&self) -> &B {
        let mode = self.active.or(self.chosen);
        self.mode_domains[self.position(mode)].domain.backend()
    }

    /// How this node limits the mode that serves, see [`Backend::limitations`].
    pub fn limitations(&self) -> Vec<String> {
        let nothing = Dataplane::default();
        let programmed = self.programmed.as_ref().unwrap_or(&nothing);
        self.backend().limitations(programmed)
    }

    /// The connections that the kernel counts for the mode that serves; `None` if it counts none.
    pub fn connections(&self) -> Option<Connections> {
        let serves = &self.mode_domains[self.position(self.active)].domain;
        let rules = &serves.observed()?.rules;
        serves.backend().connections(rules)
    }

    /// What the kernel is last known to hold for the mode that the last sync programmed; `None` if
    /// that is not known.
    pub fn observed(&self) -> Option<&Rendered<B::Rules>> {
        self.mode_domains[self.position(self.chosen)]
            .domain
            .observed()
    }

    /// What the kernel is last known to hold for each mode; `None` if that is not known of all that
    /// can be used.
    pub fn rules_by_mode(&self) -> Option<Vec<(Mode, &B::Rules)>> {
        let usable = self.mode_domains.iter().filter(|m| self.is_usable(m.mode));
        let rules = usable.map(|mode_domain| {
            let observed = mode_domain.domain.observed()?;
            Some((mode_domain.mode, &observed.rules))
        });
        rules.collect()
    }

    /// Whether any sync has succeeded since the process started.
    pub fn is_programmed(&self) -> bool {
        self.programmed_since.is_some()
    }

    /// The failed syncs since the last successful sync; `None` if there are none.
    pub fn failing(&self) -> Option<&Failing> {
        self.failing.as_ref()
    }

    /// Whether another sync is to follow at once: the last one programmed a part of a large change, or
    /// has left some of the refused Services to try again.
    pub fn is_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// The failed syncs, if another attempt is to follow after a while: no parts follow at once, or only
    /// those of a mode that serves while its replacement fails.
    pub(crate) fn awaits_retry(&self) -> Option<&Failing> {
        let goes_on = self.is_unfinished() && self.chosen_failure.is_none();
        let failing = self.failing.as_ref().filter(|_| !goes_on);
        failing.filter(|failing| failing.recovery != Recovery::Halt)
    }

    /// After how long the kernel is checked again, although nothing was announced: where a mode
    /// notices changes only by a check, as often as costs [`CHECK_SHARE`] of a processor.
    pub fn check_period(&self) -> Option<Duration> {
        let usable = self.mode_domains.iter().filter(|m| self.is_usable(m.mode));
        let took = usable
            .filter_map(|mode_domain| mode_domain.domain.check_took())
            .max();
        took.map(|took| took.saturating_mul(CHECK_SHARE).max(SHORTEST_CHECK_PERIOD))
    }

    /// Records that another program has changed, or may have changed, Signpost's rules.
    pub fn disturb(&mut self, external_change: &ExternalChange, now: Instant) {
        if !external_change.families.contains(&self.family) {
            return;
        }
        for mode_domain in &mut self.mode_domains {
            if !self.unusable.contains(mode_domain.mode) {
                mode_domain
                    .domain
                    .notify(external_change.actor.as_ref(), now);
            }
        }
    }

    /// Whether a sync for `reason` has work in this family. `Retry` has work only after a failure.
    /// After [`Recovery::Halt`] only a periodic check or a resync request tries again. What that leaves
    /// unfinished goes on.
    pub fn answers(&self, reason: Reason) -> bool {
        let recovery = self.failing.as_ref().map(|failing| failing.recovery);
        let mut mode_domains = self.mode_domains.iter();
        match (reason, recovery) {
            (reason, _) if reason.is_periodic() => true,
            (Reason::Continued, _) | (_, Some(Recovery::Halt)) => self.is_unfinished(),
            (Reason::Retry, None) => false,
            (Reason::Drift, _) => {
                self.check_period().is_some()
                    || mode_domains.any(|mode_domain| mode_domain.domain.is_notified())
            }
            _ => true,
        }
    }

    /// Programs `desired`, or as much of it as the kernel accepts. Never fails: errors are in the
    /// returned sync and in [`status`](FamilyReconciler::status). If the change is larger than the
    /// backend's [`part_size`](Backend::part_size), or if the mode changes, the sync programs a
    /// part of it: [`Outcome::Partial`](crate::Outcome::Partial).
    ///
    /// The cost is proportional to what changed since the last sync. Services that the kernel
    /// refuses are found by bisection and held back: about `2 k log n` commits for `k` refused
    /// among `n` changed in one part. A search that takes longer than a part goes on in the next sync.
    pub fn sync(
        &mut self,
        desired: &Dataplane,
        reason: Reason,
        clock: &dyn Clock,
    ) -> Arc<FamilySync> {
        let mut progress = Progress::new(reason, clock);
        self.leftover = Leftover::Nothing;
        if reason.checks_kernel() {
            self.try_again(clock.now());
        }
        let ended = self.program(desired, reason, &mut progress);
        self.conclude(ended, &progress)
    }

    /// Removes all of Signpost's rules from the kernel, in every mode that can be used or still has
    /// some. A failure in one does not prevent the others from being tried. Whether this succeeds or
    /// fails, the next sync reads the rules back. A failure also appears in `status`.
    pub fn commit_removal(&mut self, clock: &dyn Clock) -> Result<Receipt, CommitError> {
        let receipts = self.empty(Domain::commit_removal, Result::is_err, clock)?;
        Ok(Receipt {
            transactions: receipts.iter().map(|receipt| receipt.transactions).sum(),
        })
    }

    /// The same for a node that another proxy serves, which established connections outlive.
    pub fn commit_withdrawal(&mut self, clock: &dyn Clock) -> Result<Leftover, CommitError> {
        let is_left = |one: &Result<_, _>| !matches!(one, Ok(Leftover::Nothing));
        let leftover = self.empty(Domain::commit_withdrawal, is_left, clock)?;
        self.leftover = leftover.into_iter().max().unwrap_or(Leftover::Nothing);
        Ok(self.leftover)
    }

    /// Calls `remove` for the modes. One that cannot be used and of which something `is_left` stays
    /// outgoing, so that the next call tries it again.
    fn empty<T>(
        &mut self,
        remove: impl Fn(&mut Domain<B>) -> Result<T, CommitError>,
        is_left: impl Fn(&Result<T, CommitError>) -> bool,
        clock: &dyn Clock,
    ) -> Result<Vec<T>, CommitError> {
        let mut removed = Ok(Vec::new());
        let mut outgoing = BTreeSet::new();
        for mode_domain in &mut self.mode_domains {
            let mode = mode_domain.mode;
            let has_rules = self.outgoing.contains(&mode) || self.abandoned.contains(&mode);
            if self.unusable.contains(mode) && !has_rules {
                continue;
            }
            let one = remove(&mut mode_domain.domain);
            if self.unusable.contains(mode) && is_left(&one) {
                outgoing.insert(mode);
            }
            mode_domain.domain.release();
            mode_domain.following = Following::Follows;
            removed = match (removed, one) {
                (Ok(mut all), Ok(one)) => {
                    all.push(one);
                    Ok(all)
                }
                (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            };
        }
        self.active = None;
        self.outgoing = outgoing;
        self.abandoned.clear();
        self.is_switching = false;
        self.unfinished = None;
        self.chosen_failure = None;
        match &removed {
            Ok(_) => {
                self.programmed = None;
                self.programmed_since = None;
                self.failing = None;
            }
            Err(error) => self.fail(Failure::from(error), clock.wall_time(), 0),
        }
        removed
    }

    /// The status of this family.
    pub fn status(&self) -> FamilyStatus {
        let chosen = &self.mode_domains[self.position(self.chosen)].domain;
        FamilyStatus {
            family: self.family,
            programmed_since: self.programmed_since,
            last_receipt: self.last_receipt,
            last_success: self.last_success,
            failing: self.failing.clone(),
            pace: self.pace,
            drifts: self.drifts,
            last_repaired_drift: self.last_repaired_drift.clone(),
            drift_by_program: Arc::clone(&self.drift_by_program),
            quarantined: chosen.quarantined(),
            searched: chosen.searched(),
            unsupported_fields: Arc::clone(chosen.unsupported_fields()),
            programmed: self.programmed.clone(),
            is_switching: self.is_switching,
            syncs: self.syncs.clone(),
            leftover: self.leftover,
        }
    }

    /// The position of `mode`, or of the first one.
    fn position(&self, mode: Option<Mode>) -> usize {
        let mut modes = self
            .mode_domains
            .iter()
            .map(|mode_domain| Some(mode_domain.mode));
        modes
            .position(|mode_domain| mode_domain == mode)
            .unwrap_or(0)
    }

    fn is_usable(&self, mode: Mode) -> bool {
        !self.unusable.contains(mode)
    }
}

#[cfg(test)]
mod tests;
