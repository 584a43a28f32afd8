//! The path of one packet: where it should go, and where the rules take it. Pure: the caller reads the
//! rules.

mod packet;
mod text;

use std::collections::BTreeSet;

use backend::{Event, Way};
use dataplane::{Choice, Dataplane, Family, Verdict};
use serde::Serialize;
use thiserror::Error;

use crate::explain::{Kernel, carrier};
use crate::mechanism::{Held, simulator};

pub(crate) use packet::{ResolvePacketError, Wording};

/// Where a packet goes, and whether that is right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Trace {
    /// The packet.
    pub(crate) packet: String,
    /// How its origin was derived, where it was not given.
    pub(crate) guess: Option<String>,
    /// Where it should go, by the desired state.
    pub(crate) desired: String,
    /// Whose rules were followed.
    pub(crate) rules_of: RulesOf,
    /// Where they take it.
    pub(crate) taken: String,
    /// Whether that is the same.
    pub(crate) agree: bool,
    /// The ways that differ in more than a number that is drawn.
    pub(crate) ways: Vec<WayAnswer>,
}

/// Where rules were taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RulesOf {
    /// The kernel, read back.
    Kernel,
    /// What would be programmed.
    Rendering,
}

/// One way, or several that differ in the number that is drawn and what it leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WayAnswer {
    /// Where it ends.
    pub(crate) outcome: String,
    /// What is met.
    pub(crate) stations: Vec<Station>,
}

/// Something that is met on a way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Station {
    /// What.
    pub(crate) sort: Sort,
    /// In words: one for each number that may be drawn, where they differ.
    pub(crate) either: Vec<String>,
}

/// What a station is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Sort {
    /// A chain at a hook.
    Base,
    /// A chain that another one leads to.
    Chain {
        /// How many chains led here, one after the other.
        depth: usize,
    },
    /// What a rule found or did.
    Event,
}

/// Why a packet could not be followed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum TraceError {
    /// It is not clear which packet is meant.
    #[error(transparent)]
    Packet(#[from] ResolvePacketError),
    /// There are no rules to follow.
    #[error("the {family} rules could not be read: {reason}")]
    Unreadable {
        /// Whose.
        family: Family,
        /// Why, with causes.
        reason: String,
    },
}

/// Follows the packet through what was read from the kernel.
pub(crate) fn trace(
    wording: &Wording,
    dataplane: &Dataplane,
    kernel: &Kernel,
) -> Result<Trace, TraceError> {
    follow(wording, dataplane, RulesOf::Kernel, |family| {
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

/// Follows the packet through rules, whosever they are.
pub(crate) fn follow<'a>(
    wording: &Wording,
    dataplane: &Dataplane,
    rules_of: RulesOf,
    held: impl FnOnce(Family) -> Result<&'a Held, TraceError>,
) -> Result<Trace, TraceError> {
    let (packet, guess) = wording.resolve(dataplane)?;
    let held = held(Family::of(packet.destination))?;
    let desired = dataplane.verdict(&packet);
    let mechanism = carrier(held, dataplane.config().mechanism);
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

/// Whether both send a packet to the same endpoints in the same manner. Weights distinguish how often each
/// is chosen; a missing slot falls to the first endpoint.
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

/// Puts ways together that pass the same chains and differ in numbers, elements and rules alone.
fn group(ways: &[Way]) -> Vec<WayAnswer> {
    let mut groups: Vec<Vec<&Way>> = Vec::new();
    for way in ways {
        match groups.iter_mut().find(|group| is_alike(group[0], way)) {
            Some(group) => group.push(way),
            None => groups.push(vec![way]),
        }
    }
    groups.iter().map(|group| together(group)).collect()
}

fn is_alike(one: &Way, other: &Way) -> bool {
    let same = |(a, b): (&Event, &Event)| match (a, b) {
        (Event::Element(_), Event::Element(_))
        | (Event::Redirect(_), Event::Redirect(_))
        | (Event::Learn(_), Event::Learn(_)) => true,
        (a, b) => a == b,
    };
    one.events.len() == other.events.len() && one.events.iter().zip(&other.events).all(same)
}

fn together(ways: &[&Way]) -> WayAnswer {
    let mut outcomes: Vec<String> = Vec::new();
    let mut stations: Vec<Station> = Vec::new();
    for way in ways {
        push_once(&mut outcomes, way.outcome.to_string());
        for (position, event) in way.events.iter().enumerate() {
            match stations.get_mut(position) {
                Some(station) => push_once(&mut station.either, event.to_string()),
                None => stations.push(Station {
                    sort: Sort::of(event),
                    either: vec![event.to_string()],
                }),
            }
        }
    }
    WayAnswer {
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
