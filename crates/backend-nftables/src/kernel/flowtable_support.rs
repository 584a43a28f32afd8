//! Detects whether the kernel has flowtables.

use std::path::Path;

use dataplane::Family;
use netlink::Socket;
use nftables_model::{MissingFeature, Probe, Support};

use crate::flowtable;

/// A setting that exists exactly if connections have the same timeouts after a flowtable as without
/// one: since Linux 5.14. Before, an idle one is forgotten after two minutes, and breaks
/// (`NF_FLOWTABLE_TCP_PICKUP_TIMEOUT`).
const TIMEOUT_SETTING: &str = "/proc/sys/net/netfilter/nf_flowtable_tcp_timeout";

/// Why the kernel's flowtables, if it has any, cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnusableFlowtables {
    #[error(transparent)]
    Missing(MissingFeature),
    #[error(
        "this kernel forgets connections that were in a flowtable and are idle for two minutes; Linux 5.14 and later do not"
    )]
    ShortTimeouts,
}

/// What is known of the kernel's flowtables. It is asked once, before the first flowtable is created.
#[derive(Debug)]
pub(super) struct FlowtableSupport {
    support: Support,
    /// Why they cannot be used.
    unusable: Option<String>,
}

// === impl FlowtableSupport ===

impl FlowtableSupport {
    pub(super) const UNKNOWN: FlowtableSupport = FlowtableSupport {
        support: Support::Unknown,
        unusable: None,
    };

    /// Asks the kernel, unless it has answered before.
    pub(super) fn observe(
        &mut self,
        socket: &mut Socket,
        family: Family,
    ) -> Result<(), UnusableFlowtables> {
        let probe = || Probe::new(family, flowtable::probe());
        let missing = self.support.observe_missing(socket, probe);
        // The modules that have the setting are loaded by then.
        let unusable = match missing {
            Some(missing) => UnusableFlowtables::Missing(missing),
            None if Path::new(TIMEOUT_SETTING).exists() => return Ok(()),
            None => UnusableFlowtables::ShortTimeouts,
        };
        self.unusable = Some(unusable.to_string());
        Err(unusable)
    }

    /// Whether flowtables are usable, as far as is known.
    pub(super) fn are_usable(&self) -> bool {
        self.unusable.is_none()
    }

    /// What does not happen without them.
    pub(super) fn limitation(&self) -> Option<String> {
        let reason = self.unusable.as_ref()?;
        Some(format!(
            "nftables.flowtableInterfaces has no effect, and established connections go through all \
             rules: {reason}"
        ))
    }
}
