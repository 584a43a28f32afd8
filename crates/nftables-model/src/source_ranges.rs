//! Restricts the sources that may connect to a load-balancer IP.
//!
//! Ranges with the same prefix length form one set, and a source is looked up in each set with that
//! many of its bits. One interval set could hold them all, but the kernel copies such a set for
//! every change.

use dataplane::Family;
use netlink::nf_tables::{Expression, Register, Verdict};

use crate::contents::ChainWithRules;
use crate::key::{FrontendFields, name};
use crate::packet_counters::ALLOW_SOURCES;
use crate::parts::{Address, counted, load_frontend, load_prefix, rule, verdict};
use crate::refusals::regular;

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
