//! The expressions that rules are made of: a small machine with sixteen 32-bit registers.

use std::sync::Arc;
use std::time::Duration;

use super::{Family, Verdict};

/// A 32-bit register, 0 to 15. A longer value lies in this one and those after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(pub u8);

/// One step of a rule. A step that does not match ends the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Loads bytes of the packet.
    Payload {
        /// From which header.
        base: PayloadBase,
        /// The first byte.
        offset: u32,
        /// How many bytes.
        length: u32,
        /// Where to.
        to: Register,
    },
    /// Loads something the kernel knows of the packet.
    Meta {
        /// What.
        key: MetaKey,
        /// Where to.
        to: Register,
    },
    /// Sets something the kernel knows of the packet.
    SetMeta {
        /// What.
        key: MetaKey,
        /// Where from.
        from: Register,
    },
    /// Loads something of the packet's connection.
    Ct {
        /// What.
        key: CtKey,
        /// As seen from which end, for what has two.
        direction: Option<Direction>,
        /// Where to.
        to: Register,
    },
    /// Sets something of the packet's connection.
    SetCt {
        /// What.
        key: SettableCtKey,
        /// Where from.
        from: Register,
    },
    /// Loads a constant.
    Load {
        /// The constant, at most 16 bytes.
        value: Vec<u8>,
        /// Where to.
        to: Register,
    },
    /// Goes on only if a register compares so with a constant.
    Compare {
        /// The register.
        from: Register,
        /// How.
        operator: Operator,
        /// The constant.
        value: Vec<u8>,
    },
    /// Goes on only if a register lies so to a range of constants.
    Range {
        /// The register.
        from: Register,
        /// Within it, or not.
        operator: Operator,
        /// The first constant of the range.
        first: Vec<u8>,
        /// The last, as long as the first.
        last: Vec<u8>,
    },
    /// `to = (from & mask) ^ xor`.
    Bitwise {
        /// The operand.
        from: Register,
        /// The result.
        to: Register,
        /// As long as the operand.
        mask: Vec<u8>,
        /// As long as the operand.
        xor: Vec<u8>,
    },
    /// Goes on only if a key is in a set.
    Lookup {
        /// The set.
        set: Arc<str>,
        /// Where the key begins.
        from: Register,
    },
    /// Goes on only if a key is in a map, with its value in registers.
    LookupValue {
        /// The map.
        set: Arc<str>,
        /// Where the key begins.
        from: Register,
        /// Where the value goes.
        to: Register,
    },
    /// Takes the verdict that a key has in a map; goes on with the rule if it has none.
    LookupVerdict {
        /// The map.
        set: Arc<str>,
        /// Where the key begins.
        from: Register,
    },
    /// Takes this verdict.
    Immediate(Verdict),
    /// Makes a number below `modulus`, plus `offset`.
    Numgen {
        /// How.
        generator: NumberGenerator,
        /// The number of numbers.
        modulus: u32,
        /// The smallest of them.
        offset: u32,
        /// Where to.
        to: Register,
    },
    /// Hashes registers to a number below `modulus`, plus `offset`: [`jhash`](super::jhash) scaled
    /// down.
    Hash {
        /// Where the hashed bytes begin.
        from: Register,
        /// How many bytes.
        length: u32,
        /// The number of numbers.
        modulus: u32,
        /// What the hash starts from.
        seed: u32,
        /// The smallest of the numbers.
        offset: u32,
        /// Where to.
        to: Register,
    },
    /// Changes an element of a map that packets write to; ends the rule where that fails: the map
    /// is full, or does not have what is to be deleted.
    Learn {
        /// The map.
        set: Arc<str>,
        /// How.
        how: Learning,
        /// Where the key begins.
        key: Register,
        /// Where the value begins. The kernel asks for one even where it reads none.
        value: Register,
    },
    /// Loads the type of an address (`RTN_*`), as routing sees it.
    FibType {
        /// Which address.
        field: FibField,
        /// Where to.
        to: Register,
    },
    /// Rewrites an address and port, for the whole connection.
    Nat {
        /// Which end.
        kind: NatKind,
        /// The address's family.
        family: Family,
        /// Where the address is.
        address: Register,
        /// Where the port is.
        port: Register,
    },
    /// Makes the leaving interface's address the source, with a port chosen at random.
    Masquerade,
    /// Answers with a refusal and drops.
    Reject(RejectKind),
    /// Counts packets that come so far. What it has counted is not part of the value: a rule begins
    /// at zero.
    Counter,
    /// Asks a match of iptables.
    Match(Module),
    /// Does what a target of iptables does.
    Target(Module),
}

/// A match or target of iptables inside a rule (`nft_compat`). One that is only for a protocol is
/// told of the protocol that the rule asks for before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// `xt_match.name` or `xt_target.name`.
    pub name: Arc<str>,
    /// Which of the module's layouts.
    pub revision: u8,
    /// The layout's bytes. The kernel gives them back padded to a multiple of eight, with zeros for
    /// what it keeps to itself.
    pub payload: Vec<u8>,
}

/// The header a payload expression reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadBase {
    /// IP.
    Network,
    /// TCP, UDP or SCTP.
    Transport,
}

/// What a meta expression reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaKey {
    /// The packet mark, host order.
    Mark,
    /// The name of the interface it came in on, 16 bytes.
    InputInterfaceName,
    /// The transport protocol, one byte.
    TransportProtocol,
}

/// What a ct expression reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtKey {
    /// A bit mask of states, host order.
    State,
    /// A bit mask `IPS_*`, host order.
    Status,
    /// An IPv4 source, as sent by one end.
    Ipv4Source,
    /// An IPv4 destination, as sent by one end.
    Ipv4Destination,
    /// An IPv6 source, as sent by one end.
    Ipv6Source,
    /// An IPv6 destination, as sent by one end.
    Ipv6Destination,
    /// A destination port, as sent by one end.
    DestinationPort,
    /// Which end sent the packet, one byte: 0 is the one that began the connection.
    Direction,
    /// The connection's labels, [`CONNECTION_LABELS`] bits.
    Labels,
}

/// What a ct expression sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettableCtKey {
    /// Puts labels on the connection. Those that it has stay.
    Labels,
}

/// What a packet does to an element of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learning {
    /// Adds it, or lets it live on: the value of one that is there stays.
    Update {
        /// From now on, in whole milliseconds.
        timeout: Duration,
    },
    /// Removes it.
    Delete,
}

/// From which end a connection is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The end that began it.
    Original,
    /// The other.
    Reply,
}

/// How a comparison is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// The same bytes.
    Equal,
    /// Other bytes.
    NotEqual,
}

/// Where the numbers of a numgen expression come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberGenerator {
    /// One after the other.
    Incremental,
    /// At random.
    Random,
}

/// The address whose type is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FibField {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// Which end a nat expression rewrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatKind {
    /// The destination.
    Destination,
}

/// How a packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectKind {
    /// ICMP or ICMPv6 "port unreachable", which a TCP client sees as "connection refused".
    PortUnreachable,
    /// A TCP reset. Only for what is TCP.
    TcpReset,
}

/// How many labels a connection has room for (`NF_CT_LABELS_MAX_SIZE`).
pub const CONNECTION_LABELS: usize = 128;

/// The bits of labels with just this one, as registers have them: words of the host's order, and the
/// lowest label in the first.
///
/// # Panics
/// From [`CONNECTION_LABELS`] on; labels are constants.
pub fn connection_label(label: usize) -> [u8; CONNECTION_LABELS / 8] {
    assert!(label < CONNECTION_LABELS, "no connection has label {label}");
    let mut bits = [0; CONNECTION_LABELS / 8];
    let word = (1_u32 << (label % 32)).to_ne_bytes();
    bits[label / 32 * 4..][..4].copy_from_slice(&word);
    bits
}

/// `RTN_LOCAL` (include/uapi/linux/rtnetlink.h): an address of this machine.
pub const ADDRESS_TYPE_LOCAL: u32 = 2;
