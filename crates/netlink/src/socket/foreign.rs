//! Looking at what others have in the kernel.

use std::io::ErrorKind;

use super::{ObserveError, Socket};
use crate::nf_tables::{self, Family, ForeignChain, Jump, ListedRule};

impl Socket {
    /// Whether somebody's table has a chain of this name. Asks for this one alone: it costs the same
    /// where there are thousands.
    pub fn observe_chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<bool, ObserveError> {
        let encode = |sequence| nf_tables::encode_get_chain(family, table, chain, sequence);
        match self.ask("a chain", encode, |_| Ok(())) {
            Ok(()) => Ok(true),
            // ENOENT: the table or the chain is not there.
            Err(ObserveError::Refused { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// All chains of somebody's table.
    pub fn observe_foreign_chains(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Vec<ForeignChain>, ObserveError> {
        let kind = nf_tables::request::GET_CHAIN;
        let decode = nf_tables::foreign_chain;
        self.observe("chains", kind, family, Some(table), None, decode)
    }

    /// Those rules of somebody's table that lead to another chain.
    pub fn observe_jumps(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Vec<Jump>, ObserveError> {
        let kind = nf_tables::request::GET_RULE;
        let rules = self.observe("rules", kind, family, Some(table), None, |message| {
            nf_tables::jump(message, family)
        })?;
        Ok(rules.into_iter().flatten().collect())
    }

    /// What `choose` makes of the rules of a table, or of one chain of it, in order within each
    /// chain. Rules of which it makes nothing cost a look at their beginning.
    pub fn observe_chosen_rules<T>(
        &mut self,
        family: Family,
        table: &str,
        chain: Option<&str>,
        choose: impl Fn(&ListedRule<'_>) -> Option<T>,
    ) -> Result<Vec<T>, ObserveError> {
        let kind = nf_tables::request::GET_RULE;
        let rules = self.observe("rules", kind, family, Some(table), chain, |message| {
            let rule = nf_tables::listed(message, family)?;
            // Kernels before 4.10 list those of other chains, too.
            let is_asked_for = chain.is_none_or(|chain| chain == rule.chain());
            Ok(is_asked_for.then(|| choose(&rule)).flatten())
        })?;
        Ok(rules.into_iter().flatten().collect())
    }
}
