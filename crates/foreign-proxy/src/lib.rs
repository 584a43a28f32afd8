//! Other service proxies on this node: whether their rules are in the kernel, and what that means.
//!
//! kube-proxy leaves its rules behind when it ends. The agent therefore scans the kernel for rules,
//! and checks separately whether the kube-proxy process runs. A kubelet has its own chains in the
//! iptables tables (`KUBE-KUBELET-CANARY`, `KUBE-FIREWALL`, before 1.28 also `KUBE-MARK-MASQ` and
//! `KUBE-POSTROUTING`): these alone do not indicate a proxy.

pub mod host_ports;
pub mod kernel;
pub mod legacy_chains;
pub mod node_ports;
pub mod process;
mod rules_writer;
pub mod services;
pub mod virtual_servers;

use std::collections::{BTreeMap, BTreeSet};

use crds::condition::reason::{self, Reason};
use crds::condition::{self, Finding, Status};
use dataplane::Family;
pub use dataplane::Mode;
use netlink::Socket;
use runtime::chain;
use xtables::Variant;

use process::{KubeProxy, observe_process};
pub use rules_writer::RulesWriter;
use virtual_servers::VirtualServers;

/// The header that marks an answer of `/debug` as Signpost's, and not that of another program on the
/// port.
pub const ANSWERED_BY: &str = "x-answered-by";

/// What kube-proxy has in the legacy variant of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Legacy {
    /// Nothing.
    #[default]
    None,
    /// There is a table `nat`, and it cannot be read.
    Unreadable,
    /// Chains of kube-proxy's mode iptables.
    Chains,
}

/// The rules of other proxies that a scan found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The families for which rules of each mode were found. kube-proxy has tables `ip
    /// kube-proxy` and `ip6 kube-proxy` in mode nftables, chains `KUBE-…` in tables that other
    /// programs use as well in mode iptables, and virtual servers, with their addresses on a dummy
    /// device, in mode ipvs.
    pub rules: BTreeMap<Mode, BTreeSet<Family>>,
    /// What it found in the legacy variant.
    pub legacy: Legacy,
    /// The families that have chains there.
    pub legacy_families: BTreeSet<Family>,
    /// Whether a takeover has ended virtual servers, and the agent is still to remove some. They are
    /// then not among the rules.
    pub ending: Ending,
}

/// Whether virtual servers remain that a takeover has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Ending {
    /// None remain.
    #[default]
    Complete,
    /// Each is removed once its connections have ended.
    Pending,
}

/// The result of the last scan for other proxies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ForeignProxyScan {
    /// No scan has run yet.
    #[default]
    None,
    /// The scan succeeded: the rules it found, and whether a kube-proxy runs.
    Seen(Found, KubeProxy),
    /// The kernel refused the scan, with the reason.
    Refused(String),
}

/// Scans for other proxies, through a socket that stays open.
#[derive(Debug, Default)]
pub struct Scanner {
    /// Kept, because while a socket is closed the kernel holds the lock of nf_tables for an RCU grace period.
    socket: Option<Socket>,
}

/// Scans once, through a socket that is closed afterwards.
pub fn observe() -> ForeignProxyScan {
    Scanner::default().observe()
}

/// Returns the condition `ForeignProxyDetected`, or `None` before the first scan. Pure.
pub fn finding(scan: &ForeignProxyScan) -> Option<Finding> {
    let say = |status, reason: Reason, message| {
        let kind = condition::FOREIGN_PROXY_DETECTED;
        Some(Finding::new(kind, status, reason, message))
    };
    let (found, kube_proxy) = match scan {
        ForeignProxyScan::None => return None,
        ForeignProxyScan::Refused(error) => {
            return say(Status::Unknown, reason::RULES_UNREADABLE, error.clone());
        }
        ForeignProxyScan::Seen(found, kube_proxy) => (found, kube_proxy),
    };
    // Mode ipvs has iptables chains in addition to its virtual servers.
    if let Some((mode, families)) = found.rules.last_key_value() {
        let families: Vec<String> = families.iter().map(Family::to_string).collect();
        let families = families.join(" and ");
        let message = format!(
            "found rules of kube-proxy in mode {mode} for {families}; {kube_proxy}; {}",
            precedence(*mode)
        );
        return say(Status::True, reason_of(*mode), message);
    }
    if found.ending == Ending::Pending {
        let message = "virtual servers of kube-proxy are left from before the takeover: each is removed \
                       when its last connection has ended";
        return say(Status::False, reason::KUBE_PROXY_ENDING, message.to_owned());
    }
    match (found.legacy, kube_proxy) {
        (Legacy::None, _) => say(Status::False, reason::NONE_FOUND, String::new()),
        (Legacy::Chains, _) => {
            let message = format!(
                "found rules of kube-proxy in mode iptables, in the legacy variant; {kube_proxy}; {}",
                precedence(Mode::Iptables)
            );
            say(Status::True, reason::KUBE_PROXY_IPTABLES, message)
        }
        (Legacy::Unreadable, KubeProxy::Answers { .. }) => {
            let message = format!(
                "the legacy variant of iptables has a table nat that cannot be read, and {kube_proxy}; {}",
                precedence(Mode::Iptables)
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

/// Returns the reason of the condition when kube-proxy has rules of `mode`.
fn reason_of(mode: Mode) -> Reason {
    match mode {
        Mode::Nftables => reason::KUBE_PROXY_NFTABLES,
        Mode::Iptables => reason::KUBE_PROXY_IPTABLES,
        Mode::Ipvs => reason::KUBE_PROXY_IPVS,
    }
}

/// Says which proxy serves new connections. Signpost's chains of type nat come before
/// kube-proxy's in mode nftables, and have kube-proxy's priority in mode iptables. The kernel
/// calls chains of equal priority in the reverse order of their registration, and the first
/// chain that redirects a connection decides (`nf_hook_entries_grow` in net/netfilter/core.c,
/// `nf_nat_inet_fn` in net/netfilter/nf_nat_core.c).
fn precedence(mode: Mode) -> &'static str {
    match mode {
        Mode::Nftables | Mode::Iptables => {
            "new connections follow Signpost's rules in mode nftables, and in mode iptables the \
             rules whose chains were attached last; established connections are unaffected"
        }
        Mode::Ipvs => {
            "new connections follow Signpost's rules, which come before virtual servers; \
             established connections are unaffected"
        }
    }
}

// === impl Scanner ===

impl Scanner {
    /// Scans now.
    pub fn observe(&mut self) -> ForeignProxyScan {
        match kernel::observe(&mut self.socket) {
            Err(error) => ForeignProxyScan::Refused(chain(&error).to_string()),
            // Without rules of kube-proxy, its process does not matter.
            Ok(found) if found.is_nothing() => ForeignProxyScan::Seen(found, KubeProxy::Silent),
            Ok(found) => ForeignProxyScan::Seen(found, observe_process()),
        }
    }
}

// === impl Found ===

impl Found {
    /// Returns whether the scan found nothing of another proxy.
    pub fn is_nothing(&self) -> bool {
        *self == Found::default()
    }

    /// Returns whether no rules of another proxy are left to be removed. Virtual servers that end do
    /// not count, and neither do legacy tables that cannot be read: most never held kube-proxy's.
    pub fn is_taken_over(&self) -> bool {
        self.rules.is_empty() && self.legacy != Legacy::Chains
    }

    /// Returns the rules, in the order in which a takeover removes them: virtual servers are marked
    /// after the chains that lead to them.
    pub fn removable(&self) -> Vec<(Mode, Family)> {
        let rules = self.rules.iter();
        rules
            .flat_map(|(mode, families)| families.iter().map(|family| (*mode, *family)))
            .collect()
    }

    /// Returns the mode that kube-proxy uses for `family`. Mode ipvs has iptables chains in addition
    /// to its virtual servers.
    pub fn mode(&self, family: Family) -> Option<Mode> {
        let rules = self.rules.iter();
        let of_family = rules.filter(|(_, families)| families.contains(&family));
        let legacy = self.has_chains(Variant::Legacy, family);
        let last = of_family.map(|(mode, _)| *mode).next_back();
        last.or(legacy.then_some(Mode::Iptables))
    }

    /// Returns whether this variant of iptables has chains of kube-proxy for `family`.
    pub fn has_chains(&self, variant: Variant, family: Family) -> bool {
        let families = match variant {
            Variant::NfTables => self.rules.get(&Mode::Iptables),
            Variant::Legacy => Some(&self.legacy_families),
        };
        families.is_some_and(|families| families.contains(&family))
    }

    /// Notes the virtual servers of a scan that has found everything else.
    fn note_virtual_servers(&mut self, found: VirtualServers) {
        // kube-proxy creates its chains before its virtual servers, so it has returned if they exist.
        let has_chains = self.rules.contains_key(&Mode::Iptables) || self.legacy == Legacy::Chains;
        match found {
            VirtualServers::None => {}
            VirtualServers::Ending if !has_chains => self.ending = Ending::Pending,
            VirtualServers::Ending | VirtualServers::Present => {
                self.rules.insert(Mode::Ipvs, Family::ALL.into());
            }
        }
    }
}

#[cfg(test)]
mod tests;
