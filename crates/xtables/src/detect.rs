//! Which of the two variants of iptables other programs use here.
//!
//! Each packet traverses the rules of both, and no program that lists one shows the other. Signpost's
//! rules belong where those of the other programs are.

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
/// Chains of the kubelet without rules: the hint that it gives to other programs (KEP-3178), and the
/// one by which it notices that its rules were flushed.
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
    /// How many rules other programs have. Chains without rules, and policies, do not count.
    pub rules: usize,
    /// Whether the kubelet's hint is there.
    pub kubelet: bool,
    /// Whether there is a chain of Signpost.
    pub ours: Ours,
}

/// Whether there is a chain of Signpost; of two families, the greater value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Ours {
    /// There is none.
    #[default]
    None,
    /// Not all could be read, and no packet is led to one.
    Unlikely,
    /// Nothing could be read.
    Unknown,
    /// Nothing could be read, but the table exists, so that a program has used it.
    Likely,
    /// There is one.
    Present,
}

/// The variant for Signpost's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The variant.
    pub variant: Variant,
    /// Why this one.
    pub why: Why,
    /// Set if other programs use both, which no choice of Signpost can resolve.
    pub split: Option<Split>,
}

/// What decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The kubelet uses it, and not the other.
    Kubelet,
    /// Others have more rules there.
    MoreRules,
    /// Other programs use neither more than the other, and the kernel has nf_tables.
    Preferred,
    /// The kernel has nothing else.
    Alone,
}

/// How many rules other programs have in each variant: neither is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// In nf_tables.
    pub nf_tables: usize,
    /// In the tables of before.
    pub legacy: usize,
}

/// Why the rules of other programs could not be counted, or not all of them.
#[derive(Debug, thiserror::Error)]
#[error(
    "failed to count the rules of other programs in the {variant} tables of iptables ({family})"
)]
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

/// Reads both variants in this thread's network namespace. Chains whose name begins with `prefix` are
/// Signpost's. Reads every rule of other programs once; creates no table, and changes nothing. Retries
/// temporary failures for a moment.
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
    /// The variant for Signpost's rules: the kubelet's, which every other component of the node should
    /// follow; else the one with more rules of other programs; else nf_tables, where the kernel has it.
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

    /// Where Signpost's rules are, as far as that is known, when not all could be read: a failed read is
    /// no reason to move rules. `None` where one variant is unknown and the other has none.
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

    /// The variants that may hold rules of Signpost.
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
            Why::MoreRules => "other programs have more rules there",
            Why::Preferred => "other programs use neither more than the other",
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
            "other programs have {nf_tables} rules in iptables-nft and {legacy} in iptables-legacy"
        )
    }
}

#[cfg(test)]
mod tests;
