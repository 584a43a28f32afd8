//! Modes without a kernel, for answers about their rules.

use backend::AnyBackend;
use dataplane::{Family, Mode};
use xtables::Variant;

use super::list::{Detach, LIST};

/// Modes without a kernel, to render, compare and simulate. Those of the list by default.
#[derive(Debug, Clone)]
pub struct DetachedModes(Vec<(Mode, Detach)>);

// === impl DetachedModes ===

impl DetachedModes {
    /// The same with `detach` for `mode`.
    #[must_use]
    pub fn with(mut self, mode: Mode, detach: Detach) -> DetachedModes {
        self.0.retain(|(other, _)| *other != mode);
        self.0.push((mode, detach));
        self
    }

    /// One family of `mode`, or of the first one if there is no such mode. Only modes with variants of
    /// iptables use the variant.
    pub fn backend(&self, mode: Mode, family: Family, variant: Variant) -> AnyBackend {
        let named = self.0.iter().find(|(other, _)| *other == mode);
        let (_, detach) = named.unwrap_or(&self.0[0]);
        detach(family, variant)
    }

    /// The same with any variant, for what does not depend on it: where packets go, and whose a mark is.
    pub fn simulator(&self, mode: Mode, family: Family) -> AnyBackend {
        self.backend(mode, family, Variant::NfTables)
    }

    /// Each mode with one family of it, as [`DetachedModes::simulator`] does.
    pub fn simulators(&self, family: Family) -> impl Iterator<Item = (Mode, AnyBackend)> {
        let modes = self.0.iter();
        modes.map(move |(mode, detach)| (*mode, detach(family, Variant::NfTables)))
    }
}

impl Default for DetachedModes {
    fn default() -> DetachedModes {
        DetachedModes(
            LIST.iter()
                .map(|entry| (entry.mode, entry.detached))
                .collect(),
        )
    }
}
