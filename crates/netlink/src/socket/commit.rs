//! Commits transactions.

use std::io;

use super::{CommitError, Refusal, Socket};
use crate::channel::is_too_long;
use crate::nf_tables::{self, Batch, Transaction};
use crate::wire::{ERROR, Messages};

impl Socket {
    /// Commits `transaction` whole or not at all, and waits for the kernel's reply.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        self.commit_batch(transaction, None)
    }

    /// Like [`Socket::commit`], but only while the ruleset is at `generation`: after another
    /// program's transaction, the kernel refuses this one with ERESTART. Kernels before 4.12 ignore
    /// the generation.
    pub fn commit_in(
        &mut self,
        generation: u32,
        transaction: &Transaction,
    ) -> Result<(), CommitError> {
        self.commit_batch(transaction, Some(generation))
    }

    /// Checks whether the kernel would currently accept `transaction`, as `nft --check` does: the
    /// kernel prepares all of it and reverts it. The ruleset and its generation stay unchanged.
    pub fn check(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        if transaction.operations.is_empty() {
            return Ok(());
        }
        let batch = nf_tables::encode_check(transaction, self.next_sequence());
        self.send_batch(batch)
    }

    fn commit_batch(
        &mut self,
        transaction: &Transaction,
        generation: Option<u32>,
    ) -> Result<(), CommitError> {
        if transaction.operations.is_empty() {
            return Ok(());
        }
        let batch = nf_tables::encode(transaction, generation, self.next_sequence());
        self.send_batch(batch)
    }

    /// Sends `batch` and waits for the reply to its last message.
    fn send_batch(&mut self, batch: Batch) -> Result<(), CommitError> {
        self.sequence = batch.last.wrapping_add(1);
        let failed = |step| move |source: io::Error| CommitError::Socket { step, source };
        self.channel
            .send(&batch.bytes)
            .map_err(|source| match is_too_long(&source) {
                true => CommitError::Refused {
                    at: Refusal::Length,
                    source,
                },
                false => failed("send to")(source),
            })?;
        let mut refused: Option<CommitError> = None;
        loop {
            let datagram = self.channel.receive().map_err(failed("receive from"))?;
            for message in Messages::parse(datagram) {
                if message.kind != ERROR {
                    continue;
                }
                let number = message.sequence.wrapping_sub(batch.first);
                if number > batch.last.wrapping_sub(batch.first) {
                    continue;
                }
                let errno = message.errno();
                if errno != 0 && refused.is_none() {
                    refused = Some(CommitError::Refused {
                        at: match number {
                            0 => Refusal::Commit,
                            number => Refusal::Message(number),
                        },
                        source: io::Error::from_raw_os_error(errno),
                    });
                }
                // Replies arrive in order, so the one to the last message comes last. An error of
                // the commit itself has the first number and is the only reply.
                if message.sequence == batch.last || number == 0 {
                    return refused.map_or(Ok(()), Err);
                }
            }
        }
    }
}
