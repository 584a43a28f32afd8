//! Finding the Services that the kernel refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use backend::{Backend, Rendered};
use dataplane::{Dataplane, ServiceKey};

use super::Domain;
use super::attempt::{Attempt, AttemptScope, Refusal, Rest, is_read};
use super::completeness::Completeness;
use super::quarantine::{Kept, at_own_addresses, copy_service, keep_addresses};
use crate::Failure;
use crate::progress::{Phase, Progress};

/// What Services keep in the kernel in place of what is desired.
type Services = BTreeMap<ServiceKey, Kept>;

impl<B: Backend> Domain<B> {
    /// Programs a refused step without the Services that it involves, and holds these back until the
    /// search has found out which of them the kernel refuses. Nothing stays in the kernel of a step
    /// that was carried out in part. No Service is held back if this fails.
    ///
    /// The rest of a large change is not touched: it has parts so that no change waits for all of it.
    pub(super) fn isolate(
        &mut self,
        refusal: Refusal,
        desired: &Dataplane,
        progress: &mut Progress<'_>,
    ) -> Result<Rest, Failure> {
        self.read(progress)?;
        let suspects = self.find_suspects(&refusal, progress);
        let programmed = self.programmed.clone().unwrap_or_default();
        let before = [&refusal.before, &programmed];
        let had = |service: &ServiceKey| before.iter().find_map(|had| had.services().get(service));
        let as_before: Services = suspects
            .iter()
            .map(|service| (service.clone(), had(service).cloned()))
            .collect();
        // Without these Services, what is programmed is complete only if they are served as before.
        let completeness = match self.programmed {
            Some(_) => refusal.completeness,
            None => Completeness::Rebuilding,
        };
        let without = |kept: &Services| {
            let mut rest = refusal.next.clone();
            for (service, rules) in kept {
                copy_service(&mut rest, service, rules.as_ref());
            }
            let entitled = [&refusal.next, &refusal.before, &programmed];
            keep_addresses(&mut rest, &refusal.next, &entitled);
            rest
        };
        let at_own_addresses = self.at_own_addresses(&as_before, desired);
        // It may be the removal of a Service that the kernel refuses, or of one that is held back.
        let mut with_removed = at_own_addresses.clone();
        for (service, had) in &as_before {
            let _ = with_removed
                .entry(service.clone())
                .or_insert_with(|| had.clone());
        }
        // If another program emptied the kernel, the rules that it accepted for them earlier may be
        // refused now.
        let nothing = suspects.into_iter().map(|service| (service, None));
        let mut candidates = vec![
            (at_own_addresses, completeness),
            (with_removed, completeness),
            (as_before, completeness),
            (nothing.collect(), Completeness::Rebuilding),
        ];
        candidates.retain(|(kept, _)| !kept.is_empty());
        candidates.dedup_by(|next, before| next.0 == before.0);
        let mut kept = Services::new();
        for (candidate, completeness) in candidates {
            // An attempt may begin with an answer that leaves it open what the kernel holds: where steps
            // before the refused one were carried out.
            progress.allow_reread();
            let whole = AttemptScope::Whole(completeness);
            if let Attempt::Programmed(_) = self.attempt(&without(&candidate), whole, progress)? {
                kept = candidate;
                break;
            }
        }
        let now = progress.clock.wall_time();
        let error = &refusal.failure.error;
        match self.quarantine.hold(kept, desired, error, now) {
            true => Ok(refusal.rest),
            // The same step would be refused again.
            false => Err(refusal.failure),
        }
    }

    /// Of `as_before`, what Services keep that are still desired, and not held back already, without
    /// addresses that are theirs no more: these may be those of others by the time the search has come
    /// to them.
    fn at_own_addresses(&self, as_before: &Services, desired: &Dataplane) -> Services {
        let at_own = |(service, had): (&ServiceKey, &Kept)| {
            let wanted = desired.services().get(service)?;
            let is_held = self.quarantine.contains(service);
            let had = had.as_ref().map(|had| at_own_addresses(had, wanted));
            (!is_held).then(|| (service.clone(), had))
        };
        as_before.iter().filter_map(at_own).collect()
    }

    /// Tries the Services that are held back, in groups. Each group is added to what the kernel holds,
    /// and divided if it is refused. Returns whether any was admitted.
    ///
    /// Tries one group at least, so that every sync comes nearer to the end, and another one if less
    /// than `longest` has passed since `began`. A failure of another kind ends it as well. In each case
    /// the next sync continues.
    pub(super) fn search(
        &mut self,
        desired: &Dataplane,
        (began, longest): (Instant, Duration),
        progress: &mut Progress<'_>,
    ) -> Result<bool, Failure> {
        let mut has_admitted = false;
        while let Some(observed) = &self.observed
            && let Some(group) = self.quarantine.next_group()
        {
            // A refusal may begin with an answer that leaves it open what the kernel holds.
            progress.allow_reread();
            let (held, completeness) = (observed.dataplane.clone(), self.completeness);
            let mut candidate = held.clone();
            for service in group.services() {
                copy_service(&mut candidate, service, desired.services().get(service));
            }
            let entitled = [Some(desired), Some(&held), self.programmed.as_ref()];
            let entitled: Vec<&Dataplane> = entitled.into_iter().flatten().collect();
            keep_addresses(&mut candidate, &held, &entitled);
            match self.attempt(&candidate, AttemptScope::Part, progress) {
                Ok(Attempt::Programmed(Rest::Nothing | Rest::Suspects | Rest::Retries)) => {
                    has_admitted = true;
                    self.quarantine.admit(&group);
                }
                Ok(Attempt::Programmed(Rest::Another(_))) => {
                    // What filled an emptied kernel is less than they had.
                    if let Some(observed) = &self.observed
                        && self.completeness == completeness
                    {
                        self.quarantine.keep(&group, &observed.dataplane);
                    }
                    self.quarantine.put_back(group);
                }
                Ok(Attempt::Refused(refusal)) => {
                    self.quarantine.refuse(group, &refusal.failure.error);
                }
                Err(failure) => {
                    self.quarantine.postpone(group);
                    return Err(failure);
                }
            }
            // If a part of a refused group may be in the kernel, it must not stay there. If the rules were
            // read back meanwhile, what they implement is not known; if another program has emptied the
            // kernel, the attempt filled a part of it. The next group needs all of `held`.
            let is_known = |observed: &Rendered<B::Rules>| !is_read(&observed.dataplane);
            if self.completeness != completeness || !self.observed.as_ref().is_some_and(is_known) {
                self.attempt(&held, AttemptScope::Whole(completeness), progress)?
                    .programmed()?;
            }
            if progress.clock.now().saturating_duration_since(began) >= longest {
                break;
            }
        }
        Ok(has_admitted)
    }

    /// The Services that a step involves: those that the backend names, those that differ from what
    /// was programmed (a Service that loses something need not appear in the change), and those that
    /// were removed.
    fn find_suspects(
        &self,
        refusal: &Refusal,
        progress: &mut Progress<'_>,
    ) -> BTreeSet<ServiceKey> {
        let Refusal { before, next, .. } = refusal;
        let mut suspects = BTreeSet::new();
        if let Some(observed) = &self.observed {
            let backend = &self.backend;
            let rules = progress.measure(Phase::Render, || backend.render(next, observed));
            let change = progress.measure(Phase::Diff, || backend.diff(&observed.rules, &rules));
            suspects = backend.suspects(&change, next);
        }
        // Rules that were read back do not show what they implement. What is missing in the first part
        // of an emptied kernel comes later.
        let before = match (before.services().is_empty(), refusal.rest) {
            (true, Rest::Nothing) => self.programmed.as_ref(),
            _ => Some(before),
        };
        if let Some(before) = before {
            let differences = before.services().differences(next.services());
            suspects.extend(differences.into_iter().map(|differs| differs.key.clone()));
        }
        suspects
    }
}
