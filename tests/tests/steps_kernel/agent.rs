//! What an agent does from its start until all is programmed, step by step.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail, ensure};
use backend::{Backend, Change as _, CommitError, Recovery};
use backend_iptables::Iptables;
use backend_nftables::Nftables;
use dataplane::{Dataplane, Family};
use reconciler::{Domain, Outcome, Reason};
use testkit::{Call, Fate, Faulty};
use tests::system_clock::SystemClock;
use xtables::Variant;

use crate::mechanism::{Mechanism, Steps, smallest_parts, transactions};
use crate::stage::Stage;
use crate::witness::Witness;

/// More attempts than this are no progress.
const ATTEMPTS: usize = 10;

/// How much a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grain {
    /// A transaction.
    Transactions,
    /// What the kernel takes at once when it has no memory for more.
    SmallestParts,
}

/// What happens instead of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Incident {
    /// The agent is killed.
    Kill,
    /// The kernel has no memory (ENOMEM).
    NoMemory,
}

/// How an agent fares.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) grain: Grain,
    /// In the place of the step of this number, once.
    pub(crate) incident: Option<(usize, Incident)>,
    /// Who looks before each step; nobody, where nobody needs to.
    pub(crate) witness: Option<Witness>,
    /// How many steps were begun.
    pub(crate) steps: usize,
    /// Why nobody could look.
    failure: Option<anyhow::Error>,
    is_dead: bool,
}

type Shared = Arc<Mutex<Script>>;

// === impl Script ===

impl Script {
    pub(crate) fn new(grain: Grain, witness: Option<Witness>) -> Script {
        Script {
            grain,
            incident: None,
            witness,
            steps: 0,
            failure: None,
            is_dead: false,
        }
    }

    fn fate(&mut self) -> Fate {
        let moment = format!("before step {}", self.steps);
        if let Some(witness) = &mut self.witness
            && let Err(error) = witness.look(&moment)
        {
            self.failure.get_or_insert(error);
        }
        let number = self.steps;
        self.steps += 1;
        let now = |(at, _): &mut (usize, Incident)| *at == number;
        match self.incident.take_if(now) {
            None => Fate::Pass,
            Some((_, Incident::NoMemory)) => Fate::Refuse(Recovery::Retry),
            Some((_, Incident::Kill)) => {
                self.is_dead = true;
                // With no other does the reconciler not go on at once.
                Fate::Refuse(Recovery::Halt)
            }
        }
    }
}

/// Lets an agent take one family of the node to `wanted` by `mechanism`, and what `other` has left go.
pub(crate) fn run(
    stage: &Stage,
    wanted: &Dataplane,
    (mechanism, other): (Mechanism, Option<Mechanism>),
    family: Family,
    script: Script,
) -> Result<Script> {
    let script = Arc::new(Mutex::new(script));
    match mechanism {
        Mechanism::Nftables => {
            program::<Nftables>(stage, Variant::NfTables, wanted, family, &script)?;
        }
        Mechanism::Iptables(variant) => {
            program::<Iptables>(stage, variant, wanted, family, &script)?;
        }
    }
    if !hold(&script).is_dead {
        match other {
            None => {}
            Some(Mechanism::Nftables) => {
                withdraw::<Nftables>(stage, Variant::NfTables, family, &script)?;
            }
            Some(Mechanism::Iptables(variant)) => {
                withdraw::<Iptables>(stage, variant, family, &script)?;
            }
        }
    }
    let script = Arc::try_unwrap(script).map_err(|_| anyhow::anyhow!("an agent still runs"))?;
    let mut script = script.into_inner().unwrap_or_else(PoisonError::into_inner);
    match script.failure.take() {
        Some(failure) => Err(failure),
        None => Ok(script),
    }
}

/// The reconciler's own rounds, up to the first that succeeds.
fn program<B: Steps>(
    stage: &Stage,
    variant: Variant,
    wanted: &Dataplane,
    family: Family,
    script: &Shared,
) -> Result<()> {
    let mut domain = Domain::new(open::<B>(stage, variant, family, script)?);
    for reason in [Reason::Startup]
        .into_iter()
        .chain([Reason::Retry; ATTEMPTS])
    {
        let round = domain.round(wanted, reason, &SystemClock);
        match &round.outcome {
            Outcome::Failed(failure) if failure.recovery == Recovery::Retry => {}
            Outcome::Failed(_) if hold(script).is_dead => return Ok(()),
            Outcome::Failed(_) | Outcome::Partial => bail!("{round}"),
            Outcome::Committed | Outcome::Unchanged => return Ok(()),
        }
    }
    bail!("it is still not programmed")
}

fn withdraw<B: Steps>(
    stage: &Stage,
    variant: Variant,
    family: Family,
    script: &Shared,
) -> Result<()> {
    let mut backend = open::<B>(stage, variant, family, script)?;
    for _ in 0..ATTEMPTS {
        let found = backend.observe()?;
        let change = backend.diff(&found, &B::Rules::default());
        if change.size().is_empty() {
            return Ok(());
        }
        let result: Result<_, CommitError> = backend.commit(change);
        if hold(script).is_dead {
            return Ok(());
        }
        if let Err(error) = result {
            let passes = matches!(error.recovery, Recovery::Retry | Recovery::Observe);
            ensure!(passes, "{error:?}");
        }
    }
    bail!("it is still there")
}

fn open<B: Steps>(
    stage: &Stage,
    variant: Variant,
    family: Family,
    script: &Shared,
) -> Result<Faulty<B>> {
    let backend = B::open_family(stage, variant, family)?;
    let steps = match hold(script).grain {
        Grain::Transactions => transactions::<B>,
        Grain::SmallestParts => smallest_parts::<B>,
    };
    let script = Arc::clone(script);
    Ok(Faulty::in_steps(backend, steps, move |call| match call {
        Call::Commit { .. } => hold(&script).fate(),
        Call::Observe | Call::Removal => Fate::Pass,
    }))
}

fn hold(script: &Shared) -> std::sync::MutexGuard<'_, Script> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}
