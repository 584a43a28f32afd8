//! A firewall of the host that drops what it does not know: in this mode packets to Services are delivered to
//! the node before IPVS takes them, so they pass hook input.

use dataplane::Family;
use netlink::nf_tables::Entry;
use netlink::{ObserveError, Socket};

/// The table and the chain of the iptables programs.
const TABLE: &str = "filter";
const CHAIN: &str = "INPUT";

/// What hook input does to packets that no rule of the host's firewall accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum InputPolicy {
    /// They pass, or a rule there compares marks, as one does that accepts the mode's.
    #[default]
    Passes,
    /// They are dropped.
    Drops,
}

// === impl InputPolicy ===

impl InputPolicy {
    /// Reads the chain of the iptables programs (variant nf_tables) of `family`.
    pub(super) fn observe(
        socket: &mut Socket,
        family: Family,
    ) -> Result<InputPolicy, ObserveError> {
        let chains = socket.observe_foreign_chains(family, TABLE)?;
        let mut chains = chains.iter();
        let drops = chains.any(|chain| &*chain.name == CHAIN && chain.entry == Entry::HookDrop);
        if !drops {
            return Ok(InputPolicy::Passes);
        }
        let with_mark = |rule: &netlink::nf_tables::ListedRule<'_>| rule.reads_mark().then_some(());
        let rules = socket.observe_chosen_rules(family, TABLE, Some(CHAIN), with_mark)?;
        Ok(match rules.is_empty() {
            true => InputPolicy::Drops,
            false => InputPolicy::Passes,
        })
    }

    /// What it takes away from the mode.
    pub(super) fn limitation(self, family: Family) -> Option<String> {
        let program = match family {
            Family::Ipv4 => "iptables",
            Family::Ipv6 => "ip6tables",
        };
        match self {
            InputPolicy::Passes => None,
            InputPolicy::Drops => Some(format!(
                "{family}: chain {CHAIN} of table {TABLE} drops what none of its rules accepts, and packets to Services \
                 pass it in mode ipvs: {program} -I {CHAIN} -m mark --mark 0x53400000/0xfff00000 -j ACCEPT"
            )),
        }
    }
}
