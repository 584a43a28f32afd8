//! Detects which of the two iptables variants other programs use on this node.
//!
//! Each packet traverses the rules of both variants, and no program that lists one shows the other.
//! Signpost's rules belong in the variant that the other programs use.

mod look;
mod variant_detector;

use std::error::Error;
use std::fmt;

use netlink::Socket;

use crate::{Family, Fault, Variant};
pub use variant_detector::VariantDetector;

/// The tables of iptables. A table with any other name, even in nf_tables, is not one of iptables.
const TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
/// The table in which the kubelet shows which variant it uses.
const HINT_TABLE: &str = "mangle";
/// Empty chains that the kubelet creates: its hint to other programs (KEP-3178), and its canary, by
/// which it notices that its rules were flushed.
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

/// What was found in each variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// The nf_tables variant, as far as iptables-nft would list it.
    pub nf_tables: Presence,
    /// The legacy variant.
    pub legacy: Presence,
}

/// What was found in one variant, both families together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Presence {
    /// Whether the kernel has the variant, as far as is known without loading a module.
    pub offered: bool,
    /// The number of rules of other programs. Empty chains and policies do not count.
    pub rules: usize,
    /// Whether the kubelet's hint exists.
    pub kubelet: bool,
    /// Whether a chain of Signpost exists.
    pub own_chains: OwnChains,
}

/// Whether a chain of Signpost exists; of two families, the greater value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum OwnChains {
    /// No chain exists.
    #[default]
    None,
    /// Not everything could be read, and no rule leads packets to a chain of Signpost.
    Unlikely,
    /// Nothing could be read.
    Unknown,
    /// Nothing could be read, but the table exists, so a program has used it.
    Likely,
    /// A chain exists.
    Present,
}

/// The variant for Signpost's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The variant.
    pub variant: Variant,
    /// Why this variant.
    pub why: VariantReason,
    /// Set if other programs use both variants, which Signpost cannot resolve.
    pub split: Option<Split>,
}

/// The reason for a choice of variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariantReason {
    /// The kubelet uses this variant and not the other.
    Kubelet,
    /// Other programs have more rules in this variant.
    MoreRules,
    /// Other programs have equally many rules in both variants, and the kernel has nf_tables.
    Preferred,
    /// The kernel has only this variant.
    Alone,
}

/// The number of rules of other programs in each variant, if neither is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// The nf_tables variant.
    pub nf_tables: usize,
    /// The legacy variant.
    pub legacy: usize,
}

/// The rules of other programs could not be counted, or not all of them.
#[derive(Debug, thiserror::Error)]
#[error(
    "failed to count the rules of other programs in the {variant} tables of iptables ({family})"
)]
pub struct DetectError {
    /// The variant.
    pub variant: Variant,
    /// The family.
    pub family: Family,
    /// How to react: [`Fault::Passing`] or [`Fault::Impossible`].
    pub fault: Fault,
    /// What was found nonetheless. Rules that could not be read are not counted.
    pub known: Found,
    /// The cause.
    pub source: Box<dyn Error + Send + Sync>,
}

/// Reads both variants in this thread's network namespace. Chains whose names begin with `prefix`
/// belong to Signpost. Reads every rule of other programs once; creates no table and changes
/// nothing. Retries temporary failures briefly.
pub fn observe_variants(prefix: &str) -> Result<Found, DetectError> {
    observe_through(prefix, &mut None)
}

/// The same through a socket that is open, or that is opened and stays so.
fn observe_through(prefix: &str, socket: &mut Option<Socket>) -> Result<Found, DetectError> {
    let mut found = Found::default();
    let mut failed: Option<DetectError> = None;
    for variant in [Variant::NfTables, Variant::Legacy] {
        for family in [Family::Ipv4, Family::Ipv6] {
            let seen = look::observe(variant, family, prefix, socket);
            let presence = seen.unwrap_or_else(|look::Failure { fault, source }| {
                // Report a temporary failure rather than a permanent one: waiting may resolve it.
                let is_reported = failed.as_ref().is_some_and(|earlier| {
                    earlier.fault == Fault::Passing || fault != Fault::Passing
                });
                if !is_reported {
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
                    own_chains: look::observe_traces(variant, family, prefix),
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
    /// Chooses the variant for Signpost's rules: the kubelet's, which every other component of the
    /// node should follow; otherwise the one with more rules of other programs; otherwise nf_tables
    /// if the kernel has it.
    pub fn choose(&self) -> Choice {
        let Found { nf_tables, legacy } = self;
        let (variant, why) = match (nf_tables.kubelet, legacy.kubelet) {
            (true, false) => (Variant::NfTables, VariantReason::Kubelet),
            (false, true) => (Variant::Legacy, VariantReason::Kubelet),
            _ if nf_tables.rules > legacy.rules => (Variant::NfTables, VariantReason::MoreRules),
            _ if nf_tables.rules < legacy.rules => (Variant::Legacy, VariantReason::MoreRules),
            _ if !nf_tables.offered => (Variant::Legacy, VariantReason::Alone),
            _ if !legacy.offered => (Variant::NfTables, VariantReason::Alone),
            _ => (Variant::NfTables, VariantReason::Preferred),
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

    /// The variant that holds Signpost's rules, as far as is known when not everything could be
    /// read: a failed read is no reason to move rules. `None` if one variant is unknown and
    /// Signpost's rules are not known to be in either.
    pub fn choose_without_counting(&self) -> Option<Variant> {
        let Found { nf_tables, legacy } = self;
        match (nf_tables.own_chains, legacy.own_chains) {
            (OwnChains::Present, _) => Some(Variant::NfTables),
            (_, OwnChains::Present) => Some(Variant::Legacy),
            (OwnChains::Unknown, _) | (_, OwnChains::Unknown) => None,
            (_, OwnChains::Likely) => Some(Variant::Legacy),
            (OwnChains::Likely, _) => Some(Variant::NfTables),
            (OwnChains::None | OwnChains::Unlikely, OwnChains::None | OwnChains::Unlikely) => {
                Some(self.choose().variant)
            }
        }
    }

    /// The variants that may hold rules of Signpost.
    pub fn suspected(&self) -> Vec<Variant> {
        let mut variants = vec![Variant::NfTables, Variant::Legacy];
        variants.retain(|variant| self.of(*variant).own_chains != OwnChains::None);
        variants
    }

    /// What was found in `variant`.
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
            own_chains: self.own_chains.max(other.own_chains),
        }
    }
}

// === impl VariantReason ===

impl fmt::Display for VariantReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VariantReason::Kubelet => "the kubelet uses it",
            VariantReason::MoreRules => "other programs have more rules there",
            VariantReason::Preferred => "other programs use neither more than the other",
            VariantReason::Alone => "the kernel offers no other",
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
