//! Who may connect to a load-balancer IP.
//!
//! Ranges of one length of prefix are one set, and a source is looked up in each with as many of its
//! bits. Sets of intervals would be one set in all, but the kernel copies such a set for every change.

use dataplane::Family;
use netlink::nf_tables::{Expression, Register, Verdict};

use crate::contents::ChainWithRules;
use crate::key::{FrontendFields, name};
use crate::parts::{Address, load_frontend, load_prefix, rule, verdict};
use crate::refusals::regular;

/// Looks a source up in the sets of `lengths`, the longest first, and drops what is in none.
/// `set_of` has the name of the set of one length.
pub fn allow_sources(
    family: Family,
    chain: &str,
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
    rules.push(verdict(Verdict::Drop));
    regular(chain, rules)
}
