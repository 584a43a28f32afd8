//! Runs an agent step by step, from its start until everything is programmed.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};
use backend::{AnyBackend, AnyChange, Recovery, erase};
use backend_iptables::Iptables;
use backend_ipvs::Ipvs;
use backend_nftables::Nftables;
use dataplane::{Config, Dataplane, Family, PartSize};
use reconciler::{FamilyReconciler, Outcome, Reason, SystemClock};
use testkit::{Call, CallOutcome, Faulty};
use xtables::Variant;

use crate::mode::{Mode, Steps, smallest_parts, transactions};
use crate::stage::Stage;
use crate::witness::Witness;

/// The maximum number of attempts before the test fails for lack of progress.
const ATTEMPTS: usize = 10;
/// How much of a switch one sync programs: a few Services of the stage.
const PART: PartSize = PartSize::new(16);

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
    /// The number of syncs after which another part followed.
    pub(crate) parts: usize,
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
            parts: 0,
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

/// Runs an agent that programs one family of the node with `expected` through `mode`, and
/// removes the rules of `other`. A switch goes in parts.
pub(crate) fn run(
    stage: &Stage,
    expected: &Dataplane,
    (mode, other): (Mode, Option<Mode>),
    family: Family,
    script: Script,
) -> Result<Script> {
    let script = Arc::new(Mutex::new(script));
    let first = open(stage, mode, family, &script)?;
    let mut reconciler = match other {
        None => FamilyReconciler::new(first),
        Some(other) => {
            let in_parts = |mode: Mode, backend: Faulty<AnyBackend>| {
                (mode.listed(), backend.with_part_size(PART))
            };
            let others = vec![in_parts(other, open(stage, other, family, &script)?)];
            FamilyReconciler::with_modes(in_parts(mode, first), others)
        }
    };
    program(&mut reconciler, &in_mode(expected, mode), &script)?;
    drop(reconciler);
    let script = Arc::try_unwrap(script).map_err(|_| anyhow::anyhow!("an agent still runs"))?;
    let mut script = script.into_inner().unwrap_or_else(PoisonError::into_inner);
    match script.failure.take() {
        Some(failure) => Err(failure),
        None => Ok(script),
    }
}

fn in_mode(expected: &Dataplane, mode: Mode) -> Dataplane {
    let mut dataplane = expected.clone();
    let config = Config {
        mode: mode.listed(),
        ..Config::clone(expected.config())
    };
    dataplane.set_node(Arc::clone(expected.node()), config.into());
    dataplane
}

/// Runs syncs until the first success.
fn program(
    reconciler: &mut FamilyReconciler<Faulty<AnyBackend>>,
    expected: &Dataplane,
    script: &Shared,
) -> Result<()> {
    let mut reason = Reason::Startup;
    let mut failures = 0;
    while failures < ATTEMPTS {
        let sync = reconciler.sync(expected, reason, &SystemClock);
        match &sync.outcome {
            Outcome::Failed(_) if hold(script).is_dead => return Ok(()),
            Outcome::Failed(failure) if failure.recovery == Recovery::Halt => bail!("{sync}"),
            Outcome::Failed(_) => {
                failures += 1;
                reason = Reason::Retry;
            }
            Outcome::Partial => {
                hold(script).parts += 1;
                reason = Reason::Continued;
            }
            Outcome::Committed | Outcome::Unchanged => return Ok(()),
        }
    }
    bail!("it is still not programmed")
}

fn open(stage: &Stage, mode: Mode, family: Family, script: &Shared) -> Result<Faulty<AnyBackend>> {
    match mode {
        Mode::Nftables => open_as::<Nftables>(stage, Variant::NfTables, family, script),
        Mode::Iptables(variant) => open_as::<Iptables>(stage, variant, family, script),
        Mode::Ipvs => open_as::<Ipvs>(stage, Variant::NfTables, family, script),
    }
}

fn open_as<B: Steps>(
    stage: &Stage,
    variant: Variant,
    family: Family,
    script: &Shared,
) -> Result<Faulty<AnyBackend>> {
    let backend = erase(B::open_family(stage, variant, family)?);
    let steps = match hold(script).grain {
        Grain::Transactions => any_steps::<B, false>,
        Grain::SmallestParts => any_steps::<B, true>,
    };
    let script = Arc::clone(script);
    Ok(Faulty::in_steps(backend, steps, move |call| {
        let mut script = hold(&script);
        match call {
            // Nothing reaches the kernel after the agent was killed.
            _ if script.is_dead => CallOutcome::Refuse(Recovery::Halt),
            Call::Commit { .. } => script.fate(),
            Call::Observe | Call::Removal => CallOutcome::Pass,
        }
    }))
}

/// Divides a change of backend `B` into its transactions, or into the smallest parts.
fn any_steps<B: Steps, const SMALLEST: bool>(change: AnyChange) -> Vec<AnyChange> {
    let Some(change) = change.typed::<B::Change>() else {
        return Vec::new();
    };
    let steps = match SMALLEST {
        true => smallest_parts::<B>(change),
        false => transactions::<B>(change),
    };
    steps.into_iter().map(AnyChange::of).collect()
}

fn hold(script: &Shared) -> std::sync::MutexGuard<'_, Script> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}
