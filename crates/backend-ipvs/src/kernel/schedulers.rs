//! Detects schedulers that the kernel lacks.
//!
//! A Service may ask for any scheduler. If the kernel lacks it, only that Service gets another one:
//! the mode and the connections of all other Services are not affected.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use backend::{CommitError, Effect, Recovery, first_of};
use dataplane::{Dataplane, Mode, Scheduler, ServiceKey};
use netlink::ipvs::{SchedulerName, SchedulerSupport};

use super::recovery::of_servers;
use super::{Connection, Ipvs};
use crate::diff::Change;
use crate::missing_schedulers::{MissingSchedulers, nearest};
use crate::plan::scheduler_name;

/// The last replacement for all others. The mode is not started without it.
const FIRST: Scheduler = Scheduler::RoundRobin;

/// How long after one search for missing schedulers the next one comes. The kernel starts `modprobe`
/// for each.
const SEARCH_PERIOD: Duration = Duration::from_mins(1);

/// How many Services a message names.
const SERVICES_NAMED: usize = 8;

/// The results of the checks in one family so far.
#[derive(Debug, Default)]
pub(super) struct Schedulers {
    support: BTreeMap<SchedulerName, SchedulerSupport>,
    /// When a scheduler was last found to be missing, or searched for again.
    searched: Option<Instant>,
}

/// A scheduler that the kernel lacks.
#[derive(Debug, thiserror::Error)]
#[error("the kernel has no IPVS scheduler {scheduler} (module {})", scheduler.module())]
struct MissingSchedulerError {
    scheduler: SchedulerName,
}

// === impl Schedulers ===

impl Schedulers {
    /// Asks the kernel for those of `needed` that it is not known to have, and for what takes the
    /// place of those that it lacks. Returns the latter.
    fn check<E>(
        &mut self,
        needed: BTreeSet<SchedulerName>,
        now: Instant,
        mut ask: impl FnMut(&SchedulerName) -> Result<SchedulerSupport, E>,
    ) -> Result<Vec<SchedulerName>, E> {
        let mut lacking = Vec::new();
        for name in needed {
            if self.is(SchedulerSupport::Present, &name) {
                continue;
            }
            let support = ask(&name)?;
            self.support.insert(name.clone(), support);
            if support == SchedulerSupport::Present {
                continue;
            }
            self.searched = Some(now);
            let others = scheduler(&name).map_or(&[][..], nearest);
            for other in others.iter().copied().map(scheduler_name) {
                if self.is(SchedulerSupport::Missing, &other) {
                    continue;
                }
                if !self.is(SchedulerSupport::Present, &other) {
                    let support = ask(&other)?;
                    self.support.insert(other.clone(), support);
                }
                if self.is(SchedulerSupport::Present, &other) {
                    break;
                }
            }
            lacking.push(name);
        }
        Ok(lacking)
    }

    /// Asks again for what the kernel lacked, if the last search was long enough ago. Returns whether
    /// the kernel has any of it now. What cannot be asked counts as missing until the next search.
    fn search<E>(
        &mut self,
        now: Instant,
        mut ask: impl FnMut(&SchedulerName) -> Result<SchedulerSupport, E>,
    ) -> bool {
        let is_due = self
            .searched
            .is_some_and(|last| now.saturating_duration_since(last) >= SEARCH_PERIOD);
        if !is_due {
            return false;
        }
        self.searched = Some(now);
        let mut has_more = false;
        for (name, support) in &mut self.support {
            if *support == SchedulerSupport::Missing
                && let Ok(SchedulerSupport::Present) = ask(name)
            {
                *support = SchedulerSupport::Present;
                has_more = true;
            }
        }
        has_more
    }

    /// The replacements for schedulers that Services of `programmed` ask for and the kernel lacks, as
    /// messages. Reads all frontends if the kernel lacks any.
    pub(super) fn replacements(&self, programmed: &Dataplane) -> Vec<String> {
        let missing = self.missing();
        if missing.is_empty() {
            return Vec::new();
        }
        let mut services: BTreeMap<Scheduler, BTreeSet<&ServiceKey>> = BTreeMap::new();
        for (_, claims) in programmed.frontends().iter() {
            let (service, frontend) = claims.winner();
            let asked = frontend.scheduler.nearest_in(Mode::Ipvs);
            if missing.contains(asked) {
                services.entry(asked).or_default().insert(service);
            }
        }
        let messages = services.into_iter().map(|(asked, services)| {
            let noun = match services.len() {
                1 => "Service",
                _ => "Services",
            };
            let services: Vec<&ServiceKey> = services.into_iter().collect();
            let services = first_of(&services, SERVICES_NAMED);
            let (used, asked) = (scheduler_name(missing.used(asked)), scheduler_name(asked));
            let module = asked.module();
            format!(
                "{noun} {services}: {used} in the place of scheduler {asked}, because the kernel has no module \
                 {module}: load it, and within about a minute {asked} is used"
            )
        });
        messages.collect()
    }

    /// Discards the results, so that the kernel is checked again.
    pub(super) fn forget(&mut self) {
        *self = Schedulers::default();
    }

    /// The schedulers that the kernel is known to lack.
    pub(super) fn missing(&self) -> MissingSchedulers {
        let support = self.support.iter();
        let missing = support.filter(|(_, support)| **support == SchedulerSupport::Missing);
        missing.filter_map(|(name, _)| scheduler(name)).collect()
    }

    fn is(&self, support: SchedulerSupport, name: &SchedulerName) -> bool {
        self.support.get(name) == Some(&support)
    }
}

fn scheduler(name: &SchedulerName) -> Option<Scheduler> {
    name.as_str().parse().ok()
}

// === impl Ipvs ===

impl Ipvs {
    /// Checks, before anything is written, whether the kernel has the schedulers that `change`
    /// needs. Loads IPVS and its schedulers if possible.
    pub(super) fn check_schedulers(
        &mut self,
        connection: &mut Connection,
        change: &Change,
    ) -> Result<(), CommitError> {
        let mut needed: BTreeSet<SchedulerName> =
            change.schedulers().into_iter().cloned().collect();
        // Without IPVS nothing may be sent to it, even if there is no Service yet.
        let first = scheduler_name(FIRST);
        needed.extend(change.begins().then(|| first.clone()));
        let (socket, family) = (connection.servers.socket(), self.family);
        let ask = |scheduler: &SchedulerName| socket.check_scheduler(family, scheduler);
        let lacking = self.schedulers.check(needed, Instant::now(), ask);
        let lacking = lacking.map_err(|error| {
            let (recovery, _) = of_servers(&error, true);
            self.uncommitted((recovery, Effect::None), error)
        })?;
        let recovery = match lacking.contains(&first) {
            true => Recovery::Halt,
            // The next rendering replaces them.
            false => Recovery::Observe,
        };
        let named = match recovery {
            Recovery::Halt => Some(first),
            _ => lacking.into_iter().next(),
        };
        let lacking = named.map(|scheduler| MissingSchedulerError { scheduler });
        lacking.map_or(Ok(()), |e| {
            Err(self.uncommitted((recovery, Effect::None), e))
        })
    }

    /// Whether the kernel has schedulers now that it lacked before. Asks it about once a minute.
    pub(super) fn find_schedulers(&mut self, connection: &mut Connection, now: Instant) -> bool {
        let (socket, family) = (connection.servers.socket(), self.family);
        let ask = |scheduler: &SchedulerName| socket.check_scheduler(family, scheduler);
        self.schedulers.search(now, ask)
    }
}

#[cfg(test)]
mod tests;
