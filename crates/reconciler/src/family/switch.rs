//! Which mode serves, and how one replaces another.

use std::collections::BTreeMap;
use std::time::Instant;

use backend::{Backend, Recovery};
use dataplane::{Dataplane, Mode};
use tracing::warn;

use super::unusable_modes::ErrorChange;
use super::{FamilyReconciler, Following, Goal, Holding, Rest};
use crate::error_chain::error_chain;
use crate::progress::Progress;
use crate::{Failure, Reason};

/// The modes that could not be read, or wait for their next attempt.
type Unread = BTreeMap<Mode, Failure>;

/// How a sync ended in the modes of a family.
pub(super) struct Ended {
    /// In the chosen one, or what failed in the others once that one is complete.
    pub(super) result: Result<Rest, Failure>,
    /// Whether the chosen one was not tried, and the result is that of an earlier sync.
    pub(super) has_waited: bool,
    /// What follows at once in the others. Nothing if it has been programmed in all.
    pub(super) left: Rest,
}

impl<B: Backend> FamilyReconciler<B> {
    /// Programs `desired`, or a part of it, in the chosen mode. The rules of the others follow until
    /// it is complete, and are removed then. If the chosen one has failed, their parts go on at once,
    /// and it waits for its next attempt.
    pub(super) fn program(
        &mut self,
        desired: &Dataplane,
        reason: Reason,
        progress: &mut Progress<'_>,
    ) -> Ended {
        let waiting = self.take_waiting(desired, reason);
        let waits = waiting.as_ref().map(|(mode, _)| *mode);
        let mut unread = self.find_active(waiting, progress);
        let (chosen, result) = loop {
            let chosen = self.choose(desired.config().mode);
            let mode_domain = &mut self.mode_domains[chosen];
            let mode = mode_domain.mode;
            let held = mode_domain.domain.holding();
            let result = match unread.remove(&mode) {
                Some(failure) => Err(failure),
                None => mode_domain
                    .domain
                    .sync(Goal::Serve(desired), reason, progress),
            };
            match result {
                Err(failure)
                    if failure.recovery == Recovery::Halt && self.replacement(mode).is_some() =>
                {
                    self.give_up(chosen, held, failure.error, progress.clock.now());
                }
                result => break (chosen, result),
            }
        };
        // It pursues the desired state itself.
        self.mode_domains[chosen].following = Following::Follows;
        let mode = self.mode_domains[chosen].mode;
        self.chosen = Some(mode);
        self.chosen_failure = result.as_ref().err().cloned();
        if result.is_ok() {
            // It may have been tried for lack of a replacement.
            self.unusable.forget(mode);
            self.abandoned.remove(&mode);
        }
        let goal = match &result {
            Ok(Rest::Nothing | Rest::Retries) => {
                self.hand_over(mode);
                Goal::Nothing
            }
            Ok(Rest::Another(_) | Rest::Suspects) | Err(_) => Goal::Follow(desired),
        };
        let (left, others) = self.sync_others(chosen, goal, reason, unread, progress);
        self.settle(chosen);
        let result = match (result, others) {
            // The new mode serves; the removal of the others is tried again.
            (Ok(Rest::Nothing | Rest::Retries), Err(failure)) => Err(failure),
            // If rules that are about to be replaced cannot follow, the replacement goes on.
            (result, _) => result,
        };
        Ended {
            result,
            has_waited: waits == Some(mode),
            left,
        }
    }

    /// Takes the failure of the chosen mode, if this sync is only to go on with what others have left, or to
    /// check their rules.
    fn take_waiting(&mut self, desired: &Dataplane, reason: Reason) -> Option<(Mode, Failure)> {
        let failure = self.chosen_failure.take()?;
        let chosen = &self.mode_domains[self.choose(desired.config().mode)];
        let concerns_others = match reason {
            Reason::Continued => true,
            Reason::Drift => !chosen.domain.is_notified(),
            _ => false,
        };
        let waits = concerns_others && self.chosen == Some(chosen.mode);
        waits.then_some((chosen.mode, failure))
    }

    /// Reads the rules of all modes while it is not known which one serves. Returns those that could
    /// not be read, and the one that is `waiting`. If several hold rules, a switch was interrupted:
    /// which one is complete is not known. Nor is it while one is given up, of which the kernel may have
    /// rules.
    fn find_active(
        &mut self,
        waiting: Option<(Mode, Failure)>,
        progress: &mut Progress<'_>,
    ) -> Unread {
        let mut unread = Unread::from_iter(waiting);
        if self.active.is_some() {
            return unread;
        }
        let mut holding = Vec::new();
        for mode_domain in &mut self.mode_domains {
            if self.unusable.contains(mode_domain.mode) {
                continue;
            }
            if !unread.contains_key(&mode_domain.mode)
                && let Err(failure) = mode_domain.domain.read(progress)
            {
                unread.insert(mode_domain.mode, failure);
            }
            match mode_domain.domain.holding() {
                Holding::Nothing => {}
                Holding::Rules | Holding::Unknown => holding.push(mode_domain.mode),
            }
        }
        if let [only] = holding[..]
            && unread.is_empty()
            && self.unusable.is_empty()
        {
            self.active = Some(only);
        }
        unread
    }

    /// Makes the rules of all modes but the chosen one pursue `goal`. Returns what is left in any of
    /// them, and the failures.
    fn sync_others(
        &mut self,
        chosen: usize,
        goal: Goal<'_>,
        reason: Reason,
        mut unread: Unread,
        progress: &mut Progress<'_>,
    ) -> (Rest, Result<(), Failure>) {
        let (mut left, mut synced) = (Rest::Nothing, Ok(()));
        for position in 0..self.mode_domains.len() {
            let mode_domain = &mut self.mode_domains[position];
            let has_work = match (mode_domain.domain.holding(), goal, &mode_domain.following) {
                (Holding::Nothing, ..) => reason.checks_kernel(),
                (_, Goal::Follow(_), Following::Failed(_)) => reason != Reason::Continued,
                _ => true,
            };
            if position == chosen || self.unusable.contains(mode_domain.mode) || !has_work {
                continue;
            }
            let held = mode_domain.domain.holding();
            let result = match unread.remove(&mode_domain.mode) {
                Some(failure) => Err(failure),
                None => mode_domain.domain.sync(goal, reason, progress),
            };
            let following = match (&result, goal) {
                (Err(failure), Goal::Follow(_)) if failure.recovery != Recovery::Halt => {
                    Following::Failed(failure.error.clone())
                }
                _ => Following::Follows,
            };
            self.record(position, following);
            match result {
                Ok(Rest::Nothing) => {}
                Ok(rest) => left = rest,
                Err(failure) if failure.recovery == Recovery::Halt => {
                    self.give_up(position, held, failure.error, progress.clock.now());
                }
                Err(failure) => {
                    synced = Err(match synced {
                        Ok(()) => failure,
                        Err(before) => Failure::both(before, failure),
                    });
                }
            }
        }
        (left, synced)
    }

    /// Records whether the mode at `position` follows the desired state, and logs a new failure.
    fn record(&mut self, position: usize, following: Following) {
        let mode_domain = &mut self.mode_domains[position];
        if let Following::Failed(error) = &following
            && mode_domain.following != following
        {
            let (family, mode) = (self.family, mode_domain.mode);
            warn!(%family, %error, "rules of mode {mode} do not follow changes");
        }
        mode_domain.following = following;
    }

    /// Releases what idle modes need only to read and write. Records what the family implements,
    /// unless a switch is under way: connections to Services that are not in the new mode yet must
    /// not count as stale.
    fn settle(&mut self, chosen: usize) {
        // Those that were given up while they served still do.
        let mut is_alone = self.abandoned.is_empty();
        for (position, mode_domain) in self.mode_domains.iter_mut().enumerate() {
            if position == chosen || self.unusable.contains(mode_domain.mode) {
                continue;
            }
            match mode_domain.domain.holding() {
                Holding::Nothing => mode_domain.domain.release(),
                Holding::Unknown | Holding::Rules => is_alone = false,
            }
        }
        let chosen = &self.mode_domains[chosen];
        self.is_switching = !is_alone;
        if is_alone {
            self.programmed = chosen.domain.programmed().cloned();
            let holds_rules = chosen.domain.holding() == Holding::Rules;
            if self.active.is_none() && self.unusable.is_empty() && holds_rules {
                self.active = Some(chosen.mode);
            }
        }
    }

    /// The position of the mode that programs what the profile asks for: `desired`, or a replacement
    /// if that one cannot be used.
    fn choose(&self, desired: Mode) -> usize {
        let position = self.position(Some(desired));
        let mode_domain = &self.mode_domains[position];
        // If the kernel lacks this family in the tables that other programs use, there are no rules
        // to coexist with. The first mode then serves the family, or fails to.
        if !mode_domain.domain.backend().is_offered() {
            return 0;
        }
        match self.is_usable(mode_domain.mode) {
            true => position,
            false => self
                .replacement(mode_domain.mode)
                .map_or(position, |mode| self.position(Some(mode))),
        }
    }

    /// The mode that replaces an unusable one: the first, or the one that serves already. Others are
    /// not started unless the user asks for them.
    fn replacement(&self, unusable: Mode) -> Option<Mode> {
        let first = self.mode_domains[0].mode;
        let modes = self.mode_domains.iter().map(|mode_domain| mode_domain.mode);
        let mut others = modes.filter(|other| *other != unusable && self.is_usable(*other));
        others.find(|other| *other == first || self.active == Some(*other))
    }

    /// Stops using a mode for some time. Its rules, of which `held` is what was known, stay if they
    /// serve or may serve: until the replacement is complete, there are no others.
    fn give_up(&mut self, position: usize, held: Holding, error: String, now: Instant) {
        self.mark_unusable(position, error, now);
        let mode = self.mode_domains[position].mode;
        match (self.active, held) {
            (Some(active), _) if active == mode => drop(self.abandoned.insert(mode)),
            (Some(_), _) | (None, Holding::Nothing) => self.withdraw(position),
            (None, Holding::Rules) => drop(self.abandoned.insert(mode)),
            (None, Holding::Unknown) => {}
        }
    }

    fn mark_unusable(&mut self, position: usize, error: String, now: Instant) {
        let mode_domain = &mut self.mode_domains[position];
        mode_domain.domain.forget_observed();
        mode_domain.following = Following::Follows;
        let (family, mode) = (self.family, mode_domain.mode);
        if self.unusable.add(mode, error.clone(), now) == ErrorChange::New {
            warn!(%family, %error, "mode {mode} cannot be used on this node");
        }
    }

    /// Removes the rules of an unusable mode, so that they do not redirect anything once they are no
    /// longer updated. If the removal fails, it is tried again later.
    fn withdraw(&mut self, position: usize) {
        let mode_domain = &mut self.mode_domains[position];
        if let Err(error) = mode_domain.domain.commit_removal() {
            let (family, mode) = (self.family, mode_domain.mode);
            self.outgoing.insert(mode);
            let error = error_chain(&error);
            warn!(%family, %error, "rules of mode {mode} are still in the kernel");
        }
    }

    /// Tries modes again that have been given up for long enough, once their rules are removed.
    pub(super) fn try_again(&mut self, now: Instant) {
        for mode in self.unusable.overdue(now) {
            let position = self.position(Some(mode));
            if self.outgoing.contains(&mode) {
                if let Err(error) = self.mode_domains[position].domain.commit_removal() {
                    self.mark_unusable(position, error_chain(&error), now);
                    continue;
                }
                self.outgoing.remove(&mode);
            }
            self.unusable.remove(mode);
        }
    }

    /// Makes `mode` the one that serves: it is complete. Removes the rules of those that were
    /// given up while they served, because no sync does.
    fn hand_over(&mut self, mode: Mode) {
        self.active = Some(mode);
        self.outgoing.remove(&mode);
        for abandoned in std::mem::take(&mut self.abandoned) {
            if !self.is_usable(abandoned) {
                self.withdraw(self.position(Some(abandoned)));
            }
        }
    }
}
