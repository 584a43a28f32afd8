//! The list of mechanisms. A new mechanism is added here.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backend::{AnyBackend, ChangeListener, erase};
use backend_iptables::{Iptables, Lock};
use backend_ipvs::Ipvs;
use backend_nftables::Nftables;
pub use backend_nftables::{
    CROWDED, CountedPackets, CountedRule, CrowdedError, PacketCountError, RefusalReason, RuleEnd,
};
use dataplane::{Dataplane, Family, FrontendKey, Mechanism};
use netlink::{Interruption, Socket};
use reconciler::FamilyReconciler;
use xtables::Variant;

use super::on_demand::OpenOnDemand;
use super::{IptablesFigures, Variants};

/// The backends of both families, or why they could not be opened.
type Read = Result<[AnyBackend; 2], Box<dyn Error>>;

/// One mechanism, opened read-only.
struct Entry {
    mechanism: Mechanism,
    /// One family without a kernel. Only mechanisms with variants of iptables use the variant.
    detached: fn(Family, Variant) -> AnyBackend,
    /// Both families of this thread's network namespace, over separate sockets.
    open: fn(Variant) -> Read,
}

const LIST: &[Entry] = &[
    Entry {
        mechanism: Mechanism::Nftables,
        detached: |family, _| erase(Nftables::detached(family)),
        open: |_| Ok(backend_nftables::open()?.map(erase)),
    },
    Entry {
        mechanism: Mechanism::Iptables,
        detached: |family, variant| {
            erase(OpenOnDemand::detached(Iptables::detached(family, variant)))
        },
        open: |variant| {
            // Readers need no lock.
            let lock = Lock {
                path: PathBuf::new(),
                patience: Duration::ZERO,
            };
            let families = backend_iptables::open(variant, &lock)?;
            Ok(families.map(|tables| erase(OpenOnDemand::reading(tables))))
        },
    },
    Entry {
        mechanism: Mechanism::Ipvs,
        detached: |family, _| erase(Ipvs::detached(family)),
        // Readers set no sysctls.
        open: |_| Ok(backend_ipvs::open(Path::new(""))?.map(erase)),
    },
];

/// Both families of one network namespace, in all mechanisms.
#[derive(Debug)]
pub struct Families {
    /// IPv4 and IPv6.
    pub reconcilers: [FamilyReconciler<AnyBackend>; 2],
    /// The figures about the iptables tables of each.
    pub iptables: [IptablesFigures; 2],
}

/// Reads from the kernel which frontends with session affinity have no room for new clients.
/// Mechanism iptables does not record them.
#[derive(Debug, Default)]
pub struct FullAffinityMaps {
    nftables: backend_nftables::FullAffinityMaps,
    ipvs: backend_ipvs::FullAffinityMaps,
}

// === impl FullAffinityMaps ===

impl FullAffinityMaps {
    /// Returns the frontends of `desired` that had no free entry for a new client within
    /// [`CROWDED`], and those that the kernel names although `desired` does not have them, in this
    /// thread's network namespace, which must always be the same one.
    pub fn observe(&mut self, desired: &Dataplane) -> Result<BTreeSet<FrontendKey>, CrowdedError> {
        let mut frontends = self.nftables.observe()?;
        frontends.extend(self.ipvs.observe(desired)?);
        Ok(frontends)
    }
}

/// Reads from the kernel how many packets Signpost's rules have counted. Rules of mechanism iptables
/// are not read.
#[derive(Debug, Default)]
pub struct PacketCounters {
    nftables: backend_nftables::PacketCounters,
    ipvs: backend_ipvs::PacketCounters,
}

// === impl PacketCounters ===

impl PacketCounters {
    /// Returns what each rule of a family has counted, in this thread's network namespace, which must
    /// always be the same one: those of two mechanisms during a switch. Empty if no rule counts.
    /// Costs about ten requests of a few rules each.
    pub fn observe(
        &mut self,
        family: Family,
    ) -> Result<BTreeMap<(Mechanism, CountedRule), u64>, PacketCountError> {
        let tables = [
            (Mechanism::Nftables, self.nftables.observe(family)?),
            (Mechanism::Ipvs, self.ipvs.observe(family)?),
        ];
        let rules = tables.into_iter().flat_map(|(mechanism, counts)| {
            let counts = counts.into_iter().flatten();
            counts.map(move |(rule, count)| ((mechanism, rule), count))
        });
        Ok(rules.collect())
    }
}

/// The tables whose changes by other programs are announced: those of modes nftables and ipvs.
const WATCHED: &[&str] = &[
    backend_nftables::TABLE,
    backend_nftables::NEXT,
    backend_ipvs::TABLE,
];

/// Opens both families of this thread's network namespace in all mechanisms, and the nf_tables
/// listener. `variants` sends an iptables listener whenever it opens the iptables tables. Mode ipvs
/// writes its settings below `sysctls`.
pub fn open(
    variants: Variants,
    sysctls: &Path,
) -> Result<(Families, impl ChangeListener + use<>, Interruption), netlink::OpenError> {
    let tables = Socket::open()?;
    let (nftables, listener) = backend_nftables::open_with_listener_for(WATCHED, &[&tables])?;
    let interruption = listener.interruption();
    let ipvs = backend_ipvs::open_with_socket(sysctls, tables)?;
    Ok((families(nftables, ipvs, variants), listener, interruption))
}

/// Opens both families without a listener, to remove Signpost's rules.
pub fn open_without_listener(variants: Variants) -> Result<Families, netlink::OpenError> {
    let (nftables, ipvs) = (
        backend_nftables::open()?,
        backend_ipvs::open(Path::new(""))?,
    );
    Ok(families(nftables, ipvs, variants))
}

/// Combines the mechanisms of each family. Checks whether the iptables tables contain rules of
/// Signpost.
fn families(nftables: [Nftables; 2], ipvs: [Ipvs; 2], variants: Variants) -> Families {
    let variants = Arc::new(variants);
    let is_suspected = !variants.observe_suspected().is_empty();
    let iptables = [Family::Ipv4, Family::Ipv6].map(|family| {
        let mut iptables = OpenOnDemand::new(family, Arc::clone(&variants));
        if is_suspected {
            iptables.suspect();
            iptables.open_suspected();
        }
        iptables
    });
    let figures = iptables.each_ref().map(OpenOnDemand::figures);
    let [ipv4, ipv6] = nftables;
    let [iptables_ipv4, iptables_ipv6] = iptables;
    let [ipvs_ipv4, ipvs_ipv6] = ipvs;
    let modes = [
        (ipv4, iptables_ipv4, ipvs_ipv4),
        (ipv6, iptables_ipv6, ipvs_ipv6),
    ];
    let reconcilers = modes.map(|(nftables, iptables, ipvs)| {
        // The first mechanism replaces another one that cannot be used.
        let first = (Mechanism::Nftables, erase(nftables));
        let others = vec![
            (Mechanism::Iptables, erase(iptables)),
            (Mechanism::Ipvs, erase(ipvs)),
        ];
        FamilyReconciler::with_modes(first, others)
    });
    Families {
        reconcilers,
        iptables: figures,
    }
}

/// Returns one family of `mechanism` without a kernel, to render, compare and simulate.
pub fn detached(mechanism: Mechanism, family: Family, variant: Variant) -> AnyBackend {
    (entry(mechanism).detached)(family, variant)
}

/// Returns `detached` with any variant, to simulate packets: the variant makes no difference there.
pub fn simulator(mechanism: Mechanism, family: Family) -> AnyBackend {
    detached(mechanism, family, Variant::NfTables)
}

/// Opens both families of this thread's network namespace to read them.
pub fn open_reader(mechanism: Mechanism, variant: Variant) -> Read {
    (entry(mechanism).open)(variant)
}

fn entry(mechanism: Mechanism) -> &'static Entry {
    let mut entries = LIST.iter();
    let entry = entries.find(|entry| entry.mechanism == mechanism);
    entry.unwrap_or(&LIST[0])
}
