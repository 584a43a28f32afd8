//! Combines the mechanisms of one family into one backend.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backend::{
    AnyBackend, AnyChange, AnyRules, Backend, CommitError, Drift, Effect, FrontendContext,
    ObserveError, Receipt, Recovery, Rendered, UnsupportedField,
};
use dataplane::{ChunkSize, Config, Dataplane, Family, Mechanism, ServiceKey};
use runtime::chain;
use tracing::warn;

use super::on_demand::{Tally, lock};
use super::unusable_mechanisms::{Novelty, UnusableMechanisms};
use super::{Change, MechanismState, RulesByMechanism};

/// The mechanisms of one family in one network namespace.
#[derive(Debug)]
pub struct Mechanisms {
    family: Family,
    /// All mechanisms. The first replaces another one that cannot be used.
    members: Vec<Member>,
    active_mode: Option<Mechanism>,
    /// The desired mechanism of the last change.
    desired: Option<Mechanism>,
    unusable_mechanisms: UnusableMechanisms,
    /// A mechanism that was given up while it had rules of Signpost that could not be removed. It
    /// is neither read nor tried again before they are removed: these rules are leftovers of this
    /// agent, not an external change.
    outgoing: Option<Mechanism>,
    /// Additional iptables figures for the status.
    tally: Arc<Mutex<Tally>>,
}

#[derive(Debug)]
struct Member {
    mechanism: Mechanism,
    backend: AnyBackend,
}

// === impl Mechanisms ===

impl Mechanisms {
    /// Combines `members`, of which there is at least one.
    pub(super) fn new(
        family: Family,
        members: Vec<(Mechanism, AnyBackend)>,
        tally: Arc<Mutex<Tally>>,
    ) -> Mechanisms {
        let members = members.into_iter();
        Mechanisms {
            family,
            members: members
                .map(|(mechanism, backend)| Member { mechanism, backend })
                .collect(),
            active_mode: None,
            desired: None,
            unusable_mechanisms: UnusableMechanisms::default(),
            outgoing: None,
            tally,
        }
    }

    /// Returns the state of this family.
    pub fn standing(&self) -> MechanismState {
        let tally = lock(&self.tally).clone();
        MechanismState {
            active_mode: self.active_mode,
            desired: self.desired,
            variant: tally.variant,
            longest_lock_wait: tally.longest_lock_wait,
            lock: tally.lock,
            impossible: self.unusable_mechanisms.errors(),
            outgoing: self.outgoing,
            missing_settings: self.active_mode.map_or_else(Vec::new, |active_mode| {
                self.member(active_mode).backend.missing_settings()
            }),
            written: tally.written,
        }
    }

    fn is_possible(&self, mechanism: Mechanism) -> bool {
        !self.unusable_mechanisms.contains(mechanism)
    }

    /// Returns the member for `mechanism`, or the first.
    fn member(&self, mechanism: Mechanism) -> &Member {
        let mut members = self.members.iter();
        let member = members.find(|member| member.mechanism == mechanism);
        member.unwrap_or(&self.members[0])
    }

    fn backend_mut(&mut self, mechanism: Mechanism) -> Option<&mut AnyBackend> {
        let mut members = self.members.iter_mut();
        let member = members.find(|member| member.mechanism == mechanism);
        member.map(|member| &mut member.backend)
    }

    /// Returns the member that programs mode `desired`. If that one cannot be used, returns another
    /// one that can.
    fn choose(&self, desired: Mechanism) -> &Member {
        let member = self.member(desired);
        // If the kernel lacks this family in the tables that other programs use, there are no rules
        // to coexist with. The first mechanism then serves the family, or fails to.
        if !member.backend.is_offered() {
            return &self.members[0];
        }
        match self.is_possible(member.mechanism) {
            true => member,
            false => {
                let replacement = self.replacement(member.mechanism);
                self.member(replacement.unwrap_or(member.mechanism))
            }
        }
    }

    /// Returns the mechanism that replaces an unusable one: the first, or the one that is active
    /// already. Others are not started unless the user asks for them.
    fn replacement(&self, desired: Mechanism) -> Option<Mechanism> {
        let first = self.members[0].mechanism;
        let others = self.members.iter().map(|member| member.mechanism);
        let mut others = others.filter(|other| *other != desired && self.is_possible(*other));
        others.find(|other| *other == first || self.active_mode == Some(*other))
    }

    /// Stops using `mechanism` for some time.
    fn give_up(&mut self, mechanism: Mechanism, error: &(dyn Error + 'static)) {
        let error = chain(error).to_string();
        if self.unusable_mechanisms.add(mechanism, error.clone()) == Novelty::New {
            let family = self.family;
            warn!(%family, %error, "mode {mechanism} cannot be used on this node");
        }
    }

    /// Tries mechanisms again that have been given up for long enough, once their leftover rules
    /// are removed.
    fn try_again_some_time(&mut self) {
        for mechanism in self.unusable_mechanisms.overdue() {
            if self.outgoing == Some(mechanism) {
                if let Err(error) = self.commit_withdrawal(mechanism) {
                    self.give_up(mechanism, &error);
                    continue;
                }
                self.outgoing = None;
            }
            self.unusable_mechanisms.remove(mechanism);
        }
    }

    /// Opens and reads another mechanism after those in `failed` could not be read. Returns whether
    /// one is usable; its rules are then in `held`.
    fn take_over(
        &mut self,
        failed: &[Mechanism],
        held: &mut RulesByMechanism,
    ) -> Result<bool, ObserveError> {
        let family = self.family;
        let unusable_mechanisms = &self.unusable_mechanisms;
        let usable = self.members.iter_mut().filter(|member| {
            !failed.contains(&member.mechanism) && !unusable_mechanisms.contains(member.mechanism)
        });
        for member in usable {
            match member.backend.open() {
                Ok(()) => {
                    held.set(member.mechanism, member.backend.observe()?);
                    return Ok(true);
                }
                Err(error) => {
                    warn!(%family, error = %chain(&error), "unable to use another mode instead");
                    if error.recovery != Recovery::Halt {
                        return Err(ObserveError {
                            recovery: Recovery::Observe,
                            ..error
                        });
                    }
                }
            }
        }
        Ok(false)
    }

    /// Makes `active_mode` the active mechanism: all desired rules are programmed there. Removes the
    /// rules of the previous one if it was given up, because the diff does not cover it then.
    fn hand_over(&mut self, active_mode: Option<Mechanism>) {
        self.outgoing
            .take_if(|outgoing| Some(*outgoing) == active_mode);
        let before = std::mem::replace(&mut self.active_mode, active_mode);
        if let Some(before) = before
            && Some(before) != active_mode
            && !self.is_possible(before)
        {
            self.withdraw(before);
        }
    }

    /// Removes the rules of an unusable mechanism, so that they do not redirect anything once they
    /// are no longer updated. If the removal fails, it is tried again later.
    fn withdraw(&mut self, mechanism: Mechanism) {
        if let Err(error) = self.commit_withdrawal(mechanism) {
            self.outgoing = Some(mechanism);
            let (family, error) = (self.family, chain(&error));
            warn!(%family, %error, "rules of mode {mechanism} are still in the kernel");
        }
    }

    fn commit_withdrawal(&mut self, mechanism: Mechanism) -> Result<(), CommitError> {
        let backend = self.backend_mut(mechanism);
        backend.map_or(Ok(()), |backend| backend.commit_removal().map(drop))
    }

    /// Returns the error of the whole change for the error of a part, after `transactions`
    /// transactions of the change have taken effect.
    fn judge(
        &mut self,
        error: CommitError,
        desired: Option<Mechanism>,
        transactions: usize,
    ) -> CommitError {
        let mut recovery = error.recovery;
        if let Some(desired) = desired
            && recovery == Recovery::Halt
            && self.replacement(desired).is_some()
        {
            self.give_up(desired, &error);
            // Until the replacement is active, the previously active rules are the only ones: keep
            // them.
            if self.active_mode != Some(desired) {
                self.withdraw(desired);
            }
            recovery = Recovery::Observe;
        }
        if transactions == 0 {
            return CommitError { recovery, ..error };
        }
        CommitError {
            recovery: match recovery {
                Recovery::Retry | Recovery::Isolate => Recovery::Observe,
                recovery => recovery,
            },
            effect: Effect::Possible,
            ..error
        }
    }
}

impl Backend for Mechanisms {
    type Rules = RulesByMechanism;
    type Change = Change;

    fn family(&self) -> Family {
        self.family
    }

    fn chunk_size(&self, config: &Config) -> ChunkSize {
        self.choose(config.mechanism).backend.chunk_size(config)
    }

    fn rebuild_size(&self, config: &Config) -> ChunkSize {
        self.choose(config.mechanism).backend.rebuild_size(config)
    }

    fn longest_part(&self, config: &Config) -> Duration {
        self.choose(config.mechanism).backend.longest_part(config)
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<RulesByMechanism>) -> RulesByMechanism {
        let Member { mechanism, backend } = self.choose(desired.config().mechanism);
        let from = rendered_from(from, *mechanism);
        RulesByMechanism::only(*mechanism, backend.render(desired, &from))
    }

    fn diff(&self, observed: &RulesByMechanism, desired: &RulesByMechanism) -> Change {
        let part = |Member { mechanism, backend }: &Member| {
            let (observed, desired) = (observed.of(*mechanism), desired.of(*mechanism));
            (*mechanism, backend.diff(&observed, &desired))
        };
        Change::to(
            desired.active_mode(),
            self.members.iter().map(part).collect(),
        )
    }

    fn observe(&mut self) -> Result<RulesByMechanism, ObserveError> {
        self.try_again_some_time();
        let mut held = RulesByMechanism::default();
        let mut failures = BTreeMap::new();
        for Member { mechanism, backend } in &mut self.members {
            if self.unusable_mechanisms.contains(*mechanism) {
                continue;
            }
            match backend.observe() {
                Ok(rules) => held.set(*mechanism, rules),
                Err(error) => drop(failures.insert(*mechanism, error)),
            }
        }
        let failed: Vec<Mechanism> = failures.keys().copied().collect();
        for (mechanism, error) in failures {
            if error.recovery != Recovery::Halt || !self.take_over(&failed, &mut held)? {
                return Err(error);
            }
            self.give_up(mechanism, &error);
        }
        self.active_mode = self.active_mode.or(held.active_mode());
        Ok(held)
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        self.try_again_some_time();
        let mut drift = Drift::None;
        // Checks every mechanism, because mode ipvs removes expired leftovers in its check.
        for Member { mechanism, backend } in &mut self.members {
            if !self.unusable_mechanisms.contains(*mechanism)
                && backend.observe_drift()? == Drift::Possible
            {
                drift = Drift::Possible;
            }
        }
        Ok(drift)
    }

    fn commit(&mut self, change: Change) -> Result<Receipt, CommitError> {
        let desired = change.desired;
        self.desired = desired;
        let mut transactions = 0;
        for (mechanism, part) in change.parts {
            let of_wanted = desired.filter(|desired| *desired == mechanism);
            if of_wanted.is_none() {
                // The remaining parts only remove rules: all desired rules are programmed.
                self.hand_over(desired.or(self.active_mode));
            }
            let Some(backend) = self.backend_mut(mechanism) else {
                continue;
            };
            match backend.commit(part) {
                Ok(receipt) => transactions += receipt.transactions,
                Err(error) => return Err(self.judge(error, of_wanted, transactions)),
            }
        }
        self.hand_over(desired);
        if let Some(desired) = desired {
            self.unusable_mechanisms.forget(desired);
        }
        for Member { mechanism, backend } in &mut self.members {
            // A mechanism that was given up is tried again soon.
            if Some(*mechanism) != desired && !self.unusable_mechanisms.contains(*mechanism) {
                backend.release();
            }
        }
        Ok(Receipt { transactions })
    }

    /// Removes Signpost's rules from every mechanism that is usable or still has some. A failure in
    /// one mechanism does not prevent the others from being tried.
    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        let mut results = Vec::new();
        for Member { mechanism, backend } in &mut self.members {
            if !self.unusable_mechanisms.contains(*mechanism) || self.outgoing == Some(*mechanism) {
                results.push(backend.commit_removal());
                backend.release();
            }
        }
        (self.active_mode, self.outgoing) = (None, None);
        let mut transactions = 0;
        for result in results {
            transactions += result?.transactions;
        }
        Ok(Receipt { transactions })
    }

    fn suspects(&self, change: &Change, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        let suspects = change.parts.iter().map(|(mechanism, part)| {
            let part: &AnyChange = part;
            self.member(*mechanism).backend.suspects(part, desired)
        });
        suspects.flatten().collect()
    }

    fn unsupported_fields(&self, asked: FrontendContext<'_>) -> Vec<UnsupportedField> {
        self.choose(asked.config.mechanism)
            .backend
            .unsupported_fields(asked)
    }
}

/// Returns what the rules of `mechanism` were rendered from: nothing while it has no rules.
fn rendered_from(from: &Rendered<RulesByMechanism>, mechanism: Mechanism) -> Rendered<AnyRules> {
    let rules = from.rules.of(mechanism);
    let dataplane = match rules.is_nothing() {
        true => Dataplane::default(),
        false => from.dataplane.clone(),
    };
    Rendered { dataplane, rules }
}
