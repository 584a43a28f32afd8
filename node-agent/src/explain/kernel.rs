//! What the kernel was seen to hold.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use backend::Backend;
use backend_iptables::{Lock, Rules};
use backend_nftables::Table;
use dataplane::{Family, Mechanism};
use runtime::chain;
use xtables::Variant;

use crate::mechanism::Held;

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

/// What there was of one mechanism, by family.
type Seen<T> = BTreeMap<Family, Result<T, String>>;

/// What carries out the family that holds `held`, where `wanted` is wanted to: the other one, as long
/// as nothing is programmed by that.
pub(crate) fn carrier(held: &Held, wanted: Mechanism) -> Mechanism {
    let is_there = match wanted {
        Mechanism::Nftables => held.nftables.exists(),
        Mechanism::Iptables => held.iptables.exist(),
    };
    match is_there {
        true => wanted,
        false => held.carrier().unwrap_or(wanted),
    }
}

// === impl Kernel ===

impl Kernel {
    /// Reads both families, over sockets of its own: whoever programs them is not disturbed. Blocks
    /// for about 0.1 s where there are 10,000 Services.
    pub(crate) fn observe(at: &Whereabouts) -> Kernel {
        let is_used = |mechanism| at.carriers.values().any(|used| *used == mechanism);
        let mut tables = match is_used(Mechanism::Nftables) {
            true => observe_tables(),
            false => Seen::new(),
        };
        let mut rules = match is_used(Mechanism::Iptables) {
            true => observe_rules(at.variant),
            false => Seen::new(),
        };
        let held = |(family, mechanism): (&Family, &Mechanism)| {
            let held = match mechanism {
                Mechanism::Nftables => tables.remove(family)?.map(|nftables| Held {
                    nftables,
                    ..Held::default()
                }),
                Mechanism::Iptables => rules.remove(family)?.map(|iptables| Held {
                    iptables,
                    ..Held::default()
                }),
            };
            Some((*family, held))
        };
        Kernel::Observed(at.carriers.iter().filter_map(held).collect())
    }

    /// What one family holds, if it was read.
    pub(crate) fn held(&self, family: Family) -> Option<&Held> {
        match self {
            Kernel::NotAsked => None,
            Kernel::Observed(seen) => seen.get(&family)?.as_ref().ok(),
        }
    }
}

fn observe_tables() -> Seen<Table> {
    match backend_nftables::open() {
        Ok(backends) => backends.into_iter().map(observe).collect(),
        Err(error) => unread(&error),
    }
}

fn observe_rules(variant: Variant) -> Seen<Rules> {
    // It is for those who write.
    let lock = Lock {
        path: PathBuf::new(),
        patience: Duration::ZERO,
    };
    match backend_iptables::open(variant, &lock) {
        Ok(backends) => backends.into_iter().map(observe).collect(),
        Err(error) => unread(&error),
    }
}

fn observe<B: Backend>(mut backend: B) -> (Family, Result<B::Rules, String>) {
    let rules = backend.observe();
    let rules = rules.map_err(|error| chain(&error).to_string());
    (backend.family(), rules)
}

fn unread<T>(error: &(dyn Error + 'static)) -> Seen<T> {
    let error = chain(error).to_string();
    let unread = |family| (family, Err(error.clone()));
    Family::ALL.into_iter().map(unread).collect()
}
