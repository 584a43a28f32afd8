//! Reads tables of other programs.

use std::io::ErrorKind;

use rustix::io::Errno;

use super::{ObserveError, Socket};
use crate::nf_tables::{
    self, Chain, DecodeError, Extension, Family, ForeignChain, Jump, ListedRule, TableState,
};
use crate::wire::Message;

impl Socket {
    /// Whether a table exists. Requests only this table.
    pub fn observe_table(&mut self, family: Family, name: &str) -> Result<bool, ObserveError> {
        Ok(self.observe_table_state(family, name)?.is_some())
    }

    /// Whether packets traverse the chains of a table; `None` if the table does not exist.
    pub fn observe_table_state(
        &mut self,
        family: Family,
        name: &str,
    ) -> Result<Option<TableState>, ObserveError> {
        let encode = |sequence| nf_tables::encode_get_table(family, name, sequence);
        found(self.ask("a table", encode, nf_tables::table_state))
    }

    /// Whether a table has a chain with this name. Requests only this chain: the cost does not
    /// depend on the number of chains.
    pub fn observe_chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<bool, ObserveError> {
        Ok(self.observe_one_chain(family, table, chain)?.is_some())
    }

    /// A chain of a table, or why this crate has no value for it; `None` if it does not exist.
    /// Requests only this chain.
    pub fn observe_one_chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<Option<Result<Chain, DecodeError>>, ObserveError> {
        let encode = |sequence| nf_tables::encode_get_chain(family, table, chain, sequence);
        let decode = |message: &Message<'_>| nf_tables::chain(message).map(|(_, chain)| chain);
        found(self.ask("a chain", encode, decode))
    }

    /// Whether rules of `family` can use an iptables match or target; the kernel loads its module
    /// for that. A kernel without nft_compat refuses the request with EINVAL.
    pub fn observe_extension(
        &mut self,
        family: Family,
        extension: Extension<'_>,
    ) -> Result<bool, ObserveError> {
        let encode = |sequence| nf_tables::encode_get_extension(family, extension, sequence);
        match self.ask("a match or target", encode, |_| Ok(())) {
            // A match or target of that name exists, but not in that revision (xt_find_revision).
            Err(ObserveError::Refused { source, .. })
                if Errno::from_io_error(&source) == Some(Errno::PROTONOSUPPORT) =>
            {
                Ok(false)
            }
            answer => Ok(found(answer)?.is_some()),
        }
    }

    /// All chains of a table whose names are UTF-8.
    pub fn observe_foreign_chains(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Vec<ForeignChain>, ObserveError> {
        let kind = nf_tables::request::GET_CHAIN;
        let decode = nf_tables::foreign_chain;
        let chains = self.observe("chains", kind, family, Some(table), None, decode)?;
        Ok(chains.into_iter().flatten().collect())
    }

    /// The rules of a table that lead to another chain; both names are UTF-8.
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

    /// Calls `choose` for the rules of a table, or of one chain of it, and returns what it returns,
    /// in order within each chain. For a rule that `choose` discards, little more than its header
    /// is decoded. Rules in chains whose names are not UTF-8 are skipped.
    pub fn observe_chosen_rules<T: PartialEq>(
        &mut self,
        family: Family,
        table: &str,
        chain: Option<&str>,
        choose: impl Fn(&ListedRule<'_>) -> Option<T>,
    ) -> Result<Vec<T>, ObserveError> {
        let kind = nf_tables::request::GET_RULE;
        let rules = self.observe("rules", kind, family, Some(table), chain, |message| {
            let rule = nf_tables::listed(message, family)?;
            // Kernels before 4.10 also list the rules of other chains.
            let rule = rule.filter(|rule| chain.is_none_or(|chain| chain == rule.chain()));
            Ok(rule.as_ref().and_then(&choose))
        })?;
        Ok(rules.into_iter().flatten().collect())
    }
}

/// Returns `None` if the kernel replies that the object does not exist: ENOENT.
fn found<T>(answer: Result<T, ObserveError>) -> Result<Option<T>, ObserveError> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(ObserveError::Refused { source, .. }) if source.kind() == ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
