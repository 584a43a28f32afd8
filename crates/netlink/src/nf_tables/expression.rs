//! The expressions of rules: instructions of a small machine with sixteen 32-bit registers.

use std::sync::Arc;
use std::time::Duration;

use super::{Family, Verdict};

/// A 32-bit register, 0 to 15. A longer value occupies this one and the following ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(pub u8);

/// One instruction of a rule. The rule ends at an expression that does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Loads bytes of the packet into a register.
    Payload {
        /// The header that contains them.
        base: PayloadBase,
        /// The offset of the first byte.
        offset: u32,
        /// The number of bytes.
        length: u32,
        /// The destination.
        to: Register,
    },
    /// Writes bytes of the packet. The kernel updates the checksums of IPv4, TCP and UDP, but not
    /// that of SCTP.
    SetPayload {
        /// The header that contains them.
        base: PayloadBase,
        /// The offset of the first byte.
        offset: u32,
        /// The number of bytes.
        length: u32,
        /// The source.
        from: Register,
    },
    /// Loads metadata of the packet.
    Meta {
        /// The metadata.
        key: MetaKey,
        /// The destination.
        to: Register,
    },
    /// Sets metadata of the packet.
    SetMeta {
        /// The metadata.
        key: MetaKey,
        /// The source.
        from: Register,
    },
    /// Loads a property of the packet's connection.
    Ct {
        /// The property.
        key: CtKey,
        /// The direction, for properties that have two.
        direction: Option<Direction>,
        /// The destination.
        to: Register,
    },
    /// Sets a property of the packet's connection.
    SetCt {
        /// The property.
        key: SettableCtKey,
        /// The source.
        from: Register,
    },
    /// Loads a constant.
    Load {
        /// The constant, at most 16 bytes.
        value: Vec<u8>,
        /// The destination.
        to: Register,
    },
    /// Matches if comparing a register with a constant succeeds.
    Compare {
        /// The register.
        from: Register,
        /// The comparison.
        operator: Operator,
        /// The constant.
        value: Vec<u8>,
    },
    /// Matches if a register is within a range of constants, or outside it.
    Range {
        /// The register.
        from: Register,
        /// `Equal` for within the range, `NotEqual` for outside it.
        operator: Operator,
        /// The lower bound.
        first: Vec<u8>,
        /// The upper bound, as long as the lower one.
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
    /// Matches if a set contains a key.
    Lookup {
        /// The set.
        set: Arc<str>,
        /// The first register of the key.
        from: Register,
    },
    /// Matches if a map contains a key, and loads its value.
    LookupValue {
        /// The map.
        set: Arc<str>,
        /// The first register of the key.
        from: Register,
        /// The destination of the value.
        to: Register,
    },
    /// Applies the verdict that a map has for a key; continues with the rule if it has none.
    LookupVerdict {
        /// The map.
        set: Arc<str>,
        /// The first register of the key.
        from: Register,
    },
    /// Applies this verdict.
    Immediate(Verdict),
    /// Generates a number below `modulus` and adds `offset`.
    Numgen {
        /// The generator.
        generator: NumberGenerator,
        /// The number of different values.
        modulus: u32,
        /// The smallest value.
        offset: u32,
        /// The destination.
        to: Register,
    },
    /// Hashes registers to a number below `modulus` and adds `offset`: [`jhash`](super::jhash),
    /// scaled down.
    Hash {
        /// The first register to hash.
        from: Register,
        /// The number of bytes.
        length: u32,
        /// The number of different values.
        modulus: u32,
        /// The initial value of the hash.
        seed: u32,
        /// The smallest value.
        offset: u32,
        /// The destination.
        to: Register,
    },
    /// Updates or deletes an element of a map that packets write to. The rule ends if that fails
    /// because the map is full or does not have the element to delete.
    Learn {
        /// The map.
        set: Arc<str>,
        /// The operation.
        how: MapUpdate,
        /// The first register of the key.
        key: Register,
        /// The first register of the value. The kernel requires one even if it does not read it.
        value: Register,
    },
    /// Loads the type of an address (`RTN_*`) according to the routing tables.
    FibType {
        /// The address.
        field: FibField,
        /// The destination.
        to: Register,
    },
    /// Rewrites an address and port for the whole connection.
    Nat {
        /// Which address and port.
        kind: NatKind,
        /// The address's family.
        family: Family,
        /// The register of the new address.
        address: Register,
        /// The register of the new port.
        port: Register,
    },
    /// Rewrites the source to the address of the outgoing interface, with a random port.
    Masquerade,
    /// Rejects the packet: sends an error to its sender and drops it.
    Reject(RejectKind),
    /// Adds the packet's connection to a flowtable. The rule ends if the kernel adds none: it is not of
    /// TCP or UDP, is about to end, or is in a flowtable.
    Offload {
        /// The flowtable.
        flowtable: Arc<str>,
    },
    /// Counts the packets that reach it. The count is not part of the value: a new rule begins at
    /// zero.
    Counter,
    /// Evaluates an iptables match.
    Match(Module),
    /// Applies an iptables target.
    Target(Module),
}

/// An iptables match or target inside a rule (`nft_compat`). For an extension that is specific to a
/// protocol, the kernel passes it the protocol that the rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// `xt_match.name` or `xt_target.name`.
    pub name: Arc<str>,
    /// The revision of the module's payload layout.
    pub revision: u8,
    /// The payload. The kernel returns it padded to a multiple of eight, with zeros for the parts
    /// that it keeps to itself.
    pub payload: Vec<u8>,
}

/// The header that a payload expression reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadBase {
    /// IP.
    Network,
    /// TCP, UDP or SCTP.
    Transport,
}

/// The metadata that a meta expression reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaKey {
    /// The packet mark, host order.
    Mark,
    /// The name of the incoming interface, 16 bytes.
    InputInterfaceName,
    /// The transport protocol, one byte.
    TransportProtocol,
}

/// The property that a ct expression reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtKey {
    /// A bit mask of states, host order.
    State,
    /// A bit mask of `IPS_*`, host order.
    Status,
    /// The IPv4 source in one direction.
    Ipv4Source,
    /// The IPv4 destination in one direction.
    Ipv4Destination,
    /// The IPv6 source in one direction.
    Ipv6Source,
    /// The IPv6 destination in one direction.
    Ipv6Destination,
    /// The destination port in one direction.
    DestinationPort,
    /// The direction of the packet, one byte: 0 is the original direction.
    Direction,
    /// The connection's labels, [`CONNECTION_LABELS`] bits.
    Labels,
}

/// The property that a ct expression sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettableCtKey {
    /// Adds labels to the connection. Labels that are already set stay.
    Labels,
}

/// The change of a map element by a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapUpdate {
    /// Adds the element or renews its timeout: the value of an existing element stays.
    Update {
        /// The new timeout, in whole milliseconds.
        timeout: Duration,
    },
    /// Removes the element.
    Delete,
}

/// A direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Packets of the side that initiated the connection.
    Original,
    /// Packets in reply.
    Reply,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// The bytes are equal.
    Equal,
    /// The bytes differ.
    NotEqual,
}

/// The sequence of numbers that a numgen expression generates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberGenerator {
    /// Ascending, one after the other.
    Incremental,
    /// Random.
    Random,
}

/// The address whose type a fib expression loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FibField {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// The address and port that a nat expression rewrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatKind {
    /// The destination.
    Destination,
}

/// The reply to a rejected packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectKind {
    /// ICMP or ICMPv6 "port unreachable", which a TCP client sees as "connection refused".
    PortUnreachable,
    /// A TCP reset. Only for TCP packets.
    TcpReset,
}

/// The number of labels of a connection (`NF_CT_LABELS_MAX_SIZE`).
pub const CONNECTION_LABELS: usize = 128;

/// The label bits with only this label set, as in registers: words in host order, with the lowest
/// label in the first.
///
/// # Panics
/// If `label` is [`CONNECTION_LABELS`] or more; labels are constants.
pub fn connection_label(label: usize) -> [u8; CONNECTION_LABELS / 8] {
    assert!(label < CONNECTION_LABELS, "no connection has label {label}");
    let mut bits = [0; CONNECTION_LABELS / 8];
    let word = (1_u32 << (label % 32)).to_ne_bytes();
    bits[label / 32 * 4..][..4].copy_from_slice(&word);
    bits
}

/// `RTN_LOCAL` (include/uapi/linux/rtnetlink.h): an address of this machine.
pub const ADDRESS_TYPE_LOCAL: u32 = 2;
