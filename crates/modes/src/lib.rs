//! The active backend of each family: what one family of the kernel holds of Signpost's rules in
//! all mechanisms, and the switch from one mechanism to another.
//!
//! The profile's mode selects one mechanism; the others must hold no rules. That is a rendering
//! like any other, so a switch is an ordinary change, make before break:
//!
//! ```text
//! observed {nftables: all, iptables: nothing}
//!     -- 1. write all of iptables, 2. remove table signpost -->
//! desired  {nftables: nothing, iptables: all}
//! ```
//!
//! Both mechanisms have rules until step 2. The chains of type nat in table signpost come first, so
//! their redirect decides; both redirect to the same endpoints. Established connections continue,
//! because chains of type nat exist all the time. An agent that starts after an interrupted switch
//! reads both mechanisms and completes the switch.
//!
//! A mechanism that turns out to be unusable is replaced by another one, and is not read while it
//! is given up. Its rules are removed separately: at once if they were only partly written; once
//! the replacement is active if they were active before; and before it is tried again if neither
//! succeeded.

pub mod findings;
mod list;
mod mechanisms;
mod on_demand;
mod unusable_mechanisms;
mod variants;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use backend::{AnyChange, AnyRules, Change as _, Size};
use dataplane::{Family, Mechanism};
use xtables::{TableName, Variant};

pub use list::{detached, open, open_reader, open_without_listener, simulator};
pub use mechanisms::Mechanisms;
pub use on_demand::VariantRules;
pub use variants::{Listener, OpenTables, VariantScan, Variants, lock_at};

/// Signpost's rules in one family of the kernel, for each mechanism that has any.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RulesByMechanism(BTreeMap<Mechanism, AnyRules>);

/// A change between two states. The part for the desired mechanism comes first.
#[derive(Debug, Clone)]
pub struct Change {
    /// The desired mechanism, or `None` if no rules are desired.
    desired: Option<Mechanism>,
    parts: Vec<(Mechanism, AnyChange)>,
}

/// How one family is programmed, for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MechanismState {
    /// The active mechanism, or `None` while no mechanism is known to be active.
    pub active_mode: Option<Mechanism>,
    /// The desired mechanism of the last change.
    pub desired: Option<Mechanism>,
    /// The iptables variant in use, or the one that was used last.
    pub variant: Option<Variant>,
    /// The longest wait of a change for the xtables lock since the process started.
    pub longest_lock_wait: Duration,
    /// The state in which the last change found that lock.
    pub lock: LockState,
    /// The mechanisms that cannot be used on this node, each with the error and its causes.
    pub impossible: BTreeMap<Mechanism, String>,
    /// The unusable mechanism that still has rules of Signpost, in addition to those of the active
    /// one.
    pub outgoing: Option<Mechanism>,
    /// The kernel settings that the active mechanism needs and could not set, and the modules that
    /// the kernel lacks, each with its consequence.
    pub missing_settings: Vec<String>,
    /// How many rules the last iptables change wrote, by table.
    pub written: BTreeMap<TableName, usize>,
}

/// The state of the xtables lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LockState {
    /// The agent acquired the lock, or did not need it.
    #[default]
    Free,
    /// Another process held the lock for longer than the agent waited.
    Held,
}

// === impl RulesByMechanism ===

impl RulesByMechanism {
    /// The rules of one mechanism, with none in the others.
    pub fn only(mechanism: Mechanism, rules: AnyRules) -> RulesByMechanism {
        let mut held = RulesByMechanism::default();
        held.set(mechanism, rules);
        held
    }

    /// Replaces the rules of `mechanism` with `rules`.
    pub fn set(&mut self, mechanism: Mechanism, rules: AnyRules) {
        match rules.is_nothing() {
            true => self.0.remove(&mechanism),
            false => self.0.insert(mechanism, rules),
        };
    }

    /// Returns the rules of `mechanism`.
    pub fn of(&self, mechanism: Mechanism) -> AnyRules {
        self.0.get(&mechanism).cloned().unwrap_or_default()
    }

    /// Returns the mechanism that has rules; the first of several.
    pub fn active_mode(&self) -> Option<Mechanism> {
        self.0.keys().next().copied()
    }

    /// Returns the number of elements and rules.
    pub fn elements(&self) -> usize {
        let held = self.0.iter();
        held.map(|(mechanism, rules)| simulator(*mechanism, Family::Ipv4).elements(rules))
            .sum()
    }
}

impl fmt::Display for RulesByMechanism {
    /// Prints the rules of each mechanism in turn. Empty ones print nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.values().try_for_each(|rules| write!(f, "{rules}"))
    }
}

// === impl Change ===

impl Change {
    /// The change to `desired` that consists of these parts.
    fn to(desired: Option<Mechanism>, mut parts: Vec<(Mechanism, AnyChange)>) -> Change {
        parts.retain(|(_, part)| !part.size().is_empty());
        // The sort is stable, so parts that only remove rules keep their order at the end.
        parts.sort_by_key(|(mechanism, _)| Some(*mechanism) != desired);
        Change { desired, parts }
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

// === impl MechanismState ===

impl MechanismState {
    /// Returns the mechanism that replaces `desired`, and why, if `desired` is unusable and another
    /// mechanism is active.
    pub fn replacement(&self, desired: Mechanism) -> Option<(Mechanism, &str)> {
        let error = self.impossible.get(&desired)?;
        let active_mode = self
            .active_mode
            .filter(|active_mode| *active_mode != desired)?;
        Some((active_mode, error))
    }
}

#[cfg(test)]
mod tests;
