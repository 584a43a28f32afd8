//! Chains and rules of any program.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::{AddressMatch, BuiltIn, Protocol};

/// A chain, and where its rules lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedChain {
    /// Which chain it is.
    pub kind: ChainKind,
    /// The chains that its rules jump or go to.
    pub leads_to: BTreeSet<Arc<str>>,
}

/// How packets enter a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainKind {
    /// At a hook of the kernel.
    BuiltIn(BuiltIn, Policy),
    /// By rules of other chains.
    Named(Arc<str>),
}

/// What becomes of packets at the end of a built-in chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// `-P chain ACCEPT`.
    Accept,
    /// `-P chain DROP`.
    Drop,
}

/// What a rule, also of another program, asks of the destination of packets, where it sends them,
/// and how many it has matched. It may ask more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedRule {
    /// `-d`.
    pub destination: Option<AddressMatch>,
    /// `-p`.
    pub protocol: Option<Protocol>,
    /// `--dport`, if it is a single port.
    pub destination_port: Option<u16>,
    /// The chain that its target jumps or goes to.
    pub leads_to: Option<Arc<str>>,
    /// `-j DNAT --to-destination`, if it is one address and one port.
    pub translates_to: Option<SocketAddr>,
    /// The packets that it has matched.
    pub packets: u64,
}
