//! The two variants of iptables: which one Signpost uses, and what other programs have in them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use backend::Backend;
pub use backend_iptables::Lock;
use backend_iptables::{Iptables, NotificationListener, PREFIX, open_with_listener};
use dataplane::Family;
use netlink::Interruption;
use prometheus_client::metrics::histogram::Histogram;
use runtime::chain;
use tracing::{info, warn};
use xtables::{Fault, Found, OpenError, OwnChains, Variant, VariantDetector, observe_variants};

/// How long a change waits for the xtables lock: as long as kube-proxy
/// (pkg/util/iptables/iptables.go).
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens the iptables tables for both families. Both use the same variant: tables opened for one
/// family are available to the other as long as either uses them.
#[derive(Debug)]
pub struct Variants {
    lock: Lock,
    /// How long changes have waited for the lock.
    waits: Histogram,
    listeners: Sender<Listener>,
    opened: Mutex<Weak<OpenVariant>>,
}

/// One variant, opened for both families.
#[derive(Debug)]
pub(super) struct OpenVariant {
    pub(super) variant: Variant,
    /// The tables of families that are not in use.
    free: Mutex<BTreeMap<Family, FamilyTables>>,
    /// Wakes the thread that listens to this variant when `OpenVariant` is dropped.
    interruption: Option<Interruption>,
}

/// One family's iptables tables.
#[derive(Debug)]
pub(super) struct FamilyTables {
    /// The tables of the variant in use.
    pub(super) used: Iptables,
    /// The tables of the other variant, if it contains or may contain rules of Signpost.
    pub(super) leftover: Option<LeftoverAccess>,
}

/// The tables that may contain leftover rules of an earlier agent.
#[derive(Debug)]
pub(super) struct LeftoverAccess {
    pub(super) tables: Iptables,
    pub(super) knowledge: ReadState,
}

/// Whether the rules in the tables are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadState {
    /// The tables were read.
    Read,
    /// The tables were not read, or the last read failed: they must be read again.
    MustRead,
}

/// Receives notifications of external changes to Signpost's iptables rules while the tables are
/// open.
#[derive(Debug)]
pub struct Listener {
    /// The source of the notifications.
    pub notification_listener: NotificationListener,
    /// How long the listener is needed.
    pub open_tables: OpenTables,
}

/// Tells whether the iptables tables are still open.
#[derive(Debug)]
pub struct OpenTables(Weak<OpenVariant>);

/// The result of the last scan of the variants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum VariantScan {
    /// No scan has run: mode iptables is not in force.
    #[default]
    None,
    /// The scan succeeded, with this result.
    Seen(Found),
    /// The scan failed: the error with its causes.
    Refused(String),
}

/// The lock in this file, with the maximum wait.
pub fn lock_at(file: &Path) -> Lock {
    Lock {
        path: file.to_owned(),
        patience: PATIENCE,
    }
}

// === impl VariantScan ===

impl VariantScan {
    /// Scans both variants. Reads nothing if nothing has changed since the last scan of `detector`.
    pub fn observe(detector: &mut VariantDetector) -> VariantScan {
        match detector.observe(PREFIX) {
            Ok(found) => VariantScan::Seen(found),
            Err(error) => VariantScan::Refused(chain(&error).to_string()),
        }
    }
}

// === impl Variants ===

impl Variants {
    /// The iptables tables of this network namespace, changed under `lock`. Records waits for the
    /// lock in `waits`. Whenever the tables are opened, the returned receiver gets a listener.
    pub fn new(lock: Lock, waits: Histogram) -> (Variants, Receiver<Listener>) {
        let (listeners, receiver) = channel();
        let variants = Variants {
            lock,
            waits,
            listeners,
            opened: Mutex::default(),
        };
        (variants, receiver)
    }

    /// How long a change waits for the lock.
    pub(super) fn patience(&self) -> Duration {
        self.lock.patience
    }

    /// Records how long a change has waited for the lock.
    pub(super) fn waited(&self, wait: Duration) {
        self.waits.observe(wait.as_secs_f64());
    }

    /// Opens the variant in use, or selects one. Fails also if it cannot be determined which
    /// variant contains Signpost's rules.
    pub(super) fn open(&self) -> Result<Arc<OpenVariant>, OpenError> {
        let mut kept = lock(&self.opened);
        if let Some(opened) = kept.upgrade() {
            return Ok(opened);
        }
        let (variant, leftover) = observe_choice()?;
        let (families, notification_listener) = open_with_listener(variant, &self.lock)?;
        let mut leftovers = match leftover {
            Some(variant) => self.open_leftover(variant)?,
            None => [None, None],
        };
        let family_tables = families.into_iter().zip(&mut leftovers);
        let free = family_tables.map(|(used, leftover)| {
            let leftover = leftover.take();
            (used.family(), FamilyTables { used, leftover })
        });
        let opened = Arc::new(OpenVariant {
            variant,
            free: Mutex::new(free.collect()),
            interruption: notification_listener.interruption(),
        });
        let listener = Listener {
            notification_listener,
            open_tables: OpenTables(Arc::downgrade(&opened)),
        };
        // During a cleanup, no thread listens.
        let _ = self.listeners.send(listener);
        *kept = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// Opens both families of a variant in which an earlier agent may have left rules. Returns no
    /// tables if they can never be opened.
    fn open_leftover(&self, variant: Variant) -> Result<[Option<LeftoverAccess>; 2], OpenError> {
        match backend_iptables::open(variant, &self.lock) {
            Ok(families) => Ok(families.map(|tables| {
                Some(LeftoverAccess {
                    tables,
                    knowledge: ReadState::MustRead,
                })
            })),
            Err(error) if error.fault == Fault::Impossible => {
                warn!(error = %chain(&error), %variant, "unable to open this iptables variant: rules of Signpost may remain in it");
                Ok([None, None])
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the variants that contain rules of Signpost, and those for which that is not known.
    pub(super) fn observe_suspected(&self) -> Vec<Variant> {
        match observe_variants(PREFIX) {
            Ok(found) => found.suspected(),
            Err(error) => {
                let suspected = error.known.suspected();
                warn!(error = %chain(&error), ?suspected, "unable to check all iptables variants for rules of Signpost");
                suspected
            }
        }
    }

    /// Opens one family of a variant alone.
    pub(super) fn open_family(
        &self,
        family: Family,
        variant: Variant,
    ) -> Result<Iptables, OpenError> {
        let [ipv4, ipv6] = backend_iptables::open(variant, &self.lock)?;
        Ok(match family {
            Family::Ipv4 => ipv4,
            Family::Ipv6 => ipv6,
        })
    }
}

/// Returns the variant to use, and the other one unless it is known to be free of Signpost's rules.
fn observe_choice() -> Result<(Variant, Option<Variant>), OpenError> {
    let (found, variant) = match observe_variants(PREFIX) {
        Ok(found) => {
            let choice = found.choose();
            let (variant, why) = (choice.variant, choice.why);
            info!(%variant, "selected the iptables variant for this node: {why}");
            (found, variant)
        }
        Err(error) => {
            let variant = match (error.known.choose_without_counting(), error.fault) {
                (Some(variant), _) => variant,
                // A later scan will not find out, either.
                (None, Fault::Impossible) => error.known.choose().variant,
                (None, fault) => {
                    return Err(OpenError {
                        fault,
                        source: error.into(),
                    });
                }
            };
            warn!(error = %chain(&error), %variant, "selected an iptables variant from incomplete information");
            (error.known, variant)
        }
    };
    let leftover = other(variant);
    let is_suspected = found.of(leftover).own_chains != OwnChains::None;
    Ok((variant, is_suspected.then_some(leftover)))
}

fn other(variant: Variant) -> Variant {
    match variant {
        Variant::NfTables => Variant::Legacy,
        Variant::Legacy => Variant::NfTables,
    }
}

// === impl OpenVariant ===

impl OpenVariant {
    /// Takes the tables of `family`; `None` if they are in use.
    pub(super) fn take(&self, family: Family) -> Option<FamilyTables> {
        lock(&self.free).remove(&family)
    }

    /// Returns the tables of `family` for later use.
    pub(super) fn give_back(&self, family: Family, family_tables: FamilyTables) {
        lock(&self.free).insert(family, family_tables);
    }
}

impl Drop for OpenVariant {
    fn drop(&mut self) {
        if let Some(interruption) = &self.interruption {
            interruption.begin();
        }
    }
}

// === impl OpenTables ===

impl OpenTables {
    /// Returns whether the tables are still open.
    pub fn lasts(&self) -> bool {
        self.0.strong_count() > 0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The value is consistent between any two statements that change it, so a poisoned lock is
    // harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
