//! What the kernel was seen to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use backend::AnyBackend;
use dataplane::{Family, Mechanism};
use runtime::chain;
use xtables::Variant;

use crate::mechanism::{Held, open_reader};

/// What is ours in this network namespace, as it was when somebody asked.
#[derive(Debug)]
pub(crate) enum Kernel {
    /// Nobody looked: there is no kernel behind what is explained.
    NotAsked,
    /// What each family holds in the mechanism that carries it out, or why that could not be read,
    /// with causes.
    Observed(BTreeMap<Family, Result<Held, String>>),
}

/// Where to look.
#[derive(Debug, Clone)]
pub(crate) struct Whereabouts {
    /// What carries each family out.
    pub(crate) carriers: BTreeMap<Family, Mechanism>,
    /// The variant of iptables that is used where any is.
    pub(crate) variant: Variant,
}

/// What carries out the family that holds `held`, where `wanted` is wanted to: another one, as long
/// as nothing is programmed by that.
pub(crate) fn carrier(held: &Held, wanted: Mechanism) -> Mechanism {
    match held.of(wanted).is_nothing() {
        false => wanted,
        true => held.carrier().unwrap_or(wanted),
    }
}

// === impl Kernel ===

impl Kernel {
    /// Reads both families, over sockets of its own: whoever programs them is not disturbed. Blocks
    /// for about 0.1 s where there are 10,000 Services.
    pub(crate) fn observe(at: &Whereabouts) -> Kernel {
        let used: BTreeSet<Mechanism> = at.carriers.values().copied().collect();
        let mut seen = BTreeMap::new();
        for mechanism in used {
            let is_meant = |family: &Family| at.carriers.get(family) == Some(&mechanism);
            let read: Vec<_> = match open_reader(mechanism, at.variant) {
                Ok(backends) => backends
                    .into_iter()
                    .map(|b| observe(mechanism, b))
                    .collect(),
                Err(error) => unread(&*error),
            };
            seen.extend(read.into_iter().filter(|(family, _)| is_meant(family)));
        }
        Kernel::Observed(seen)
    }

    /// What one family holds, if it was read.
    pub(crate) fn held(&self, family: Family) -> Option<&Held> {
        match self {
            Kernel::NotAsked => None,
            Kernel::Observed(seen) => seen.get(&family)?.as_ref().ok(),
        }
    }
}

fn observe(mechanism: Mechanism, mut backend: AnyBackend) -> (Family, Result<Held, String>) {
    let rules = backend.observe();
    let held = rules.map(|rules| Held::only(mechanism, rules));
    let held = held.map_err(|error| chain(&error).to_string());
    (backend.family(), held)
}

fn unread(error: &(dyn Error + 'static)) -> Vec<(Family, Result<Held, String>)> {
    let error = chain(error).to_string();
    let unread = |family| (family, Err(error.clone()));
    Family::ALL.into_iter().map(unread).collect()
}
