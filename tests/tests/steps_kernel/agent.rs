//! Runs an agent step by step, from its start until everything is programmed.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail, ensure};
use backend::{Backend, Change as _, CommitError, Recovery};
use backend_iptables::Iptables;
use backend_nftables::Nftables;
use dataplane::{Dataplane, Family};
use reconciler::{Domain, Outcome, Reason};
use testkit::{Call, CallOutcome, Faulty};
use tests::system_clock::SystemClock;
use xtables::Variant;

use crate::mechanism::{Mechanism, Steps, smallest_parts, transactions};
use crate::stage::Stage;
use crate::witness::Witness;

/// The maximum number of attempts before the test fails for lack of progress.
const ATTEMPTS: usize = 10;

/// The size of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grain {
    /// One transaction.
    Transactions,
    /// The smallest part into which a change is divided if the kernel lacks memory.
    SmallestParts,
}

/// An incident in place of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Incident {
    /// The agent is killed.
    Kill,
    /// The kernel has no memory (ENOMEM).
    NoMemory,
}

/// The script of an agent's run.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) grain: Grain,
    /// The step to replace, and the incident.
    pub(crate) incident: Option<(usize, Incident)>,
    /// The witness that checks before each step, if needed.
    pub(crate) witness: Option<Witness>,
    /// The number of steps begun.
    pub(crate) steps: usize,
    /// Why a check was not possible.
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

    fn fate(&mut self) -> CallOutcome {
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
            None => CallOutcome::Pass,
            Some((_, Incident::NoMemory)) => CallOutcome::Refuse(Recovery::Retry),
            Some((_, Incident::Kill)) => {
                self.is_dead = true;
                // All other recoveries let the reconciler retry at once.
                CallOutcome::Refuse(Recovery::Halt)
            }
        }
    }
}

/// Runs an agent that programs one family of the node with `expected` through `mechanism`, and
/// removes the rules of `other`.
pub(crate) fn run(
    stage: &Stage,
    expected: &Dataplane,
    (mechanism, other): (Mechanism, Option<Mechanism>),
    family: Family,
    script: Script,
) -> Result<Script> {
    let script = Arc::new(Mutex::new(script));
    match mechanism {
        Mechanism::Nftables => {
            program::<Nftables>(stage, Variant::NfTables, expected, family, &script)?;
        }
        Mechanism::Iptables(variant) => {
            program::<Iptables>(stage, variant, expected, family, &script)?;
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

/// Runs syncs of the reconciler until the first success.
fn program<B: Steps>(
    stage: &Stage,
    variant: Variant,
    expected: &Dataplane,
    family: Family,
    script: &Shared,
) -> Result<()> {
    let mut domain = Domain::new(open::<B>(stage, variant, family, script)?);
    for reason in [Reason::Startup]
        .into_iter()
        .chain([Reason::Retry; ATTEMPTS])
    {
        let sync = domain.sync(expected, reason, &SystemClock);
        match &sync.outcome {
            Outcome::Failed(failure) if failure.recovery == Recovery::Retry => {}
            Outcome::Failed(_) if hold(script).is_dead => return Ok(()),
            Outcome::Failed(_) | Outcome::Partial => bail!("{sync}"),
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
        Call::Observe | Call::Removal => CallOutcome::Pass,
    }))
}

fn hold(script: &Shared) -> std::sync::MutexGuard<'_, Script> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}
