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
        let mut replies = Replies::to(&batch);
        loop {
            // After a refusal the kernel may have skipped the rest. It replies before `sendto` returns, so
            // a reply that has not arrived never will.
            let received = match replies.refused {
                Some(_) => self.channel.receive_arrived(),
                None => self.channel.receive().map(Some),
            };
            match received.map_err(failed("receive from"))? {
                Some(datagram) if !replies.take(datagram) => {}
                Some(_) => return replies.refused.map_or(Ok(()), Err),
                None => return replies.cut_short(),
            }
        }
    }
}

/// The kernel's replies to a batch so far.
struct Replies {
    first: u32,
    last: u32,
    /// The error of the first refusal.
    refused: Option<CommitError>,
}

// === impl Replies ===

impl Replies {
    fn to(batch: &Batch) -> Replies {
        Replies {
            first: batch.first,
            last: batch.last,
            refused: None,
        }
    }

    /// Adds the replies of a datagram, and returns whether the last one is among them. Replies arrive in
    /// the order of the messages.
    fn take(&mut self, datagram: &[u8]) -> bool {
        for message in Messages::parse(datagram) {
            let number = message.sequence.wrapping_sub(self.first);
            if message.kind != ERROR || number > self.last.wrapping_sub(self.first) {
                continue;
            }
            let errno = message.errno();
            if errno != 0 && self.refused.is_none() {
                self.refused = Some(CommitError::Refused {
                    at: match number {
                        0 => Refusal::Commit,
                        number => Refusal::Message(number),
                    },
                    source: io::Error::from_raw_os_error(errno),
                });
            }
            // A refusal of the batch as a whole is the only reply.
            if message.sequence == self.last || number == 0 {
                return true;
            }
        }
        false
    }

    /// The result of a batch whose last message got no reply. If the commit itself fails, and since Linux
    /// 6.4 also if memory is short for any message, the kernel replies once, with the sequence number of the
    /// first operation (`nfnetlink_rcv_batch` in net/netfilter/nfnetlink.c).
    fn cut_short(self) -> Result<(), CommitError> {
        match self.refused {
            None => Ok(()),
            Some(CommitError::Refused {
                at: Refusal::Message(1),
                source,
            }) => Err(CommitError::Refused {
                at: Refusal::Commit,
                source,
            }),
            Some(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn reply(sequence: u32, errno: i32) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(36_u32.to_ne_bytes());
        bytes.extend(ERROR.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend((-errno).to_ne_bytes());
        bytes.extend([0; 16]);
        bytes
    }

    /// Adds replies to a batch of three operations, each in its own datagram. Returns whether the last of them
    /// is the last reply.
    fn replies(received: &[(u32, i32)]) -> (bool, Replies) {
        let mut replies = Replies {
            first: 7,
            last: 10,
            refused: None,
        };
        let mut is_over = false;
        for (sequence, errno) in received {
            is_over = replies.take(&reply(*sequence, *errno));
        }
        (is_over, replies)
    }

    fn refusal(refused: Result<(), CommitError>) -> Option<Refusal> {
        match refused {
            Err(CommitError::Refused { at, .. }) => Some(at),
            _ => None,
        }
    }

    /// Failure story T163: the agent waited a minute for the reply to the last message.
    #[test]
    fn t163_a_kernel_that_stops_for_lack_of_memory_has_replied() {
        let (is_over, stopped) = replies(&[(8, Errno::NOMEM.raw_os_error())]);
        assert!(!is_over, "a kernel before 6.4 would go on");
        assert_eq!(refusal(stopped.cut_short()), Some(Refusal::Commit));
        // A kernel that stops at another message and names it.
        let (is_over, stopped) = replies(&[(9, Errno::MLINK.raw_os_error())]);
        assert!(!is_over);
        assert_eq!(refusal(stopped.cut_short()), Some(Refusal::Message(2)));
    }

    #[test]
    fn the_reply_to_the_last_message_is_the_last_one() {
        let refused = Errno::NOENT.raw_os_error();
        let (is_over, done) = replies(&[(10, 0)]);
        assert!(is_over && done.refused.is_none());
        let (is_over, mixed) = replies(&[(8, refused), (10, 0)]);
        assert!(is_over);
        assert_eq!(
            refusal(mixed.refused.map_or(Ok(()), Err)),
            Some(Refusal::Message(1))
        );
        // A late reply to an earlier batch, and a refusal of this one as a whole.
        let (is_over, stale) = replies(&[(6, refused)]);
        assert!(!is_over && stale.refused.is_none());
        let (is_over, begun) = replies(&[(7, refused)]);
        assert!(is_over);
        assert_eq!(
            refusal(begun.refused.map_or(Ok(()), Err)),
            Some(Refusal::Commit)
        );
    }
}
