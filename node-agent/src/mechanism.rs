//! The kernel's mechanisms together: what a family of it holds of ours in all of them, and the way
//! from one to another.
//!
//! Of all mechanisms one is wanted, by the mode in a profile, and the others are to hold nothing. That
//! is a rendering like any other, so that a switch is a change like any other, made before broken:
//!
//! ```text
//! believed {nftables: all, iptables: nothing}
//!     -- 1. all of iptables, 2. table signpost goes -->
//! wanted   {nftables: nothing, iptables: all}
//! ```
//!
//! Until its second part both are there. The chains of type nat in table signpost are asked first: what
//! they redirect decides, and both redirect to the same endpoints. Connections that are
//! established go on, because chains of type nat are there all the time. Whoever starts after a
//! switch was cut short reads both, and goes on from there.
//!
//! A mechanism that turns out impossible is replaced by another one, and not read while it is given
//! up. What it had is removed by itself: at once where it was only begun, once the other one carries
//! where it had carried, and before it is tried again where neither could be done.

pub(crate) mod findings;
mod given_up;
mod list;
mod mechanisms;
mod on_demand;
mod variants;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use backend::{AnyChange, AnyRules, Change as _, Size};
use dataplane::{Family, Mechanism};
use xtables::{TableName, Variant};

pub(crate) use list::{detached, open, open_reader, open_unheard, simulator};
pub(crate) use mechanisms::Mechanisms;
pub(crate) use on_demand::VariantRules;
pub(crate) use variants::{Listener, Sighting, Variants, lock_at, watch};

/// What one family of the kernel holds of ours: in each mechanism that holds anything, its rules.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Held(BTreeMap<Mechanism, AnyRules>);

/// How to get from one to another: what the wanted mechanism needs comes first.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    /// The mechanism that is wanted; `None` where nothing is.
    wanted: Option<Mechanism>,
    parts: Vec<(Mechanism, AnyChange)>,
}

/// How one family is carried out, for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Standing {
    /// By which mechanism; `None` as long as nothing is known to be.
    pub(crate) carrier: Option<Mechanism>,
    /// Which one the last change was to lead to.
    pub(crate) wanted: Option<Mechanism>,
    /// The variant of iptables that is used, or was when one was used last.
    pub(crate) variant: Option<Variant>,
    /// The longest that a change has waited for the lock of iptables, since the process started.
    pub(crate) longest_lock_wait: Duration,
    /// How the last change found it.
    pub(crate) lock: LockStanding,
    /// The mechanisms that cannot be used here, each with the error and its causes.
    pub(crate) impossible: BTreeMap<Mechanism, String>,
    /// The one of these that still has rules of ours, beside those of the carrier.
    pub(crate) outgoing: Option<Mechanism>,
    /// Settings of the kernel that the carrier needs and could not set, and modules that the kernel lacks, each with what
    /// follows from that.
    pub(crate) missing_settings: Vec<String>,
    /// How many rules the last change of iptables has written, by table.
    pub(crate) written: BTreeMap<TableName, usize>,
}

/// How the lock of iptables was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LockStanding {
    /// It was taken, or not asked for.
    #[default]
    Free,
    /// Somebody else held it for longer than it was waited for.
    Held,
}

// === impl Held ===

impl Held {
    /// What one mechanism holds, and the others nothing.
    pub(crate) fn only(mechanism: Mechanism, rules: AnyRules) -> Held {
        let mut held = Held::default();
        held.set(mechanism, rules);
        held
    }

    /// Puts `rules` in the place of those of `mechanism`.
    pub(crate) fn set(&mut self, mechanism: Mechanism, rules: AnyRules) {
        match rules.is_nothing() {
            true => self.0.remove(&mechanism),
            false => self.0.insert(mechanism, rules),
        };
    }

    /// What there is of `mechanism`.
    pub(crate) fn of(&self, mechanism: Mechanism) -> AnyRules {
        self.0.get(&mechanism).cloned().unwrap_or_default()
    }

    /// The mechanism that has something of ours; the first of several.
    pub(crate) fn carrier(&self) -> Option<Mechanism> {
        self.0.keys().next().copied()
    }

    /// How many elements and rules there are.
    pub(crate) fn elements(&self) -> usize {
        let held = self.0.iter();
        held.map(|(mechanism, rules)| simulator(*mechanism, Family::Ipv4).elements(rules))
            .sum()
    }
}

impl fmt::Display for Held {
    /// One after the other, as each prints; what is nowhere prints nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.values().try_for_each(|rules| write!(f, "{rules}"))
    }
}

// === impl Change ===

impl Change {
    /// The way to `wanted`, whose parts these are.
    fn to(wanted: Option<Mechanism>, mut parts: Vec<(Mechanism, AnyChange)>) -> Change {
        parts.retain(|(_, part)| !part.size().is_empty());
        // Stable, so that what is not wanted any more keeps its place: at the end.
        parts.sort_by_key(|(mechanism, _)| Some(*mechanism) != wanted);
        Change { wanted, parts }
    }
}

impl backend::Change for Change {
    fn size(&self) -> Size {
        let mut size = Size::default();
        for part in self.parts.iter().map(|(_, part)| part.size()) {
            size.elements += part.elements;
            size.objects += part.objects;
        }
        size
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.parts.iter();
        parts.try_for_each(|(_, part)| write!(f, "{part}"))
    }
}

// === impl Standing ===

impl Standing {
    /// What takes the place of `wanted`, and why: where it is impossible and the other carries.
    pub(crate) fn replacement(&self, wanted: Mechanism) -> Option<(Mechanism, &str)> {
        let error = self.impossible.get(&wanted)?;
        let carrier = self.carrier.filter(|carrier| *carrier != wanted)?;
        Some((carrier, error))
    }
}

#[cfg(test)]
mod tests;
