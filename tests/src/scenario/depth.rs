//! The implementations against which a scenario runs.

use anyhow::Result;
use backend::Size;
use dataplane::{Dataplane, Packet, Verdict};

use super::Dump;

/// An implementation of a [`Dataplane`].
pub trait Depth {
    /// Programs `desired` over the present state; returns the size of the writes.
    fn apply(&mut self, desired: &Dataplane) -> Result<Size>;

    /// Does the same as a new process, which knows of the present state only what it can read back.
    fn restart(&mut self, desired: &Dataplane) -> Result<Size>;

    /// Whether `packet` goes where `expected` states. The expectation only determines how long to
    /// wait.
    fn judge(&mut self, packet: &Packet, expected: &Verdict) -> Result<Judgement>;

    /// Connects `times` times with `packet`; returns the result of each connection. `None` if this
    /// depth does not remember clients.
    fn connect(&mut self, packet: &Packet, times: u32) -> Result<Option<Vec<Verdict>>>;

    /// Returns the programmed state as text; `None` if this depth does not have that form.
    fn dump(&mut self, dump: Dump) -> Result<Option<String>>;
}

/// The result of checking a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// The packet went where expected.
    AsExpected,
    /// It did not; what happened instead.
    Otherwise(String),
    /// This depth cannot check it, for this reason.
    NotAsked(&'static str),
}

impl Judgement {
    /// Compares verdicts.
    pub fn of_verdict(verdict: &Verdict, expected: &Verdict) -> Judgement {
        if verdict == expected {
            Judgement::AsExpected
        } else {
            Judgement::Otherwise(verdict.to_string())
        }
    }
}
