//! Finding the Services that the kernel refuses.

use std::collections::BTreeSet;

use backend::{Backend, Recovery};
use dataplane::{Dataplane, ServiceKey};

use super::Domain;
use super::quarantine::{copy_service, hold_back, keep_addresses};
use crate::Failure;
use crate::progress::{Phase, Progress};

/// The number of groups of Services that one sync tries separately. Enough to find 20 among
/// 10,000. A kernel that refuses more Services refuses them for a shared reason, and each refusal
/// can make later transactions slower.
const GROUPS_PER_ROUND: usize = 512;

/// A search for the Services that the kernel refuses.
struct Search<'a> {
    desired: &'a Dataplane,
    /// What the kernel has accepted so far.
    admitted: Dataplane,
    groups: usize,
}

impl<B: Backend> Domain<B> {
    /// Holds back every Service that is part of the refused change to `admitted`, commits the rest,
    /// and adds the Services again by bisection until each refused Service is isolated.
    ///
    /// A failure of another kind ends the search. The Services found so far stay in quarantine, and
    /// a later sync continues with the rest.
    pub(super) fn isolate(
        &mut self,
        desired: &Dataplane,
        mut admitted: Dataplane,
        refusal: Failure,
        progress: &mut Progress<'_>,
    ) -> Result<(), Failure> {
        self.read(progress)?;
        let suspects = self.find_suspects(&admitted, progress);
        hold_back(&mut admitted, &suspects, self.programmed.as_ref());
        keep_addresses(&mut admitted, desired, self.programmed.as_ref());
        match self.attempt_whole(&admitted, progress) {
            Err(failure) if failure.recovery == Recovery::Isolate => {
                // If another program emptied the kernel, the rules that it accepted for them
                // earlier may be refused now: program all other Services without them.
                hold_back(&mut admitted, &suspects, None);
                keep_addresses(&mut admitted, desired, self.programmed.as_ref());
                self.attempt_whole(&admitted, progress)?;
            }
            result => result?,
        }
        let mut search = Search {
            desired,
            admitted,
            groups: 0,
        };
        let suspects: Vec<ServiceKey> = suspects
            .into_iter()
            .filter(|service| !self.quarantine.contains(service))
            .collect();
        self.add_again(&mut search, &suspects, Some(refusal.error), progress)
    }

    /// The Services that the change to `admitted` involves: those that the backend names, those that
    /// differ from what was programmed (a Service that loses something need not appear in the
    /// change), and those that were removed.
    fn find_suspects(
        &self,
        admitted: &Dataplane,
        progress: &mut Progress<'_>,
    ) -> BTreeSet<ServiceKey> {
        let mut suspects = BTreeSet::new();
        if let Some(observed) = &self.observed {
            let backend = &self.backend;
            let rules = progress.measure(Phase::Render, || backend.render(admitted, observed));
            let change = progress.measure(Phase::Diff, || backend.diff(&observed.rules, &rules));
            suspects = backend.suspects(&change, admitted);
        }
        if let Some(programmed) = &self.programmed {
            let differences = programmed.services().differences(admitted.services());
            suspects.extend(
                differences
                    .into_iter()
                    .map(|difference| difference.key.clone()),
            );
        }
        suspects
    }

    /// Adds `group` to the desired state. `refused` is the kernel's error if it is already known to
    /// refuse the whole group.
    fn add_again(
        &mut self,
        search: &mut Search<'_>,
        group: &[ServiceKey],
        refused: Option<String>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Failure> {
        if group.is_empty() {
            return Ok(());
        }
        let error = match refused {
            Some(error) => error,
            None => {
                let mut admitted = search.admitted.clone();
                for service in group {
                    copy_service(&mut admitted, service, Some(search.desired));
                }
                keep_addresses(&mut admitted, search.desired, self.programmed.as_ref());
                search.groups += 1;
                match self.attempt_whole(&admitted, progress) {
                    Ok(()) => {
                        search.admitted = admitted;
                        return Ok(());
                    }
                    Err(failure) if failure.recovery == Recovery::Isolate => failure.error,
                    Err(failure) => return Err(failure),
                }
            }
        };
        if group.len() == 1 || search.groups >= GROUPS_PER_ROUND {
            let now = progress.clock.wall_time();
            for service in group {
                self.quarantine.hold(service, search.desired, &error, now);
            }
            return Ok(());
        }
        let (first, second) = group.split_at(group.len() / 2);
        let known = self.quarantine.len();
        self.add_again(search, first, None, progress)?;
        // The kernel refused nothing in the first half, so the second half made the whole fail.
        let refused = (self.quarantine.len() == known).then_some(error);
        self.add_again(search, second, refused, progress)
    }
}
