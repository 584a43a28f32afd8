//! Which of the two kernels behind `iptables` others use here.
//!
//! Both are asked for every packet, so that rules in both work together, and nobody who lists one
//! sees the other. Ours belong where everybody else's are.

mod look;
mod lookout;

use std::error::Error;
use std::fmt;

use crate::{Family, Fault, Variant};
pub use lookout::Lookout;

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
    pub ours: Ours,
}

/// Whether there is a chain of ours, in the order in which one family speaks for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Ours {
    /// There is none.
    #[default]
    None,
    /// Not all could be read, and no packet is led to one.
    Unlikely,
    /// Nothing could be read.
    Unknown,
    /// Nothing could be read, and the table is there, which somebody must have asked for.
    Likely,
    /// There is one.
    Present,
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

/// Why it is not known what others use, or not of all.
#[derive(Debug, thiserror::Error)]
#[error("failed to look for the rules of others in the {variant} tables of iptables ({family})")]
pub struct DetectError {
    /// The variant.
    pub variant: Variant,
    /// The family.
    pub family: Family,
    /// What to do: [`Fault::Passing`] or [`Fault::Impossible`].
    pub fault: Fault,
    /// What is known nonetheless. Of what could not be read no rule is counted.
    pub known: Found,
    /// Why.
    pub source: Box<dyn Error + Send + Sync>,
}

/// Looks at both variants in this thread's network namespace. Chains whose name begins with `prefix`
/// are ours. Reads every rule of others once; makes no table, and changes nothing. What fails and
/// passes by itself is tried again for a moment.
pub fn observe_variants(prefix: &str) -> Result<Found, DetectError> {
    let mut found = Found::default();
    let mut failed: Option<DetectError> = None;
    for variant in [Variant::NfTables, Variant::Legacy] {
        for family in [Family::Ipv4, Family::Ipv6] {
            let seen = look::observe(variant, family, prefix);
            let presence = seen.unwrap_or_else(|look::Failure { fault, source }| {
                // One that passes is what can be waited for.
                let is_told = failed.as_ref().is_some_and(|earlier| {
                    earlier.fault == Fault::Passing || fault != Fault::Passing
                });
                if !is_told {
                    failed = Some(DetectError {
                        variant,
                        family,
                        fault,
                        known: Found::default(),
                        source,
                    });
                }
                Presence {
                    offered: fault == Fault::Passing,
                    ours: look::observe_traces(variant, family, prefix),
                    ..Presence::default()
                }
            });
            let known = match variant {
                Variant::NfTables => &mut found.nf_tables,
                Variant::Legacy => &mut found.legacy,
            };
            *known = known.and(presence);
        }
    }
    match failed {
        None => Ok(found),
        Some(error) => Err(DetectError {
            known: found,
            ..error
        }),
    }
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

    /// Where ours are, as far as that is known, when not all could be read: rules are not to be moved
    /// for a look that failed. `None` where nothing is known of a variant and the other holds nothing.
    pub fn choose_without_counting(&self) -> Option<Variant> {
        let Found { nf_tables, legacy } = self;
        match (nf_tables.ours, legacy.ours) {
            (Ours::Present, _) => Some(Variant::NfTables),
            (_, Ours::Present) => Some(Variant::Legacy),
            (Ours::Unknown, _) | (_, Ours::Unknown) => None,
            (_, Ours::Likely) => Some(Variant::Legacy),
            (Ours::Likely, _) => Some(Variant::NfTables),
            (Ours::None | Ours::Unlikely, Ours::None | Ours::Unlikely) => {
                Some(self.choose().variant)
            }
        }
    }

    /// The variants of which it is not known that they hold nothing of ours.
    pub fn suspected(&self) -> Vec<Variant> {
        let mut variants = vec![Variant::NfTables, Variant::Legacy];
        variants.retain(|variant| self.of(*variant).ours != Ours::None);
        variants
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
            ours: self.ours.max(other.ours),
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
mod tests;
