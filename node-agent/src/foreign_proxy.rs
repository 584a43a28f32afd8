//! Other service proxies on this node: whether their rules are in the kernel, and what that means.
//!
//! kube-proxy leaves its rules behind when it ends, so that what is there is looked at, and who put
//! it there asked after separately. A kubelet has chains of its own in the tables of iptables
//! (`KUBE-KUBELET-CANARY`, `KUBE-FIREWALL`, before 1.28 also `KUBE-MARK-MASQ` and
//! `KUBE-POSTROUTING`): those alone are no proxy.

pub(crate) mod kernel;
pub(crate) mod node_ports;
pub(crate) mod process;
pub(crate) mod services;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crds::condition::reason::{self, Reason};
use crds::condition::{self, Finding, Status};
use crds::event;
use dataplane::Family;
use runtime::{CancellationToken, chain};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use crate::board::Board;
use crate::events::{Announcement, Events, Regarding};
use process::{KubeProxy, observe_process};

/// The time between two scans while there is a proxy, and after another program has changed nf_tables. A
/// scan asks the kernel for a dozen objects by name: a proxy that changes its rules all the time is not
/// scanned more often than one that does not.
const SOON: Duration = Duration::from_secs(10);
/// The time between two scans where there is none: the kernel does not report changes of legacy tables and of devices here.
const LATEST: Duration = Duration::from_secs(30);

/// How another proxy makes the kernel carry out Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mechanism {
    /// kube-proxy's mode nftables: tables `ip kube-proxy` and `ip6 kube-proxy`.
    Nftables,
    /// kube-proxy's mode iptables: chains `KUBE-…` in tables that it shares with other programs.
    Iptables,
    /// kube-proxy's mode ipvs: virtual servers, their addresses on a device of its own.
    Ipvs,
}

/// What there is of kube-proxy in the legacy variant of iptables, where nothing is removed from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Legacy {
    /// Nothing.
    #[default]
    None,
    /// There is a table `nat`, and it cannot be read.
    Unreadable,
    /// Chains of its mode iptables.
    Chains,
}

/// What there is of other proxies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Found {
    /// Where rules of each were found.
    pub(crate) rules: BTreeMap<Mechanism, BTreeSet<Family>>,
    pub(crate) legacy: Legacy,
}

/// What was seen when it was last looked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Sight {
    /// It was not looked yet.
    #[default]
    None,
    /// This.
    Seen(Found, KubeProxy),
    /// Nothing: the kernel refused, and why.
    Refused(String),
}

/// Looks now.
pub(crate) fn observe() -> Sight {
    match kernel::observe() {
        Err(error) => Sight::Refused(chain(&error).to_string()),
        // Without rules of kube-proxy, its process does not matter.
        Ok(found) if found.is_nothing() => Sight::Seen(found, KubeProxy::Silent),
        Ok(found) => Sight::Seen(found, observe_process()),
    }
}

/// Scans periodically and after another program has changed nf_tables, and announces what is new, until
/// `stop` is cancelled.
pub(crate) async fn watch(board: Arc<Board>, events: Events, stop: CancellationToken) {
    let mut before = Found::default();
    let mut others = board.others();
    loop {
        let looked = Instant::now();
        // What is changed from here on may be missed by this look.
        others.mark_unchanged();
        let sight = match spawn_blocking(observe).await {
            Ok(sight) => sight,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is shutting down.
            Err(_) => return,
        };
        if let Sight::Seen(found, _) = &sight {
            if found.rules.keys().any(|m| !before.rules.contains_key(m)) {
                events.announce(Announcement {
                    regarding: Regarding::Node,
                    reason: event::FOREIGN_PROXY,
                    note: finding(&sight).map_or_else(String::new, |f| f.message),
                });
            }
            before = found.clone();
        }
        let found_nothing = matches!(&sight, Sight::Seen(found, _) if found.is_nothing());
        let latest = if found_nothing { LATEST } else { SOON };
        board.post_sight(sight);
        // Both arms are cancel safe.
        tokio::select! {
            () = stop.cancelled() => return,
            () = next_look(&mut others, looked, latest) => {}
        }
    }
}

/// Waits until the next scan is due, after `latest` or once another program has changed something.
/// Cancel safe: whatever ends it, a scan follows.
async fn next_look(others: &mut watch::Receiver<()>, looked: Instant, latest: Duration) {
    let changed = async {
        // The board has the other end, and lasts.
        let _ = others.changed().await;
        sleep_until(looked + SOON).await;
    };
    tokio::select! {
        () = changed => {}
        () = sleep_until(looked + latest) => {}
    }
}

/// The condition; `None` before the first scan. Pure.
pub(crate) fn finding(sight: &Sight) -> Option<Finding> {
    let say = |status, reason: Reason, message| {
        let kind = condition::FOREIGN_PROXY_DETECTED;
        Some(Finding::new(kind, status, reason, message))
    };
    let (found, kube_proxy) = match sight {
        Sight::None => return None,
        Sight::Refused(error) => {
            return say(Status::Unknown, reason::RULES_UNREADABLE, error.clone());
        }
        Sight::Seen(found, kube_proxy) => (found, kube_proxy),
    };
    // Mode ipvs has chains of iptables beside its virtual servers.
    if let Some((mechanism, families)) = found.rules.last_key_value() {
        let families: Vec<String> = families.iter().map(Family::to_string).collect();
        let families = families.join(" and ");
        let message = format!(
            "found rules of kube-proxy in mode {mechanism} for {families}; {kube_proxy}; {}",
            mechanism.precedence()
        );
        return say(Status::True, mechanism.reason(), message);
    }
    match (found.legacy, kube_proxy) {
        (Legacy::None, _) => say(Status::False, reason::NONE_FOUND, String::new()),
        (Legacy::Chains, _) => {
            let message = format!(
                "found rules of kube-proxy in mode iptables, in the legacy variant; {kube_proxy}; {}",
                Mechanism::Iptables.precedence()
            );
            say(Status::True, reason::KUBE_PROXY_IPTABLES, message)
        }
        (Legacy::Unreadable, KubeProxy::Answers { .. }) => {
            let message = format!(
                "the legacy variant of iptables has a table nat that cannot be read, and {kube_proxy}; {}",
                Mechanism::Iptables.precedence()
            );
            say(Status::True, reason::KUBE_PROXY_IPTABLES, message)
        }
        (Legacy::Unreadable, KubeProxy::Silent) => {
            let message = "the legacy variant of iptables has a table nat, which cannot be read";
            say(
                Status::Unknown,
                reason::LEGACY_RULES_UNREAD,
                message.to_owned(),
            )
        }
    }
}

// === impl Found ===

impl Found {
    /// Whether no other proxy has anything here.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Found::default()
    }

    /// What can be removed from here. Beside virtual servers the chains of iptables stay, too: they
    /// masquerade for them.
    pub(crate) fn removable(&self) -> Vec<(Mechanism, Family)> {
        let ipvs = self.rules.contains_key(&Mechanism::Ipvs);
        let rules = self.rules.iter().filter(|(mechanism, _)| match mechanism {
            Mechanism::Nftables => true,
            Mechanism::Iptables => !ipvs,
            Mechanism::Ipvs => false,
        });
        rules
            .flat_map(|(mechanism, families)| families.iter().map(|family| (*mechanism, *family)))
            .collect()
    }
}

// === impl Mechanism ===

impl Mechanism {
    fn reason(self) -> Reason {
        match self {
            Mechanism::Nftables => reason::KUBE_PROXY_NFTABLES,
            Mechanism::Iptables => reason::KUBE_PROXY_IPTABLES,
            Mechanism::Ipvs => reason::KUBE_PROXY_IPVS,
        }
    }

    /// Who serves new connections. Our chains of type nat are ahead of kube-proxy's in mode nftables, and
    /// at its priority in mode iptables. Those at the same priority are asked in the reverse order of
    /// their coming, and the first that redirects a connection decides (`nf_hook_entries_grow` in
    /// net/netfilter/core.c, `nf_nat_inet_fn` in net/netfilter/nf_nat_core.c).
    fn precedence(self) -> &'static str {
        match self {
            Mechanism::Nftables | Mechanism::Iptables => {
                "new connections follow Signpost's rules in mode nftables, and in mode iptables \
                 the rules whose chains were attached last; established connections are \
                 unaffected"
            }
            Mechanism::Ipvs => {
                "new connections follow Signpost's rules, which come before virtual servers; \
                 established connections are unaffected"
            }
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mechanism::Nftables => "nftables",
            Mechanism::Iptables => "iptables",
            Mechanism::Ipvs => "ipvs",
        })
    }
}

#[cfg(test)]
mod tests;
