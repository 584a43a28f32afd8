//! The two variants of iptables: which of them ours belong to, and what others have in them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use backend::Backend;
use backend_iptables::{Disturbances, Iptables, Lock, PREFIX, open_with_disturbances};
use crds::profile::mechanism::Mode;
use dataplane::Family;
use netlink::Interruption;
use prometheus_client::metrics::histogram::Histogram;
use runtime::{CancellationToken, chain};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};
use xtables::{Fault, Found, Lookout, OpenError, Ours, Variant, observe_variants};

use crate::board::Board;
use crate::engine::InForce;

/// How often it is looked at what others have in them: in this many `syncPeriod`s, and no more rarely
/// than after [`LONGEST`]. A look reads every rule of iptables there is, if anybody has changed one.
const PERIODS: u32 = 2;
const LONGEST: Duration = Duration::from_secs(60);

/// For how long a change waits for the lock, as kube-proxy does (pkg/util/iptables/iptables.go).
const PATIENCE: Duration = Duration::from_secs(5);

/// The way of both families to the tables of iptables. They use one variant: what is opened for the
/// one is there for the other as long as either uses it.
#[derive(Debug)]
pub(crate) struct Variants {
    lock: Lock,
    /// How long changes have waited for the lock.
    waits: Histogram,
    listeners: Sender<Listener>,
    opened: Mutex<Weak<Opened>>,
}

/// One variant, opened for both families.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) variant: Variant,
    /// Families that are not being used.
    free: Mutex<BTreeMap<Family, Ways>>,
    /// Ends the waiting of whoever listens, with this.
    interruption: Option<Interruption>,
}

/// One family's ways to the tables of iptables.
#[derive(Debug)]
pub(super) struct Ways {
    /// To the variant that is used.
    pub(super) used: Iptables,
    /// To the other one, where rules of ours were seen there, or may be.
    pub(super) stray: Option<Stray>,
}

/// A way to what an agent before this one may have left behind.
#[derive(Debug)]
pub(super) struct Stray {
    pub(super) tables: Iptables,
    pub(super) knowledge: Knowledge,
}

/// Whether it is known what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Knowledge {
    /// It was read.
    Read,
    /// It was not, or the last look failed: another one is owed.
    Owed,
}

/// Hears what others do to the rules of ours in iptables, as long as those are open.
#[derive(Debug)]
pub(crate) struct Listener {
    /// What tells.
    pub(crate) disturbances: Disturbances,
    /// For how long it has anything to tell.
    pub(crate) interest: Interest,
}

/// Lasts as long as the tables of iptables are open.
#[derive(Debug)]
pub(crate) struct Interest(Weak<Opened>);

/// What was last seen of the variants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Sighting {
    /// It was not looked: nobody uses them.
    #[default]
    None,
    /// This.
    Seen(Found),
    /// Nothing, and why, with causes.
    Refused(String),
}

/// The lock that is kept in this file, and how long to wait for it.
pub(crate) fn lock_at(file: &Path) -> Lock {
    Lock {
        path: file.to_owned(),
        patience: PATIENCE,
    }
}

/// Looks every few `syncPeriod`s while mode iptables is wanted, until told to stop.
pub(crate) async fn watch(board: Arc<Board>, stop: CancellationToken) {
    let mut in_force = board.in_force();
    let mut lookout = Lookout::default();
    loop {
        let (mode, pause) = {
            let in_force = in_force.borrow_and_update();
            let effective = in_force.as_ref().map(|in_force| &in_force.effective);
            let period = effective.map(|effective| effective.sync_period.duration());
            let pause = period.map_or(LONGEST, |period| (PERIODS * period).min(LONGEST));
            (effective.map(|effective| effective.mode), pause)
        };
        let sighting = match mode {
            Some(Mode::Iptables) => {
                let look = spawn_blocking(move || {
                    let seen = lookout.observe(PREFIX);
                    (lookout, seen)
                });
                let seen;
                (lookout, seen) = match look.await {
                    Ok(done) => done,
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    // The runtime is shutting down.
                    Err(_) => return,
                };
                match seen {
                    Ok(found) => Sighting::Seen(found),
                    Err(error) => Sighting::Refused(chain(&error).to_string()),
                }
            }
            _ => Sighting::None,
        };
        board.post_variants(sighting);
        let mode_of = |in_force: &InForce| in_force.effective.mode;
        let another = in_force.wait_for(|in_force| in_force.as_ref().map(mode_of) != mode);
        // All arms are cancel safe: nothing is taken out of anywhere.
        tokio::select! {
            () = stop.cancelled() => return,
            changed = another => if changed.is_err() { return },
            () = sleep(pause) => {}
        }
    }
}

// === impl Variants ===

impl Variants {
    /// The tables of this network namespace, which are changed under `lock`. How long that was waited
    /// for goes into `waits`; whenever they are opened, a listener comes out of what is returned.
    pub(crate) fn new(lock: Lock, waits: Histogram) -> (Variants, Receiver<Listener>) {
        let (listeners, receiver) = channel();
        let variants = Variants {
            lock,
            waits,
            listeners,
            opened: Mutex::default(),
        };
        (variants, receiver)
    }

    /// For how long a change waits for the lock.
    pub(super) fn patience(&self) -> Duration {
        self.lock.patience
    }

    /// A change has waited this long for the lock.
    pub(super) fn waited(&self, wait: Duration) {
        self.waits.observe(wait.as_secs_f64());
    }

    /// The variant that is used, or the one that is to be from now on. Fails where nobody can tell
    /// in which one ours are, too.
    pub(super) fn open(&self) -> Result<Arc<Opened>, OpenError> {
        let mut kept = lock(&self.opened);
        if let Some(opened) = kept.upgrade() {
            return Ok(opened);
        }
        let (variant, stray) = observe_choice()?;
        let (families, disturbances) = open_with_disturbances(variant, &self.lock)?;
        let mut strays = match stray {
            Some(variant) => self.open_stray(variant)?,
            None => [None, None],
        };
        let ways = families.into_iter().zip(&mut strays);
        let free = ways.map(|(used, stray)| {
            let stray = stray.take();
            (used.family(), Ways { used, stray })
        });
        let opened = Arc::new(Opened {
            variant,
            free: Mutex::new(free.collect()),
            interruption: disturbances.interruption(),
        });
        let listener = Listener {
            disturbances,
            interest: Interest(Arc::downgrade(&opened)),
        };
        // Who only cleans up has nobody that listens.
        let _ = self.listeners.send(listener);
        *kept = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// Both families of what an agent before this one may have left; nothing where that can never be
    /// opened.
    fn open_stray(&self, variant: Variant) -> Result<[Option<Stray>; 2], OpenError> {
        match backend_iptables::open(variant, &self.lock) {
            Ok(families) => Ok(families.map(|tables| {
                Some(Stray {
                    tables,
                    knowledge: Knowledge::Owed,
                })
            })),
            Err(error) if error.fault == Fault::Impossible => {
                warn!(error = %chain(&error), %variant, "unable to open this iptables variant: rules of Signpost may remain in it");
                Ok([None, None])
            }
            Err(error) => Err(error),
        }
    }

    /// The variants with rules of ours, and those of which that is not known.
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

    /// One family of a variant, for itself.
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

/// The variant to use, and the other one unless it is known that nothing of ours is there.
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
                // It will not be known later, either.
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
    let stray = other(variant);
    let is_suspected = found.of(stray).ours != Ours::None;
    Ok((variant, is_suspected.then_some(stray)))
}

fn other(variant: Variant) -> Variant {
    match variant {
        Variant::NfTables => Variant::Legacy,
        Variant::Legacy => Variant::NfTables,
    }
}

// === impl Opened ===

impl Opened {
    /// Takes a family's ways; nothing where they were taken before.
    pub(super) fn take(&self, family: Family) -> Option<Ways> {
        lock(&self.free).remove(&family)
    }

    /// Gives them back.
    pub(super) fn give_back(&self, family: Family, ways: Ways) {
        lock(&self.free).insert(family, ways);
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(interruption) = &self.interruption {
            interruption.begin();
        }
    }
}

// === impl Interest ===

impl Interest {
    pub(crate) fn lasts(&self) -> bool {
        self.0.strong_count() > 0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whatever is behind it is whole between any two statements that change it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
