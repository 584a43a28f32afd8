//! Traces one packet: where it should go, and where the rules send it. Pure: the caller reads the
//! rules.

mod packet;
mod text;

use std::collections::BTreeSet;

use backend::{Event, PacketPath};
use dataplane::{Choice, Dataplane, Family, Verdict};
use modes::{DetachedModes, RulesByMode};
use serde::Serialize;
use thiserror::Error;

use crate::explain::{Kernel, active_mode};

pub use packet::{PacketSpec, ParsePacketError, ResolvePacketError};

/// Where the rules send a packet, and whether that is the desired destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    /// The packet.
    pub packet: String,
    /// How its origin was derived, if it was not given.
    pub assumed_origin: Option<String>,
    /// Its destination according to the desired state.
    pub desired: String,
    /// Where the simulated rules come from.
    pub rules_of: RulesOf,
    /// Its destination according to these rules.
    pub actual: String,
    /// Whether both destinations are the same.
    pub agree: bool,
    /// The possible paths. Paths that differ only in a random number are one.
    pub paths: Vec<TracedPath>,
}

/// The origin of the simulated rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RulesOf {
    /// Rules that were read from the kernel.
    Kernel,
    /// Rules that would be programmed.
    Rendering,
}

/// One path, or several that differ only in a random number and its consequences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TracedPath {
    /// Where it ends.
    pub outcome: String,
    /// The chains, elements and rules on the path.
    pub steps: Vec<PathStep>,
}

/// One step on a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PathStep {
    /// Its kind.
    pub kind: StepKind,
    /// Its text; one text per random number if they differ.
    pub texts: Vec<String>,
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum StepKind {
    /// A base chain, at a hook.
    Base,
    /// A chain that another chain jumps to.
    Chain {
        /// The number of jumps that led here.
        depth: usize,
    },
    /// What a rule matched or did.
    Event,
}

/// Why a packet could not be traced.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TraceError {
    /// The packet is ambiguous on this node.
    #[error(transparent)]
    Packet(#[from] ResolvePacketError),
    /// The rules could not be read.
    #[error("the {family} rules could not be read: {reason}")]
    Unreadable {
        /// The family of the packet.
        family: Family,
        /// The error with its causes.
        reason: String,
    },
}

/// Traces the packet through the rules that were read from the kernel, of one of these `modes`.
pub fn trace(
    packet_spec: &PacketSpec,
    dataplane: &Dataplane,
    kernel: &Kernel,
    modes: &DetachedModes,
) -> Result<Trace, TraceError> {
    let held = |family| {
        let held = match kernel {
            Kernel::NotAsked => Err("the kernel was not read".to_owned()),
            Kernel::Observed(seen) => match seen.get(&family) {
                Some(Ok(held)) => Ok(held),
                Some(Err(reason)) => Err(reason.clone()),
                None => Err("the kernel was not read".to_owned()),
            },
        };
        held.map_err(|reason| TraceError::Unreadable { family, reason })
    };
    follow(packet_spec, dataplane, RulesOf::Kernel, modes, held)
}

/// Traces the packet through the rules of one of these `modes` that `held` returns.
pub fn follow<'a>(
    packet_spec: &PacketSpec,
    dataplane: &Dataplane,
    rules_of: RulesOf,
    modes: &DetachedModes,
    held: impl FnOnce(Family) -> Result<&'a RulesByMode, TraceError>,
) -> Result<Trace, TraceError> {
    let (packet, assumed_origin) = packet_spec.resolve(dataplane)?;
    let held = held(Family::of(packet.destination))?;
    let desired = dataplane.verdict(&packet);
    let mode = active_mode(held, dataplane.config().mode);
    let backend = modes.simulator(mode, Family::of(packet.destination));
    let (rules, node) = (held.of(mode), dataplane.node());
    let actual = backend.simulate(&rules, node, &packet);
    let paths = backend.paths(&rules, node, &packet);
    Ok(Trace {
        packet: packet.to_string(),
        assumed_origin,
        agree: agree(&desired, &actual),
        desired: desired.to_string(),
        rules_of,
        actual: actual.to_string(),
        paths: group(&paths),
    })
}

/// Returns whether both verdicts send a packet to the same endpoints in the same manner. The weight
/// is compared, too, as it shows how often an endpoint is chosen: a missing slot falls to the first
/// endpoint.
fn agree(desired: &Verdict, actual: &Verdict) -> bool {
    let key = |choice: &Choice| (choice.target, choice.weight, choice.masquerade);
    match (desired, actual) {
        (Verdict::Deliver(desired), Verdict::Deliver(actual)) => {
            let desired: BTreeSet<_> = desired.iter().map(key).collect();
            desired == actual.iter().map(key).collect()
        }
        (desired, actual) => desired == actual,
    }
}

/// Combines paths that traverse the same chains and differ only in elements, redirects and learned
/// affinity.
fn group(paths: &[PacketPath]) -> Vec<TracedPath> {
    let mut groups: Vec<Vec<&PacketPath>> = Vec::new();
    for path in paths {
        match groups.iter_mut().find(|group| is_alike(group[0], path)) {
            Some(group) => group.push(path),
            None => groups.push(vec![path]),
        }
    }
    groups.iter().map(|group| together(group)).collect()
}

fn is_alike(one: &PacketPath, other: &PacketPath) -> bool {
    let same = |(a, b): (&Event, &Event)| match (a, b) {
        (Event::Element(_), Event::Element(_))
        | (Event::Redirect(_), Event::Redirect(_))
        | (Event::Learn(_), Event::Learn(_)) => true,
        (a, b) => a == b,
    };
    one.events.len() == other.events.len() && one.events.iter().zip(&other.events).all(same)
}

fn together(paths: &[&PacketPath]) -> TracedPath {
    let mut outcomes: Vec<String> = Vec::new();
    let mut steps: Vec<PathStep> = Vec::new();
    for path in paths {
        push_once(&mut outcomes, path.outcome.to_string());
        for (position, event) in path.events.iter().enumerate() {
            match steps.get_mut(position) {
                Some(step) => push_once(&mut step.texts, event.to_string()),
                None => steps.push(PathStep {
                    kind: StepKind::of(event),
                    texts: vec![event.to_string()],
                }),
            }
        }
    }
    TracedPath {
        outcome: outcomes.join(" or "),
        steps,
    }
}

fn push_once(texts: &mut Vec<String>, text: String) {
    if !texts.contains(&text) {
        texts.push(text);
    }
}

// === impl StepKind ===

impl StepKind {
    fn of(event: &Event) -> StepKind {
        match event {
            Event::Base { .. } => StepKind::Base,
            Event::Chain { depth, .. } => StepKind::Chain { depth: *depth },
            _ => StepKind::Event,
        }
    }
}

#[cfg(test)]
mod tests;
