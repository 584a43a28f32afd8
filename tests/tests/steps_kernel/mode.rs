//! Programs a kernel one transaction at a time.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use backend::Inspect;
use backend_iptables::{Iptables, Lock};
use backend_ipvs::Ipvs;
use backend_nftables::Nftables;
use dataplane::Family;
use xtables::Variant;

use crate::stage::Stage;

/// Longer than any other process of a test holds the lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// The settings that mode ipvs makes where its agent runs. The test's agents run elsewhere.
const SYSCTLS: [(&str, &str); 2] = [("conntrack", "1"), ("expire_nodest_conn", "1")];

/// The mode that redirects packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Nftables,
    Iptables(Variant),
    Ipvs,
}

/// A backend whose changes can be divided.
pub(crate) trait Steps: Inspect + Sized + Send + 'static {
    /// Opens one family of the node.
    fn open_family(stage: &Stage, variant: Variant, family: Family) -> Result<Self>;

    /// Divides the change into two.
    fn halves(change: &Self::Change) -> Option<[Self::Change; 2]>;

    /// Whether a kernel with enough memory makes the change in more than one step.
    fn is_divided(change: &Self::Change) -> bool;
}

/// Returns the transactions of a change in order.
pub(crate) fn transactions<B: Steps>(change: B::Change) -> Vec<B::Change> {
    divide::<B>(change, B::is_divided)
}

/// Returns in order the smallest parts into which a change is divided if the kernel lacks memory.
pub(crate) fn smallest_parts<B: Steps>(change: B::Change) -> Vec<B::Change> {
    divide::<B>(change, |_| true)
}

fn divide<B: Steps>(change: B::Change, is_divided: fn(&B::Change) -> bool) -> Vec<B::Change> {
    let mut parts = Vec::new();
    let mut rest = vec![change];
    while let Some(next) = rest.pop() {
        let halves = is_divided(&next).then(|| B::halves(&next)).flatten();
        match halves {
            Some([first, second]) => rest.extend([second, first]),
            None => parts.push(next),
        }
    }
    parts
}

impl Steps for Nftables {
    fn open_family(stage: &Stage, _variant: Variant, family: Family) -> Result<Nftables> {
        let families = stage.node()?.enter(backend_nftables::open)??;
        Ok(of_family(families, family))
    }

    fn halves(change: &Self::Change) -> Option<[Self::Change; 2]> {
        change.halves()
    }

    fn is_divided(change: &Self::Change) -> bool {
        change.transactions().len() > 1
    }
}

impl Steps for Iptables {
    fn open_family(stage: &Stage, variant: Variant, family: Family) -> Result<Iptables> {
        let lock = Lock {
            path: stage.lock_file(),
            patience: PATIENCE,
        };
        let open = || backend_iptables::open(variant, &lock);
        Ok(of_family(stage.node()?.enter(open)??, family))
    }

    fn halves(change: &Self::Change) -> Option<[Self::Change; 2]> {
        change.halves()
    }

    fn is_divided(change: &Self::Change) -> bool {
        change.steps().len() > 1
    }
}

impl Steps for Ipvs {
    fn open_family(stage: &Stage, _variant: Variant, family: Family) -> Result<Ipvs> {
        let open = || {
            for (name, value) in SYSCTLS {
                fs::write(format!("/proc/sys/net/ipv4/vs/{name}"), value)?;
            }
            anyhow::Ok(backend_ipvs::open(Path::new("/proc/sys"))?)
        };
        Ok(of_family(stage.node()?.enter(open)??, family))
    }

    fn halves(change: &Self::Change) -> Option<[Self::Change; 2]> {
        change.halves()
    }

    fn is_divided(change: &Self::Change) -> bool {
        change.steps().len() > 1
    }
}

fn of_family<B>([ipv4, ipv6]: [B; 2], family: Family) -> B {
    match family {
        Family::Ipv4 => ipv4,
        Family::Ipv6 => ipv6,
    }
}

impl Mode {
    /// Whether it is one of the variants of iptables.
    pub(crate) fn is_iptables(self) -> bool {
        matches!(self, Mode::Iptables(_))
    }

    /// The mode in the profile's terms.
    pub(crate) fn listed(self) -> dataplane::Mode {
        match self {
            Mode::Nftables => dataplane::Mode::Nftables,
            Mode::Iptables(_) => dataplane::Mode::Iptables,
            Mode::Ipvs => dataplane::Mode::Ipvs,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Nftables => f.write_str("nftables"),
            Mode::Iptables(variant) => write!(f, "iptables_{variant}"),
            Mode::Ipvs => f.write_str("ipvs"),
        }
    }
}
