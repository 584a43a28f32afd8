//! The list of modes. A new mode is added here, by one entry.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backend::{AnyBackend, erase};
use backend_iptables::{Iptables, Lock};
use backend_ipvs::Ipvs;
use backend_nftables::Nftables;
use dataplane::{Dataplane, Family, FrontendKey, Mode};
use netlink::OpenError;
use nftables_model::{CountedRule, FullAffinityMapError, FullAffinityMapSocket};
use xtables::Variant;

use super::on_demand::OpenOnDemand;
use super::opening::Opening;

/// The backends of both families, or why they could not be opened.
type Read = Result<[AnyBackend; 2], Box<dyn Error>>;

/// Makes one family of a mode without a kernel. Only modes with variants of iptables use the variant.
pub type Detach = fn(Family, Variant) -> AnyBackend;

/// What a mode brings.
pub(super) struct Entry {
    pub(super) mode: Mode,
    /// One family without a kernel.
    pub(super) detached: Detach,
    /// Both families of this thread's network namespace, read-only, over separate sockets.
    open_reader: fn(Variant) -> Read,
    /// Both families, to be programmed.
    pub(super) open: fn(&mut Opening<'_>) -> Result<[AnyBackend; 2], OpenError>,
    /// The nf_tables tables whose changes by other programs are reported.
    pub(super) announced: &'static [&'static str],
    /// The table with rules that count packets, and these rules, if the mode has any.
    pub(super) counted: Option<(&'static str, &'static [CountedRule])>,
    /// Reads which frontends with session affinity have no room for new clients, if the mode
    /// records them.
    pub(super) observe_full_affinity_maps: Option<ObserveFullAffinityMaps>,
}

/// Reads the frontends without room, given the desired ones.
type ObserveFullAffinityMaps = fn(
    &mut FullAffinityMapSocket,
    &Dataplane,
) -> Result<BTreeSet<FrontendKey>, FullAffinityMapError>;

/// Every mode. The first one replaces another one that cannot be used.
pub(super) static LIST: [Entry; 3] = [
    Entry {
        mode: Mode::Nftables,
        detached: |family, _| erase(Nftables::detached(family)),
        open_reader: |_| Ok(backend_nftables::open()?.map(erase)),
        open: |opening| {
            let socket = opening.open_socket()?;
            let families = backend_nftables::open_with_socket(socket, &opening.foreign_generations);
            Ok(families.map(erase))
        },
        announced: &[backend_nftables::TABLE, backend_nftables::NEXT],
        counted: Some((backend_nftables::TABLE, &backend_nftables::COUNTED)),
        observe_full_affinity_maps: Some(backend_nftables::observe_full_affinity_maps),
    },
    Entry {
        mode: Mode::Iptables,
        detached: |family, variant| {
            erase(OpenOnDemand::detached(Iptables::detached(family, variant)))
        },
        open_reader: |variant| {
            // Readers need no lock.
            let lock = Lock {
                path: PathBuf::new(),
                patience: Duration::ZERO,
            };
            let families = backend_iptables::open(variant, &lock)?;
            Ok(families.map(|tables| erase(OpenOnDemand::reading(tables))))
        },
        open: |opening| {
            let families = OpenOnDemand::families(&opening.variants);
            opening.iptables = families.each_ref().map(OpenOnDemand::figures);
            Ok(families.map(erase))
        },
        announced: &[],
        counted: None,
        observe_full_affinity_maps: None,
    },
    Entry {
        mode: Mode::Ipvs,
        detached: |family, _| erase(Ipvs::detached(family)),
        // Readers set no sysctls.
        open_reader: |_| Ok(backend_ipvs::open(Path::new(""))?.map(erase)),
        open: |opening| {
            let socket = opening.open_socket()?;
            Ok(backend_ipvs::open_with_socket(opening.sysctls, socket)?.map(erase))
        },
        announced: &[backend_ipvs::TABLE],
        counted: Some((backend_ipvs::TABLE, &backend_ipvs::COUNTED)),
        observe_full_affinity_maps: Some(backend_ipvs::observe_full_affinity_maps),
    },
];

/// Returns one family of `mode` without a kernel, to render, compare and simulate.
pub fn detached(mode: Mode, family: Family, variant: Variant) -> AnyBackend {
    (entry(mode).detached)(family, variant)
}

/// Returns `detached` with any variant, for what does not depend on it: where packets go, and whose
/// a mark is.
pub(super) fn simulator(mode: Mode, family: Family) -> AnyBackend {
    detached(mode, family, Variant::NfTables)
}

/// Opens both families of this thread's network namespace to read them.
pub fn open_reader(mode: Mode, variant: Variant) -> Read {
    (entry(mode).open_reader)(variant)
}

fn entry(mode: Mode) -> &'static Entry {
    let mut entries = LIST.iter();
    let entry = entries.find(|entry| entry.mode == mode);
    entry.unwrap_or(&LIST[0])
}
