//! The mechanisms there are. This list alone, and what programs them, names them.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use backend::{AnyBackend, erase};
use backend_iptables::{Iptables, Lock};
use backend_nftables::Nftables;
use dataplane::{Family, Mechanism};
use xtables::Variant;

/// One mechanism, for questions: nothing here writes.
struct Entry {
    mechanism: Mechanism,
    /// One family without a kernel. The variant of iptables is for those that have variants.
    detached: fn(Family, Variant) -> AnyBackend,
    /// Both families of this thread's network namespace, over sockets of their own.
    open: fn(Variant) -> Result<[AnyBackend; 2], Box<dyn Error>>,
}

const LIST: &[Entry] = &[
    Entry {
        mechanism: Mechanism::Nftables,
        detached: |family, _| erase(Nftables::detached(family)),
        open: |_| Ok(backend_nftables::open()?.map(erase)),
    },
    Entry {
        mechanism: Mechanism::Iptables,
        detached: |family, variant| erase(Iptables::detached(family, variant)),
        open: |variant| {
            // It is for those who write.
            let lock = Lock {
                path: PathBuf::new(),
                patience: Duration::ZERO,
            };
            Ok(backend_iptables::open(variant, &lock)?.map(erase))
        },
    },
];

/// One family of `mechanism` without a kernel: renders, compares, simulates.
pub(crate) fn detached(mechanism: Mechanism, family: Family, variant: Variant) -> AnyBackend {
    (entry(mechanism).detached)(family, variant)
}

/// The same where the variant makes no difference: for following packets.
pub(crate) fn simulator(mechanism: Mechanism, family: Family) -> AnyBackend {
    detached(mechanism, family, Variant::NfTables)
}

/// Both families of this thread's network namespace, to be read.
pub(crate) fn open_reader(
    mechanism: Mechanism,
    variant: Variant,
) -> Result<[AnyBackend; 2], Box<dyn Error>> {
    (entry(mechanism).open)(variant)
}

fn entry(mechanism: Mechanism) -> &'static Entry {
    let mut entries = LIST.iter();
    let entry = entries.find(|entry| entry.mechanism == mechanism);
    entry.unwrap_or(&LIST[0])
}
