//! One family's mechanisms as one backend.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use backend::{
    Asked, Backend, CommitError, Drift, Effect, ObserveError, Receipt, Recovery, Rendered,
    Shortcoming,
};
use backend_iptables::{Rules, recovery};
use backend_nftables::{Nftables, Table};
use dataplane::{ChunkSize, Config, Dataplane, Family, Mechanism, ServiceKey};
use runtime::chain;
use thiserror::Error;
use tracing::warn;

use super::given_up::{GivenUp, Novelty};
use super::on_demand::{Offer, OnDemand};
use super::variants::Variants;
use super::{Change, Held, Part, Standing};

/// One family of one network namespace.
#[derive(Debug)]
pub(crate) struct Mechanisms {
    nftables: Nftables,
    pub(super) iptables: OnDemand,
    carrier: Option<Mechanism>,
    /// Which one the last change was to lead to.
    wanted: Option<Mechanism>,
    given_up: GivenUp,
    /// One that was given up with rules of ours in it that could not be removed. It is not read, and
    /// not tried again, before they are: what we have left there is nobody else's doing.
    outgoing: Option<Mechanism>,
}

/// Why nothing was written to iptables yet.
#[derive(Debug, Error)]
#[error("what the tables of iptables hold was not read yet")]
struct Unread;

// === impl Mechanisms ===

impl Mechanisms {
    /// Both families of this thread's network namespace, of which nf_tables is open. Looks whether
    /// there is anything of ours in the tables of iptables.
    pub(crate) fn open(nftables: [Nftables; 2], variants: Variants) -> [Mechanisms; 2] {
        let variants = Arc::new(variants);
        let is_suspected = !variants.observe_suspected().is_empty();
        nftables.map(|nftables| {
            let mut family = Mechanisms::closed(nftables, Arc::clone(&variants));
            if is_suspected {
                family.iptables.suspect();
                family.iptables.open_suspected();
            }
            family
        })
    }

    /// A family of which only nf_tables is looked at, as far as that is open.
    pub(super) fn closed(nftables: Nftables, variants: Arc<Variants>) -> Mechanisms {
        Mechanisms {
            iptables: OnDemand::new(nftables.family(), variants),
            nftables,
            carrier: None,
            wanted: None,
            given_up: GivenUp::default(),
            outgoing: None,
        }
    }

    /// How it stands.
    pub(crate) fn standing(&self) -> Standing {
        let tally = self.iptables.tally().clone();
        Standing {
            carrier: self.carrier,
            wanted: self.wanted,
            variant: tally.variant,
            longest_lock_wait: tally.longest_lock_wait,
            lock: tally.lock,
            impossible: self.given_up.errors(),
            outgoing: self.outgoing,
            written: tally.written,
        }
    }

    fn is_possible(&self, mechanism: Mechanism) -> bool {
        !self.given_up.contains(mechanism)
    }

    /// The mechanism that is to carry out what `wanted` is wanted to: where that cannot be used, the
    /// other one, if it can.
    fn choose(&self, wanted: Mechanism) -> Mechanism {
        // Where the kernel lacks the family as others have it, they have nothing to live beside, and
        // it is served, or not, as in mode nftables.
        if wanted == Mechanism::Iptables && self.iptables.offer == Offer::Lacking {
            return Mechanism::Nftables;
        }
        match self.is_possible(wanted) {
            true => wanted,
            false => self.replacement(wanted).unwrap_or(wanted),
        }
    }

    /// The mechanism to go on with in the place of one that turns out impossible. Tables of iptables
    /// are not begun to be written where nobody asked for that.
    fn replacement(&self, wanted: Mechanism) -> Option<Mechanism> {
        let other = match wanted {
            Mechanism::Nftables => Mechanism::Iptables,
            Mechanism::Iptables => Mechanism::Nftables,
        };
        let serves = other == Mechanism::Nftables || self.carrier == Some(other);
        (serves && self.is_possible(other)).then_some(other)
    }

    /// Does without `mechanism` for some time.
    fn give_up(&mut self, mechanism: Mechanism, error: &(dyn Error + 'static)) {
        let error = chain(error).to_string();
        if self.given_up.add(mechanism, error.clone()) == Novelty::New {
            let family = self.family();
            warn!(%family, %error, "mode {mechanism} cannot be used here");
        }
    }

    /// What was impossible long ago may have become possible, once what it has left is gone.
    fn try_again_some_time(&mut self) {
        for mechanism in self.given_up.overdue() {
            if self.outgoing == Some(mechanism) {
                if let Err(error) = self.commit_withdrawal(mechanism) {
                    self.give_up(mechanism, &error);
                    continue;
                }
                self.outgoing = None;
            }
            self.given_up.remove(mechanism);
        }
    }

    /// What nf_tables holds; nothing where it cannot be used.
    fn observe_nftables(&mut self) -> Result<Table, ObserveError> {
        match self.is_possible(Mechanism::Nftables) {
            true => self.nftables.observe(),
            false => Ok(Table::default()),
        }
    }

    /// What the used variant of iptables holds; nothing where it cannot be used, or is not open.
    fn observe_iptables(&mut self) -> Result<Rules, ObserveError> {
        match self.is_possible(Mechanism::Iptables) {
            true => self.iptables.observe(),
            false => Ok(Rules::default()),
        }
    }

    fn commit_part(&mut self, part: Part) -> Result<Receipt, CommitError> {
        match part {
            Part::Nftables(change) => self.nftables.commit(change),
            Part::Iptables(change) => self.iptables.commit(change),
            Part::Stray(change) => self.iptables.commit_stray(change),
        }
    }

    /// From now on all that is wanted is there by `carrier`. The one before it is withdrawn, where it
    /// is not among what is diffed because it was given up.
    fn hand_over(&mut self, carrier: Option<Mechanism>) {
        self.outgoing.take_if(|outgoing| Some(*outgoing) == carrier);
        let before = std::mem::replace(&mut self.carrier, carrier);
        if let Some(before) = before
            && Some(before) != carrier
            && !self.is_possible(before)
        {
            self.withdraw(before);
        }
    }

    /// What there is of a mechanism that turned out impossible is not to redirect anything once it is
    /// not kept up any more. Where it cannot be removed, either, that is tried again later.
    fn withdraw(&mut self, mechanism: Mechanism) {
        if let Err(error) = self.commit_withdrawal(mechanism) {
            self.outgoing = Some(mechanism);
            let (family, error) = (self.family(), chain(&error));
            warn!(%family, %error, "rules of mode {mechanism} are still there");
        }
    }

    fn commit_withdrawal(&mut self, mechanism: Mechanism) -> Result<(), CommitError> {
        match mechanism {
            Mechanism::Nftables => self.nftables.commit_removal().map(drop),
            Mechanism::Iptables => self.iptables.commit_withdrawal(),
        }
    }

    /// What an error of a part means for the whole, of which so many transactions have taken effect.
    fn judge(
        &mut self,
        error: CommitError,
        wanted: Option<Mechanism>,
        transactions: usize,
    ) -> CommitError {
        let mut recovery = error.recovery;
        if let Some(wanted) = wanted
            && recovery == Recovery::Halt
            && self.replacement(wanted).is_some()
        {
            self.give_up(wanted, &error);
            // Until the other carries, what has carried is all there is.
            if self.carrier != Some(wanted) {
                self.withdraw(wanted);
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

    fn failed(
        &self,
        recovery: Recovery,
        effect: Effect,
        source: impl Error + Send + Sync + 'static,
    ) -> CommitError {
        CommitError {
            family: self.family(),
            recovery,
            effect,
            source: source.into(),
        }
    }
}

impl Backend for Mechanisms {
    type Rules = Held;
    type Change = Change;

    fn family(&self) -> Family {
        self.nftables.family()
    }

    fn chunk_size(&self, config: &Config) -> ChunkSize {
        match self.choose(config.mechanism) {
            Mechanism::Nftables => self.nftables.chunk_size(config),
            Mechanism::Iptables => self.iptables.pure().chunk_size(config),
        }
    }

    fn longest_part(&self, config: &Config) -> Duration {
        match self.choose(config.mechanism) {
            Mechanism::Nftables => self.nftables.longest_part(config),
            Mechanism::Iptables => self.iptables.pure().longest_part(config),
        }
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<Held>) -> Held {
        match self.choose(desired.config().mechanism) {
            Mechanism::Nftables => {
                let from = rendered_from(from, &from.rules.nftables);
                Held {
                    nftables: self.nftables.render(desired, &from),
                    ..Held::default()
                }
            }
            Mechanism::Iptables => {
                let from = rendered_from(from, &from.rules.iptables);
                Held {
                    iptables: self.iptables.pure().render(desired, &from),
                    ..Held::default()
                }
            }
        }
    }

    fn diff(&self, believed: &Held, wanted: &Held) -> Change {
        let parts = vec![
            Part::Nftables(self.nftables.diff(&believed.nftables, &wanted.nftables)),
            Part::Iptables(
                self.iptables
                    .pure()
                    .diff(&believed.iptables, &wanted.iptables),
            ),
            Part::Stray(self.iptables.pure().diff(&believed.stray, &wanted.stray)),
        ];
        Change::to(wanted.carrier(), parts)
    }

    fn observe(&mut self) -> Result<Held, ObserveError> {
        self.try_again_some_time();
        self.iptables.open_suspected();
        let nftables = self.observe_nftables();
        let is_impossible = |error: &ObserveError| error.recovery == Recovery::Halt;
        if nftables.as_ref().is_err_and(is_impossible)
            && let Err(error) = self.iptables.open()
        {
            warn!(error = %chain(&error), "neither mechanism can be used");
            if recovery(error.fault) != Recovery::Halt {
                return Err(ObserveError {
                    family: self.family(),
                    recovery: Recovery::Observe,
                    source: error.into(),
                });
            }
        }
        let iptables = self.observe_iptables();
        let (nftables, iptables) = match (nftables, iptables) {
            (Err(error), Ok(rules)) if is_impossible(&error) && self.iptables.is_open() => {
                self.give_up(Mechanism::Nftables, &error);
                (Table::default(), rules)
            }
            (Ok(table), Err(error))
                if is_impossible(&error) && self.replacement(Mechanism::Iptables).is_some() =>
            {
                self.give_up(Mechanism::Iptables, &error);
                (table, Rules::default())
            }
            (nftables, iptables) => (nftables?, iptables?),
        };
        let held = Held {
            nftables,
            iptables,
            stray: self.iptables.observe_stray(),
        };
        self.carrier = self.carrier.or(held.carrier());
        Ok(held)
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        self.try_again_some_time();
        if self.iptables.owes_a_look() {
            return Ok(Drift::Possible);
        }
        if self.is_possible(Mechanism::Nftables)
            && self.nftables.observe_drift()? == Drift::Possible
        {
            return Ok(Drift::Possible);
        }
        match self.is_possible(Mechanism::Iptables) {
            true => self.iptables.observe_drift(),
            false => Ok(Drift::None),
        }
    }

    fn commit(&mut self, change: Change) -> Result<Receipt, CommitError> {
        let wanted = change.wanted;
        self.wanted = wanted;
        let is_iptables = |part: &Part| part.mechanism() == Some(Mechanism::Iptables);
        if !self.iptables.is_open() && change.parts.iter().any(is_iptables) {
            // What the rules look like depends on the variant, and what is there is not known.
            let error = match self.iptables.open() {
                Ok(()) => self.failed(Recovery::Observe, Effect::Possible, Unread),
                Err(error) => self.failed(recovery(error.fault), Effect::None, error),
            };
            return Err(self.judge(error, wanted, 0));
        }
        let mut transactions = 0;
        for part in change.parts {
            let of_wanted = wanted.filter(|wanted| part.mechanism() == Some(*wanted));
            if of_wanted.is_none() {
                // What is left is removal: what is wanted is all there.
                self.hand_over(wanted.or(self.carrier));
            }
            match self.commit_part(part) {
                Ok(receipt) => transactions += receipt.transactions,
                Err(error) => return Err(self.judge(error, of_wanted, transactions)),
            }
        }
        self.hand_over(wanted);
        if let Some(wanted) = wanted {
            self.given_up.forget(wanted);
        }
        match wanted {
            Some(Mechanism::Iptables) => self.iptables.close_stray(),
            // It will be tried again soon, and opening it takes a look more than a round has.
            _ if !self.is_possible(Mechanism::Iptables) => {}
            // Nor is what may be in the other variant forgotten.
            _ if self.iptables.owes_a_look() => {}
            Some(Mechanism::Nftables) | None => self.iptables.close(),
        }
        Ok(Receipt { transactions })
    }

    /// Out of everything: nf_tables, and whichever variant of iptables holds something of ours. One
    /// that fails keeps no other from being tried.
    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        let mut results = Vec::new();
        if self.is_possible(Mechanism::Nftables) {
            results.push(self.nftables.commit_removal());
        }
        results.extend(self.iptables.commit_removal());
        (self.carrier, self.outgoing) = (None, None);
        let mut transactions = 0;
        for result in results {
            transactions += result?.transactions;
        }
        Ok(Receipt { transactions })
    }

    fn suspects(&self, change: &Change, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        let suspects = change.parts.iter().map(|part| match part {
            Part::Nftables(change) => self.nftables.suspects(change, desired),
            Part::Iptables(change) | Part::Stray(change) => {
                self.iptables.pure().suspects(change, desired)
            }
        });
        suspects.flatten().collect()
    }

    fn shortcomings(&self, asked: Asked<'_>) -> Vec<Shortcoming> {
        match self.choose(asked.config.mechanism) {
            Mechanism::Nftables => self.nftables.shortcomings(asked),
            Mechanism::Iptables => self.iptables.pure().shortcomings(asked),
        }
    }
}

/// What `rules` of one mechanism were rendered from: nothing, as long as the other carries.
fn rendered_from<R: Clone + PartialEq + Default>(from: &Rendered<Held>, rules: &R) -> Rendered<R> {
    let dataplane = match *rules == R::default() {
        true => Dataplane::default(),
        false => from.dataplane.clone(),
    };
    Rendered {
        dataplane,
        rules: rules.clone(),
    }
}
