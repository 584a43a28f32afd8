//! Looking at what others have in the kernel.

use std::io::ErrorKind;

use super::{ObserveError, Socket, socket_failed};
use crate::nf_tables::{self, Family, ForeignChain, Jump};
use crate::wire::{ERROR, Messages};

impl Socket {
    /// Whether somebody's table has a chain of this name. Asks for this one alone: it costs the same
    /// where there are thousands.
    pub fn observe_chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<bool, ObserveError> {
        let what = "a chain";
        let sequence = self.next_sequence();
        let request = nf_tables::encode_get_chain(family, table, chain, sequence);
        self.send(&request).map_err(socket_failed("send to"))?;
        loop {
            let length = self.receive().map_err(socket_failed("receive from"))?;
            for message in Messages::parse(&self.datagram[..length]) {
                if message.sequence != sequence {
                    continue;
                }
                if message.kind != ERROR {
                    return Ok(true);
                }
                let source = std::io::Error::from_raw_os_error(message.errno());
                return match source.kind() {
                    // ENOENT: the table or the chain is not there.
                    ErrorKind::NotFound => Ok(false),
                    _ => Err(ObserveError::Refused { what, source }),
                };
            }
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
        let rules = self.observe("rules", kind, family, Some(table), None, nf_tables::jump)?;
        Ok(rules.into_iter().flatten().collect())
    }
}
