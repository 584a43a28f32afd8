//! A listed rule that is decoded as far as necessary.

use super::decode::{DecodeError, rule_of};
use super::{Family, Rule};
use crate::wire::{Attributes, Message};

/// A rule as the kernel lists it. Only the requested parts are decoded: most rules of a shared
/// table do not matter to Signpost.
#[derive(Debug)]
pub struct ListedRule<'a> {
    chain: &'a str,
    handle: u64,
    attributes: Attributes<'a>,
    family: Family,
}

/// Any rule, with its chain and its handle; `None` if the name of its chain is not UTF-8, as
/// [`foreign_chain`](super::foreign_chain) returns none for that chain.
pub(crate) fn listed<'a>(
    message: &Message<'a>,
    family: Family,
) -> Result<Option<ListedRule<'a>>, DecodeError> {
    let attributes = message.attributes();
    let missing = |part| DecodeError::Missing {
        object: "rule",
        part,
    };
    attributes.get(2).ok_or(missing("chain"))?;
    let handle = attributes.get(3).and_then(|bytes| bytes.try_into().ok());
    let handle = u64::from_be_bytes(handle.ok_or(missing("handle"))?);
    Ok(attributes.string(2).map(|chain| ListedRule {
        chain,
        handle,
        attributes,
        family,
    }))
}

// === impl ListedRule ===

impl<'a> ListedRule<'a> {
    /// The chain that it is in.
    pub fn chain(&self) -> &'a str {
        self.chain
    }

    /// Its handle, unique in its table.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// The chain that one of its verdicts leads to.
    pub fn leads_to(&self) -> Option<&'a str> {
        let expressions = self.attributes.nested(4).into_iter().flatten();
        expressions
            .map(|(_, expression)| Attributes::parse(expression))
            .filter(|expression| expression.string(1) == Some("immediate"))
            .find_map(|expression| {
                // NFTA_EXPR_DATA, NFTA_IMMEDIATE_DATA, NFTA_DATA_VERDICT, NFTA_VERDICT_CHAIN.
                let verdict = expression.nested(2)?.nested(2)?.nested(2)?;
                verdict.string(2)
            })
    }

    /// Whether one of its expressions is the xtables match of this name.
    pub fn uses_match(&self, name: &str) -> bool {
        let mut expressions = self.attributes.nested(4).into_iter().flatten();
        expressions.any(|(_, expression)| {
            let expression = Attributes::parse(expression);
            // NFTA_EXPR_DATA, NFTA_MATCH_NAME.
            let module = || expression.nested(2)?.string(1);
            expression.string(1) == Some("match") && module() == Some(name)
        })
    }

    /// Whether it compares the mark of packets, by nf_tables or by the xtables match.
    pub fn reads_mark(&self) -> bool {
        // NFT_META_MARK.
        const MARK: [u8; 4] = 3_u32.to_be_bytes();
        let expressions = self.attributes.nested(4).into_iter().flatten();
        let mut meta = expressions
            .map(|(_, expression)| Attributes::parse(expression))
            .filter(|expression| expression.string(1) == Some("meta"))
            // NFTA_EXPR_DATA; NFTA_META_DREG, NFTA_META_KEY.
            .filter_map(|expression| expression.nested(2));
        let reads = |meta: Attributes<'_>| meta.get(1).is_some() && meta.get(2) == Some(&MARK[..]);
        meta.any(reads) || self.uses_match("mark")
    }

    /// The number of packets that reached its counter, if it has one.
    pub fn packets(&self) -> Option<u64> {
        let expressions = self.attributes.nested(4).into_iter().flatten();
        expressions
            .map(|(_, expression)| Attributes::parse(expression))
            .filter(|expression| expression.string(1) == Some("counter"))
            // NFTA_EXPR_DATA, NFTA_COUNTER_PACKETS.
            .find_map(|expression| expression.nested(2)?.get(2)?.try_into().ok())
            .map(u64::from_be_bytes)
    }

    /// Decodes the whole rule, if this crate has a value for it.
    pub fn decode(&self) -> Result<Rule, DecodeError> {
        rule_of(&self.attributes, self.family)
    }
}
