//! Who may connect to a load-balancer IP.
//!
//! Ranges of one length of prefix are one set, and a source is looked up in each with as many of its
//! bits. Sets of intervals would be one set in all, but the kernel copies such a set for every change.

use dataplane::Family;
use netlink::nf_tables::{Expression, Register, Verdict};

use super::regular;
use super::rule_parts::{Address, load_frontend, load_prefix, rule, verdict};
use crate::layout::{self, Keyed, SetName};
use crate::table::ChainWithRules;

/// The chain that lets through who may connect.
pub(crate) const ALLOW_SOURCES: &str = "allow-sources";

/// Looks a source up in the sets of `lengths`, the longest first, and drops what is in none.
pub(crate) fn allow_sources(
    family: Family,
    lengths: impl DoubleEndedIterator<Item = u8>,
) -> ChainWithRules {
    let mut rules: Vec<_> = lengths
        .rev()
        .map(|bits| {
            let (mut expressions, end) = load_frontend(family, Keyed::Address);
            expressions.extend(load_prefix(family, Address::Source, bits, end));
            expressions.extend([
                Expression::Lookup {
                    set: layout::name(SetName::Sources(bits).as_str()),
                    from: Register(0),
                },
                Expression::Immediate(Verdict::Return),
            ]);
            rule(expressions)
        })
        .collect();
    rules.push(verdict(Verdict::Drop));
    regular(ALLOW_SOURCES, rules)
}
