//! The modes as a list: which mode programs a family.
//!
//! The profile selects one, or the first of the list replaces it. The reconciler has
//! a domain for each, and switches from one to another, make before break:
//!
//! ```text
//! nftables: all, iptables: nothing
//!     -- 1. fill iptables in parts, while nftables follows
//!     -- 2. remove table signpost
//! nftables: nothing, iptables: all
//! ```
//!
//! Both have rules until step 2, for all Services or for some. A Service that has rules in both has
//! the same endpoints there. The chains of type nat in table signpost come first, so their redirect
//! decides. Established connections continue, because chains of type nat exist all the time. An agent
//! that starts after an interrupted switch reads both and completes the switch.

mod detached_modes;
mod families;
pub mod findings;
mod full_affinity_maps;
mod list;
mod on_demand;
mod opening;
mod packet_counters;
pub mod profile_mode;
mod variants;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use backend::{AnyBackend, AnyRules, Connections};
use dataplane::{Family, Mode};
use reconciler::FamilyReconciler;
use xtables::{TableName, Variant};

pub use detached_modes::DetachedModes;
pub use families::{Families, open, open_without_listener};
pub use full_affinity_maps::FullAffinityMaps;
pub use list::{Detach, detached, open_reader};
pub use nftables_model::FULL_AFFINITY_MAP_TIMEOUT;
pub use on_demand::{IptablesFigures, VariantRules};
pub use packet_counters::PacketCounters;
pub use variants::{Listener, Lock, OpenTables, VariantScan, Variants, lock_at};

use list::simulator;

/// Signpost's rules in one family of the kernel, for each mode that has any.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RulesByMode(BTreeMap<Mode, AnyRules>);

/// How one family is programmed, for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModeState {
    /// The active mode, or `None` while no mode is known to be active.
    pub active_mode: Option<Mode>,
    /// The mode that the last sync programmed: the desired one or its replacement.
    pub chosen: Option<Mode>,
    /// The iptables variant in use, or the one that was used last.
    pub variant: Option<Variant>,
    /// The longest wait of a change for the xtables lock since the process started.
    pub longest_lock_wait: Duration,
    /// The state in which the last change found that lock.
    pub lock: LockState,
    /// The modes that cannot be used on this node, each with the error and its causes.
    pub unusable: BTreeMap<Mode, String>,
    /// The unusable modes that still have rules of Signpost, in addition to those of the active
    /// one.
    pub outgoing: BTreeSet<Mode>,
    /// The modes whose rules do not follow changes during a switch, each with the error and its
    /// causes.
    pub stalled: BTreeMap<Mode, String>,
    /// How this node limits the active mode: kernel settings that it needs and could not set,
    /// missing kernel modules with the Services that need them, and what the configuration affects
    /// beside Signpost's rules, each with its consequence.
    pub limitations: Vec<String>,
    /// The connections that the kernel counts for the active mode, if it counts any.
    pub connections: Option<Connections>,
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

// === impl RulesByMode ===

impl RulesByMode {
    /// Returns the rules of a family; `None` if they are not known.
    pub fn observed(family: &FamilyReconciler<AnyBackend>) -> Option<RulesByMode> {
        let mut held = RulesByMode::default();
        for (mode, rules) in family.rules_by_mode()? {
            held.set(mode, rules.clone());
        }
        Some(held)
    }

    /// The rules of one mode, with none in the others.
    pub fn only(mode: Mode, rules: AnyRules) -> RulesByMode {
        let mut held = RulesByMode::default();
        held.set(mode, rules);
        held
    }

    /// Replaces the rules of `mode` with `rules`.
    pub fn set(&mut self, mode: Mode, rules: AnyRules) {
        match rules.is_nothing() {
            true => self.0.remove(&mode),
            false => self.0.insert(mode, rules),
        };
    }

    /// Returns the rules of `mode`.
    pub fn of(&self, mode: Mode) -> AnyRules {
        self.0.get(&mode).cloned().unwrap_or_default()
    }

    /// Returns the mode that has rules; the first of several.
    pub fn active_mode(&self) -> Option<Mode> {
        self.0.keys().next().copied()
    }

    /// Returns the number of elements and rules.
    pub fn elements(&self) -> usize {
        let held = self.0.iter();
        held.map(|(mode, rules)| simulator(*mode, Family::Ipv4).elements(rules))
            .sum()
    }
}

impl fmt::Display for RulesByMode {
    /// Prints the rules of each mode in turn. Empty ones print nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.values().try_for_each(|rules| write!(f, "{rules}"))
    }
}

// === impl ModeState ===

impl ModeState {
    /// Returns the state of `family`, whose iptables tables have these `figures`.
    pub fn of(family: &FamilyReconciler<AnyBackend>, figures: &IptablesFigures) -> ModeState {
        let active_mode = family.active_mode();
        let figures = figures.current();
        ModeState {
            active_mode,
            chosen: family.chosen_mode(),
            variant: figures.variant,
            longest_lock_wait: figures.longest_lock_wait,
            lock: figures.lock,
            unusable: family.unusable_modes(),
            outgoing: family.outgoing_modes().clone(),
            stalled: family.stalled_modes(),
            limitations: active_mode.map_or_else(Vec::new, |_| family.limitations()),
            connections: family.connections(),
            written: figures.written,
        }
    }

    /// Returns the mode that replaces `desired`, and why, if `desired` is unusable and another
    /// mode is active.
    pub fn replacement(&self, desired: Mode) -> Option<(Mode, &str)> {
        let error = self.unusable.get(&desired)?;
        let active_mode = self
            .active_mode
            .filter(|active_mode| *active_mode != desired)?;
        Some((active_mode, error))
    }
}

#[cfg(test)]
mod tests;
