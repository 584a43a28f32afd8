//! Detects whether the kernel has flowtables.

use std::collections::BTreeSet;
use std::path::Path;

use dataplane::Family;
use netlink::Socket;
use nftables_model::{MissingFeature, Probe, Support};

use crate::flowtable;

/// A setting that exists exactly if connections have the same timeouts after a flowtable as without
/// one: since Linux 5.14. Before, an idle one is forgotten after two minutes, and breaks
/// (`NF_FLOWTABLE_TCP_PICKUP_TIMEOUT`).
const TIMEOUT_SETTING: &str = "/proc/sys/net/netfilter/nf_flowtable_tcp_timeout";

/// The modules of flowtables.
const MODULES: [&str; 3] = ["nf_flow_table", "nf_flow_table_inet", "nft_flow_offload"];
/// The folder with a folder for each loaded module.
const LOADED: &str = "/sys/module";

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

/// What is known of the kernel's flowtables. It is asked before the first flowtable is created, by a
/// transaction that it refuses if it has none.
#[derive(Debug)]
pub(super) struct FlowtableSupport {
    support: Support,
    /// Why they cannot be used.
    unusable: Option<String>,
    /// Those of [`MODULES`] that were loaded when the kernel refused.
    loaded: BTreeSet<&'static str>,
}

// === impl FlowtableSupport ===

impl FlowtableSupport {
    pub(super) const UNKNOWN: FlowtableSupport = FlowtableSupport {
        support: Support::Unknown,
        unusable: None,
        loaded: BTreeSet::new(),
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
        self.loaded = observe_loaded();
        Err(unusable)
    }

    /// Looks whether a module that the kernel lacked was loaded since. Reads nothing if none lacked.
    pub(super) fn observe_modules(&mut self) {
        if !self.are_usable() {
            self.follow_modules(&observe_loaded());
        }
    }

    /// Discards the kernel's refusal if it has more modules now: the next rendering has a flowtable, and the
    /// kernel is asked before that is written. It is not asked every minute, as for schedulers of IPVS:
    /// after a transaction that was refused, some kernels take much longer for each later one.
    fn follow_modules(&mut self, loaded: &BTreeSet<&'static str>) {
        if !loaded.is_subset(&self.loaded) {
            self.unusable = None;
        }
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

fn observe_loaded() -> BTreeSet<&'static str> {
    let is_loaded = |module: &&str| Path::new(LOADED).join(module).exists();
    MODULES.into_iter().filter(is_loaded).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend::{Backend, Rendered};
    use dataplane::{Dataplane, Node};
    use testkit::{mk_config, mk_node};

    use super::*;
    use crate::Nftables;

    #[test]
    fn a_flowtable_comes_once_a_module_was_loaded_that_the_kernel_lacked() {
        let node = Node {
            flowtable_interfaces: Some(["eth0".into()].into()),
            ..Node::clone(&mk_node(1).build())
        };
        let desired = Dataplane::new(Arc::new(node), mk_config().build());
        let mut backend = Nftables::detached(Family::Ipv4);
        backend.flowtables = FlowtableSupport {
            unusable: Some("it lacks a module".to_owned()),
            loaded: ["nf_flow_table"].into(),
            ..FlowtableSupport::UNKNOWN
        };
        let mut has_flowtable = |loaded: &[&'static str]| {
            let loaded = loaded.iter().copied().collect();
            backend.flowtables.follow_modules(&loaded);
            let rendered = backend.render(&desired, &Rendered::default());
            let says = backend.limitations(&desired);
            assert_eq!(rendered.flowtables.is_empty(), !says.is_empty(), "{says:?}");
            !rendered.flowtables.is_empty()
        };
        assert!(!has_flowtable(&["nf_flow_table"]));
        assert!(!has_flowtable(&[]));
        assert!(has_flowtable(&["nf_flow_table", "nft_flow_offload"]));
    }
}
