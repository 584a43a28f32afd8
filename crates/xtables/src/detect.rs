//! Which of the two kernels behind `iptables` others use here.
//!
//! Both are asked for every packet, so that rules in both work together, and nobody who lists one
//! sees the other. Ours belong where everybody else's are.

use std::error::Error;
use std::fmt;
use std::io;

use netlink::nf_tables::Family as NfFamily;
use netlink::{ObserveError, Socket};
use rustix::io::Errno;

use crate::legacy::blob::Table;
use crate::legacy::kernel::Kernel;
use crate::{Family, Variant};

/// The tables of iptables. Those of other names are not iptables' own, even in nf_tables.
const TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
/// Where the kubelet shows which variant it uses.
const HINT_TABLE: &str = "mangle";
/// Chains of the kubelet without rules: the hint that it gives to others (KEP-3178), and the one by
/// which it notices that somebody has flushed its rules.
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

/// What there is in each variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// In nf_tables, as far as iptables-nft would list it.
    pub nf_tables: Presence,
    /// In the tables of before.
    pub legacy: Presence,
}

/// What there is in one variant, of both families together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Presence {
    /// Whether the kernel has it, as far as is known without making it load what it has not.
    pub offered: bool,
    /// How many rules of others there are. Chains without rules, and policies, do not count.
    pub rules: usize,
    /// Whether the kubelet's hint is there.
    pub kubelet: bool,
    /// Whether there is a chain of ours.
    pub ours: bool,
}

/// Which variant ours belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The variant.
    pub variant: Variant,
    /// Why this one.
    pub why: Why,
    /// That others use both, which no choice of ours mends.
    pub split: Option<Split>,
}

/// What decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The kubelet uses it, and not the other.
    Kubelet,
    /// Others have more rules there.
    MoreRules,
    /// Nobody uses one more than the other, and the kernel has nf_tables.
    Preferred,
    /// The kernel has nothing else.
    Alone,
}

/// How many rules others have in each variant: none of both is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// In nf_tables.
    pub nf_tables: usize,
    /// In the tables of before.
    pub legacy: usize,
}

/// Why it is not known what others use.
#[derive(Debug, thiserror::Error)]
#[error("failed to look for the rules of others in the {variant} tables of iptables ({family})")]
pub struct DetectError {
    /// The variant.
    pub variant: Variant,
    /// The family.
    pub family: Family,
    /// Why.
    pub source: Box<dyn Error + Send + Sync>,
}

/// Looks at both variants in this thread's network namespace. Chains whose name begins with `prefix`
/// are ours. Reads every rule once; makes no table, and changes nothing.
pub fn observe_variants(prefix: &str) -> Result<Found, DetectError> {
    let mut found = Found::default();
    for family in [Family::Ipv4, Family::Ipv6] {
        let failed = |variant| {
            move |source| DetectError {
                variant,
                family,
                source,
            }
        };
        let nf_tables = observe_nf_tables(family, prefix).map_err(failed(Variant::NfTables))?;
        let legacy = observe_legacy(family, prefix).map_err(failed(Variant::Legacy))?;
        found.nf_tables = found.nf_tables.and(nf_tables);
        found.legacy = found.legacy.and(legacy);
    }
    Ok(found)
}

fn observe_nf_tables(
    family: Family,
    prefix: &str,
) -> Result<Presence, Box<dyn Error + Send + Sync>> {
    let family = match family {
        Family::Ipv4 => NfFamily::Ip,
        Family::Ipv6 => NfFamily::Ip6,
    };
    let mut presence = Presence::default();
    let mut socket = match Socket::open() {
        Ok(socket) => socket,
        Err(error) if is_unsupported(error.source()) => return Ok(presence),
        Err(error) => return Err(error.into()),
    };
    for table in TABLES {
        match socket.observe_table(family, table) {
            Ok(true) => {}
            Ok(false) => {
                presence.offered = true;
                continue;
            }
            Err(ObserveError::Refused { source, .. }) if is_unsupported(Some(&source)) => {
                return Ok(presence);
            }
            Err(error) => return Err(error.into()),
        }
        presence.offered = true;
        let chains = socket.observe_foreign_chains(family, table)?;
        presence.ours |= chains.iter().any(|chain| chain.name.starts_with(prefix));
        presence.kubelet |=
            table == HINT_TABLE && chains.iter().any(|chain| HINTS.contains(&&*chain.name));
        let of_others = socket.observe_chosen_rules(family, table, None, |rule| {
            let into_ours = rule.leads_to().is_some_and(|to| to.starts_with(prefix));
            (!rule.chain().starts_with(prefix) && !into_ours).then_some(())
        })?;
        presence.rules += of_others.len();
    }
    Ok(presence)
}

fn observe_legacy(family: Family, prefix: &str) -> Result<Presence, Box<dyn Error + Send + Sync>> {
    let mut presence = Presence::default();
    let kernel = match Kernel::open(family) {
        Ok(kernel) => kernel,
        Err(error) if is_unsupported(Some(&error)) => return Ok(presence),
        Err(error) => return Err(error.into()),
    };
    let Some(names) = kernel.observe_names()? else {
        return Ok(presence);
    };
    presence.offered = true;
    for name in names.iter().filter(|name| TABLES.contains(&name.as_str())) {
        let snapshot = kernel.observe_snapshot(name)?;
        match Table::parse(family, &snapshot.info, snapshot.entries()) {
            Ok(table) => presence = presence.and(legacy_table(&table, name, prefix)),
            // Somebody keeps something there that iptables could not read either.
            Err(_) => presence.rules += snapshot.info.entries as usize,
        }
    }
    Ok(presence)
}

fn legacy_table(table: &Table<'_>, name: &str, prefix: &str) -> Presence {
    let is_hint = |chain: &[u8]| HINTS.iter().any(|hint| hint.as_bytes() == chain);
    let mut presence = Presence::default();
    for chain in &table.chains {
        if chain.begins_with(prefix) {
            presence.ours = true;
            continue;
        }
        presence.kubelet |= name == HINT_TABLE && chain.name().is_some_and(is_hint);
        let rules = chain.rules.clone();
        let of_others = rules.filter(|rule| !table.leads_to_prefix(*rule, prefix));
        presence.rules += of_others.count();
    }
    presence
}

/// Whether the kernel has been built without what was asked for, or has not loaded it.
fn is_unsupported(error: Option<&(dyn Error + 'static)>) -> bool {
    let error = error.and_then(|error| error.downcast_ref::<io::Error>());
    matches!(
        error.and_then(Errno::from_io_error),
        Some(
            Errno::AFNOSUPPORT
                | Errno::PROTONOSUPPORT
                | Errno::NOPROTOOPT
                | Errno::OPNOTSUPP
                // nfnetlink does not know the subsystem.
                | Errno::INVAL
        )
    )
}

// === impl Found ===

impl Found {
    /// Where ours belong: where the kubelet's are, which every other component of the node is told
    /// to follow; else where more rules of others are; else in nf_tables, where the kernel has it.
    pub fn choose(&self) -> Choice {
        let Found { nf_tables, legacy } = self;
        let (variant, why) = match (nf_tables.kubelet, legacy.kubelet) {
            (true, false) => (Variant::NfTables, Why::Kubelet),
            (false, true) => (Variant::Legacy, Why::Kubelet),
            _ if nf_tables.rules > legacy.rules => (Variant::NfTables, Why::MoreRules),
            _ if nf_tables.rules < legacy.rules => (Variant::Legacy, Why::MoreRules),
            _ if !nf_tables.offered => (Variant::Legacy, Why::Alone),
            _ if !legacy.offered => (Variant::NfTables, Why::Alone),
            _ => (Variant::NfTables, Why::Preferred),
        };
        let split = (nf_tables.rules > 0 && legacy.rules > 0).then_some(Split {
            nf_tables: nf_tables.rules,
            legacy: legacy.rules,
        });
        Choice {
            variant,
            why,
            split,
        }
    }

    /// What there is in `variant`.
    pub fn of(&self, variant: Variant) -> Presence {
        match variant {
            Variant::NfTables => self.nf_tables,
            Variant::Legacy => self.legacy,
        }
    }
}

// === impl Presence ===

impl Presence {
    fn and(self, other: Presence) -> Presence {
        Presence {
            offered: self.offered || other.offered,
            rules: self.rules + other.rules,
            kubelet: self.kubelet || other.kubelet,
            ours: self.ours || other.ours,
        }
    }
}

// === impl Why ===

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Kubelet => "the kubelet uses it",
            Why::MoreRules => "others have more rules there",
            Why::Preferred => "others use neither more than the other",
            Why::Alone => "the kernel offers no other",
        })
    }
}

// === impl Split ===

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Split { nf_tables, legacy } = self;
        write!(
            f,
            "others have {nf_tables} rules in iptables-nft and {legacy} in iptables-legacy"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(rules: usize, kubelet: bool) -> Presence {
        Presence {
            offered: true,
            rules,
            kubelet,
            ours: false,
        }
    }

    /// Failure story T36 (cilium#28260, kube-router#1069).
    #[test]
    fn t36_the_variant_of_the_others_is_chosen_and_a_split_is_told() {
        let chosen = |nf_tables, legacy| {
            let Choice {
                variant,
                why,
                split,
            } = Found { nf_tables, legacy }.choose();
            (variant, why, split.is_some())
        };
        let none = presence(0, false);
        let absent = Presence::default();
        let (nf, legacy) = (Variant::NfTables, Variant::Legacy);
        for (found, expected) in [
            ((none, none), (nf, Why::Preferred, false)),
            ((absent, none), (legacy, Why::Alone, false)),
            ((none, absent), (nf, Why::Alone, false)),
            ((absent, absent), (legacy, Why::Alone, false)),
            ((none, presence(0, true)), (legacy, Why::Kubelet, false)),
            (
                (presence(9, false), presence(2, true)),
                (legacy, Why::Kubelet, true),
            ),
            (
                (presence(9, true), presence(2, true)),
                (nf, Why::MoreRules, true),
            ),
            ((none, presence(1, false)), (legacy, Why::MoreRules, false)),
            (
                (presence(3, false), presence(3, false)),
                (nf, Why::Preferred, true),
            ),
        ] {
            assert_eq!(chosen(found.0, found.1), expected, "{found:?}");
        }
    }

    #[test]
    fn a_split_is_told_with_its_numbers() {
        let found = Found {
            nf_tables: presence(12, false),
            legacy: presence(3, false),
        };
        let split = found.choose().split.expect("both hold rules of others");
        assert_eq!(
            split.to_string(),
            "others have 12 rules in iptables-nft and 3 in iptables-legacy"
        );
    }
}
