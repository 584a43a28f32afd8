//! Restricts the sources that may connect to a load-balancer IP.
//!
//! Ranges with the same prefix length form one set, and a source is looked up in each set with that
//! many of its bits. One interval set could hold them all, but the kernel copies such a set for
//! every change.

use std::sync::Arc;

use dataplane::Family;
use netlink::nf_tables::{Expression, Register, Verdict};

use crate::contents::{ChainWithRules, Chains};
use crate::key::{FrontendFields, name};
use crate::packet_counters::ALLOW_SOURCES;
use crate::parts::{Address, counted, load_frontend, load_prefix, rule, verdict};
use crate::refusals::regular;

/// The chain that leads packets to frontends with source ranges to [`ALLOW_SOURCES`].
pub const RESTRICT: &str = "restrict";

/// Which frontends have their new source ranges written in transactions ahead of that of the rules. A
/// frontend of which something is replaced or removed is never one of them: its address may pass to
/// another Service. Neither is one that is written with the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangesAhead {
    /// None.
    Nowhere,
    /// Those that become restricted: their ranges act at once as in the end, and keep out sources that the
    /// new rules would serve.
    WhereRestricted,
    /// These, and those that get nothing but ranges, if no element is written with the rules: sources that
    /// these ranges allow are served at once.
    WhereServed,
    /// All: no packet is compared with ranges until the rules are back.
    Everywhere,
}

/// What an element that differs is to the source ranges of its frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangePart {
    /// It says that the frontend has ranges.
    Entry,
    /// It allows a range.
    Range,
    /// Any other that is new.
    Other,
    /// It is replaced or removed.
    Replaced,
    /// It is written in the transaction of the rules.
    WithRules,
}

/// Which source ranges are written ahead of the rules from `observed` to `desired`, chains of a table that
/// exists. Rules that look ranges up, or serve, would otherwise be back before ranges that another
/// program has removed as well. Chains `entrances` only lead to [`RESTRICT`].
pub fn ranges_ahead(
    observed: &Arc<Chains>,
    desired: &Arc<Chains>,
    entrances: &[&str],
) -> RangesAhead {
    if Arc::ptr_eq(observed, desired) {
        return RangesAhead::Nowhere;
    }
    let written = desired.iter().filter(|(name, chain)| {
        let old = observed.get(*name);
        old.map_or(chain.chain.hook.is_some(), |old| old != *chain)
    });
    let written: Vec<&str> = written.map(|(name, _)| &**name).collect();
    let is_lost = |name: &str| {
        let chain = observed.get(name);
        chain.is_none_or(|chain| chain.rules.is_empty())
    };
    let way = [RESTRICT, ALLOW_SOURCES];
    if written.is_empty() {
        RangesAhead::Nowhere
    } else if way.into_iter().any(is_lost) {
        RangesAhead::Everywhere
    } else if written.iter().any(|name| way.contains(name)) {
        RangesAhead::Nowhere
    } else if written.iter().all(|name| entrances.contains(name)) {
        RangesAhead::WhereServed
    } else {
        RangesAhead::WhereRestricted
    }
}

/// Returns [`ALLOW_SOURCES`]: it looks up the source in the sets of `lengths`, the longest first, and
/// drops and counts packets whose source is in none. `set_of` returns the name of the set for a
/// length.
pub fn allow_sources(
    family: Family,
    lengths: impl DoubleEndedIterator<Item = u8>,
    set_of: impl Fn(u8) -> &'static str,
) -> ChainWithRules {
    let mut rules: Vec<_> = lengths
        .rev()
        .map(|bits| {
            let (mut expressions, end) =
                load_frontend(family, FrontendFields::AddressAndPort, Register(0));
            expressions.extend(load_prefix(family, Address::Source, bits, end));
            expressions.extend([
                Expression::Lookup {
                    set: name(set_of(bits)),
                    from: Register(0),
                },
                Expression::Immediate(Verdict::Return),
            ]);
            rule(expressions)
        })
        .collect();
    rules.push(counted(verdict(Verdict::Drop)));
    regular(ALLOW_SOURCES, rules)
}

// === impl RangesAhead ===

impl RangesAhead {
    /// Takes the ranges that are ahead from `elements`, of which those of a frontend are adjacent and
    /// `is_with` each other.
    pub fn take<T>(
        self,
        elements: &mut Vec<T>,
        is_with: impl Fn(&T, &T) -> bool,
        part: impl Fn(&T) -> RangePart,
    ) -> Vec<T> {
        if self == RangesAhead::Nowhere {
            return Vec::new();
        }
        let are_alone = elements.iter().all(|one| part(one) != RangePart::WithRules);
        let mut are_ahead = Vec::with_capacity(elements.len());
        for group in elements.chunk_by(is_with) {
            let parts: Vec<RangePart> = group.iter().map(&part).collect();
            let includes = self.includes(&parts, are_alone);
            are_ahead.extend(parts.iter().map(|part| includes && part.is_of_ranges()));
        }
        let mut are_ahead = are_ahead.into_iter();
        let taken = elements.extract_if(.., |_| are_ahead.next().unwrap_or(false));
        taken.collect()
    }

    /// Whether the ranges among `parts` of a frontend are ahead. `are_alone` says that no element of any
    /// frontend is written with the rules.
    fn includes(self, parts: &[RangePart], are_alone: bool) -> bool {
        let has = |part| parts.contains(&part);
        let is_restricted = has(RangePart::Entry);
        let is_served = are_alone && parts.iter().all(|part| part.is_of_ranges());
        let is_any = match self {
            RangesAhead::Nowhere => false,
            RangesAhead::WhereRestricted => is_restricted,
            RangesAhead::WhereServed => is_restricted || is_served,
            RangesAhead::Everywhere => true,
        };
        is_any && !has(RangePart::Replaced) && !has(RangePart::WithRules)
    }
}

// === impl RangePart ===

impl RangePart {
    fn is_of_ranges(self) -> bool {
        matches!(self, RangePart::Entry | RangePart::Range)
    }
}
