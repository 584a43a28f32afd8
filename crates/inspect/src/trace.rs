//! Traces one packet: where it should go, and where the rules send it. Pure: the caller reads the
//! rules.

mod packet;
mod text;

use std::collections::BTreeSet;

use backend::{Event, PacketPath};
use dataplane::{Choice, Dataplane, Family, Verdict};
use modes::{RulesByMechanism, simulator};
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
    pub guess: Option<String>,
    /// Its destination according to the desired state.
    pub desired: String,
    /// Where the simulated rules come from.
    pub rules_of: RulesOf,
    /// Its destination according to these rules.
    pub taken: String,
    /// Whether both destinations are the same.
    pub agree: bool,
    /// The possible paths. Paths that differ only in a random number are one.
    pub ways: Vec<PathAnswer>,
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
pub struct PathAnswer {
    /// Where it ends.
    pub outcome: String,
    /// The chains, elements and rules on the path.
    pub stations: Vec<PathStep>,
}

/// One step on a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PathStep {
    /// Its kind.
    pub sort: Sort,
    /// Its text; one text per random number if they differ.
    pub either: Vec<String>,
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Sort {
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

/// Traces the packet through the rules that were read from the kernel.
pub fn trace(
    packet_spec: &PacketSpec,
    dataplane: &Dataplane,
    kernel: &Kernel,
) -> Result<Trace, TraceError> {
    follow(packet_spec, dataplane, RulesOf::Kernel, |family| {
        let held = match kernel {
            Kernel::NotAsked => Err("the kernel was not read".to_owned()),
            Kernel::Observed(seen) => match seen.get(&family) {
                Some(Ok(held)) => Ok(held),
                Some(Err(reason)) => Err(reason.clone()),
                None => Err("the kernel was not read".to_owned()),
            },
        };
        held.map_err(|reason| TraceError::Unreadable { family, reason })
    })
}

/// Traces the packet through the rules that `held` returns.
pub fn follow<'a>(
    packet_spec: &PacketSpec,
    dataplane: &Dataplane,
    rules_of: RulesOf,
    held: impl FnOnce(Family) -> Result<&'a RulesByMechanism, TraceError>,
) -> Result<Trace, TraceError> {
    let (packet, guess) = packet_spec.resolve(dataplane)?;
    let held = held(Family::of(packet.destination))?;
    let desired = dataplane.verdict(&packet);
    let mechanism = active_mode(held, dataplane.config().mechanism);
    let backend = simulator(mechanism, Family::of(packet.destination));
    let (rules, node) = (held.of(mechanism), dataplane.node());
    let taken = backend.simulate(&rules, node, &packet);
    let ways = backend.ways(&rules, node, &packet);
    Ok(Trace {
        packet: packet.to_string(),
        guess,
        agree: agree(&desired, &taken),
        desired: desired.to_string(),
        rules_of,
        taken: taken.to_string(),
        ways: group(&ways),
    })
}

/// Returns whether both verdicts send a packet to the same endpoints in the same manner. The weight
/// is compared, too, as it shows how often an endpoint is chosen: a missing slot falls to the first
/// endpoint.
fn agree(desired: &Verdict, taken: &Verdict) -> bool {
    let key = |choice: &Choice| (choice.target, choice.weight, choice.masquerade);
    match (desired, taken) {
        (Verdict::Deliver(desired), Verdict::Deliver(taken)) => {
            let desired: BTreeSet<_> = desired.iter().map(key).collect();
            desired == taken.iter().map(key).collect()
        }
        (desired, taken) => desired == taken,
    }
}

/// Combines paths that traverse the same chains and differ only in elements, redirects and learned
/// affinity.
fn group(ways: &[PacketPath]) -> Vec<PathAnswer> {
    let mut groups: Vec<Vec<&PacketPath>> = Vec::new();
    for way in ways {
        match groups.iter_mut().find(|group| is_alike(group[0], way)) {
            Some(group) => group.push(way),
            None => groups.push(vec![way]),
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

fn together(ways: &[&PacketPath]) -> PathAnswer {
    let mut outcomes: Vec<String> = Vec::new();
    let mut stations: Vec<PathStep> = Vec::new();
    for way in ways {
        push_once(&mut outcomes, way.outcome.to_string());
        for (position, event) in way.events.iter().enumerate() {
            match stations.get_mut(position) {
                Some(station) => push_once(&mut station.either, event.to_string()),
                None => stations.push(PathStep {
                    sort: Sort::of(event),
                    either: vec![event.to_string()],
                }),
            }
        }
    }
    PathAnswer {
        outcome: outcomes.join(" or "),
        stations,
    }
}

fn push_once(texts: &mut Vec<String>, text: String) {
    if !texts.contains(&text) {
        texts.push(text);
    }
}

// === impl Sort ===

impl Sort {
    fn of(event: &Event) -> Sort {
        match event {
            Event::Base { .. } => Sort::Base,
            Event::Chain { depth, .. } => Sort::Chain { depth: *depth },
            _ => Sort::Event,
        }
    }
}

#[cfg(test)]
mod tests;
