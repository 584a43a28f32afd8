//! Reads Signpost's rules from the kernel to answer a question.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write;

use backend::AnyBackend;
use dataplane::{Family, Mode};
use modes::{RulesByMode, detached, open_reader};
use runtime::chain;
use xtables::Variant;

/// Signpost's rules in this network namespace, as read for a question.
#[derive(Debug)]
pub enum Kernel {
    /// The kernel was not read: the answer is about manifests alone.
    NotAsked,
    /// The rules of each family in its active mode, or the error with its causes if they could
    /// not be read.
    Observed(BTreeMap<Family, Result<RulesByMode, String>>),
}

/// Which tables to read.
#[derive(Debug, Clone)]
pub struct RulesLocation {
    /// The active mode of each family.
    pub carriers: BTreeMap<Family, Mode>,
    /// The iptables variant in use, if a family uses iptables.
    pub variant: Variant,
}

/// Returns the active mode of a family that has the rules `held`: `desired`, or the previous
/// one until `desired` has programmed rules.
pub(crate) fn active_mode(held: &RulesByMode, desired: Mode) -> Mode {
    match held.of(desired).is_nothing() {
        false => desired,
        true => held.active_mode().unwrap_or(desired),
    }
}

// === impl Kernel ===

impl Kernel {
    /// Reads both families, over separate sockets, so that the reconciler does not wait. Blocks for
    /// about 0.1 s with 10,000 Services.
    pub fn observe(at: &RulesLocation) -> Kernel {
        let used: BTreeSet<Mode> = at.carriers.values().copied().collect();
        let mut seen = BTreeMap::new();
        for mode in used {
            let is_meant = |family: &Family| at.carriers.get(family) == Some(&mode);
            let read: Vec<_> = match open_reader(mode, at.variant) {
                Ok(backends) => backends.into_iter().map(|b| observe(mode, b)).collect(),
                Err(error) => unread(&*error),
            };
            seen.extend(read.into_iter().filter(|(family, _)| is_meant(family)));
        }
        Kernel::Observed(seen)
    }

    /// Prints all rules below a heading for each mode, and why a family could not be read.
    pub fn list(&self, at: &RulesLocation) -> String {
        let mut text = String::new();
        let Kernel::Observed(seen) = self else {
            return text;
        };
        for (family, held) in seen {
            let Some(mode) = at.carriers.get(family) else {
                continue;
            };
            let heading = detached(*mode, *family, at.variant).heading();
            // Writing to a String cannot fail.
            let _ = match held {
                Ok(held) => writeln!(text, "{heading}\n{held}"),
                Err(error) => writeln!(text, "{heading}\n# {family}: {error}"),
            };
        }
        text
    }

    /// Returns the rules of one family, if they were read.
    pub fn held(&self, family: Family) -> Option<&RulesByMode> {
        match self {
            Kernel::NotAsked => None,
            Kernel::Observed(seen) => seen.get(&family)?.as_ref().ok(),
        }
    }
}

fn observe(mode: Mode, mut backend: AnyBackend) -> (Family, Result<RulesByMode, String>) {
    let rules = backend.observe();
    let held = rules.map(|rules| RulesByMode::only(mode, rules));
    let held = held.map_err(|error| chain(&error).to_string());
    (backend.family(), held)
}

fn unread(error: &(dyn Error + 'static)) -> Vec<(Family, Result<RulesByMode, String>)> {
    let error = chain(error).to_string();
    let unread = |family| (family, Err(error.clone()));
    Family::ALL.into_iter().map(unread).collect()
}
