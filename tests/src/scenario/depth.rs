//! What a scenario is told to.

use anyhow::Result;
use backend::Size;
use dataplane::{Dataplane, Packet, Verdict};

use super::Dump;

/// One thing that claims to do what a [`Dataplane`] says.
pub trait Depth {
    /// Programs `desired` over what is there; how much that wrote.
    fn apply(&mut self, desired: &Dataplane) -> Result<Size>;

    /// The same, by a new process: of what is there it knows what it can read back.
    fn restart(&mut self, desired: &Dataplane) -> Result<Size>;

    /// Whether `packet` goes where `expected` says. Knowing what to expect is only for knowing how
    /// long to wait for it.
    fn judge(&mut self, packet: &Packet, expected: &Verdict) -> Result<Judgement>;

    /// Connects `times` times as `packet` does; where each connection went. `None` where there is
    /// nothing that could remember a client.
    fn connect(&mut self, packet: &Packet, times: u32) -> Result<Option<Vec<Verdict>>>;

    /// What is programmed, as text; `None` where that is not a form this depth has.
    fn dump(&mut self, dump: Dump) -> Result<Option<String>>;
}

/// What a depth says of an expectation about a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// It is met.
    AsExpected,
    /// It is not; what happened instead.
    Otherwise(String),
    /// This depth cannot tell; why.
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
