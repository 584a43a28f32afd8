//! One iptables rule, in the forms that Signpost writes.

mod print;

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

pub use address::{Family, Protocol};

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableName {
    /// `nat`: only the first packet of a connection traverses it.
    Nat,
    /// `filter`: every packet traverses it.
    Filter,
}

/// A built-in chain: one for each hook of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BuiltIn {
    /// Incoming packets, before routing. Only in table nat.
    Prerouting,
    /// Packets for this machine.
    Input,
    /// Forwarded packets. Only in table filter.
    Forward,
    /// Packets of processes on this machine.
    Output,
    /// Packets that are about to leave. Only in table nat.
    Postrouting,
}

/// One rule. A packet that matches all of it goes to the target. The kernel checks the fields
/// before `matches` first; they need no match extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `-s`.
    pub source: Option<AddressMatch>,
    /// `-d`.
    pub destination: Option<AddressMatch>,
    /// `-i`.
    pub input: Option<InterfaceMatch>,
    /// `-p`.
    pub protocol: Option<Protocol>,
    /// `-m`, in the order of evaluation. A stateful match ([`Recent::Set`], [`Match::Random`])
    /// changes its state only if all matches before it match.
    pub matches: Vec<Match>,
    /// `-j` or `-g`.
    pub target: Target,
    /// `-m comment --comment`: for listings. At most 255 bytes, without quotes and
    /// control characters.
    pub comment: Option<Arc<str>>,
}

/// Matches packets with an address in a range, or outside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressMatch {
    /// The range; its host bits are zero.
    pub range: IpNet,
    /// Whether it matches addresses outside the range (`! -s`).
    pub inverted: bool,
}

/// Matches packets that came in on an interface, or on any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceMatch {
    /// Its name, at most 15 bytes.
    pub name: Arc<str>,
    /// Whether it matches every interface whose name begins with `name` (`name+`).
    pub is_prefix: bool,
    /// Whether it matches every other interface (`! -i`).
    pub inverted: bool,
}

/// One match of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// `-m tcp --dport first:last`, for the rule's protocol.
    DestinationPorts {
        /// The first port.
        first: u16,
        /// The last port, not less than the first.
        last: u16,
    },
    /// `-m addrtype --src-type LOCAL` or `--dst-type LOCAL`: an address of this machine.
    LocalAddress(PacketEnd),
    /// `-m conntrack --ctstate`: any of these states.
    ConnectionState(States),
    /// `-m conntrack ! --ctstatus CONFIRMED`: no earlier packet of the connection has passed all
    /// hooks.
    UnconfirmedConnection,
    /// `-m mark --mark value/mask`.
    Mark {
        /// The value of the packet's mark under `mask`.
        value: u32,
        /// The bits to compare.
        mask: u32,
    },
    /// `-m recent`, by source address.
    Recent {
        /// The list's name: at most 199 bytes, without `/`.
        list: Arc<str>,
        /// The operation.
        what: Recent,
    },
    /// `-m statistic --mode random`: matches `probability` times in 2^31.
    Random {
        /// From 0 to 2^31.
        probability: u32,
    },
    /// `-m statistic --mode nth --packet 0`: matches the first of every `every` packets.
    Nth {
        /// At least 1.
        every: u32,
    },
}

/// One of the two addresses of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketEnd {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// A set of connection states: the bits of `xt_conntrack` (`XT_CONNTRACK_STATE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States(pub u16);

/// An operation of `-m recent` on a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recent {
    /// `--rcheck --seconds n --reap`: matches if the list contains the source with a time stamp of
    /// at most `n` seconds ago; removes older entries.
    Check {
        /// Not 0.
        seconds: u32,
    },
    /// `--set`: records the source with the current time. Always matches.
    Set,
}

/// What a rule does with a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `-j ACCEPT`: ends the evaluation of this table.
    Accept,
    /// `-j DROP`.
    Drop,
    /// `-j RETURN`.
    Return,
    /// `-j chain`.
    Jump(Arc<str>),
    /// `-g chain`: at the end of the chain, packets return to the chain that jumped to this one.
    Goto(Arc<str>),
    /// `-j DNAT --to-destination`.
    DestinationNat {
        /// The new address.
        address: IpAddr,
        /// The new port.
        port: u16,
    },
    /// `-j MASQUERADE --random-fully`.
    Masquerade,
    /// `-j MARK --set-xmark value/mask`: `mark = (mark & !mask) ^ value`.
    Mark {
        /// The value to xor.
        value: u32,
        /// The bits to clear first.
        mask: u32,
    },
    /// `-j REJECT`: ICMP or ICMPv6 "port unreachable".
    Reject,
}

// === impl Rule ===

impl Rule {
    /// A rule that every packet matches.
    pub fn always(target: Target) -> Rule {
        Rule {
            source: None,
            destination: None,
            input: None,
            protocol: None,
            matches: Vec::new(),
            target,
            comment: None,
        }
    }

    /// Whether all its conditions equal those of `other`, so that both match the same packets.
    pub fn matches_same_packets(&self, other: &Rule) -> bool {
        let Rule {
            source,
            destination,
            input,
            protocol,
            matches,
            target: _,
            comment: _,
        } = self;
        *source == other.source
            && *destination == other.destination
            && *input == other.input
            && *protocol == other.protocol
            && *matches == other.matches
    }

    /// The chain that its target jumps or goes to.
    pub fn leads_to(&self) -> Option<&Arc<str>> {
        match &self.target {
            Target::Jump(chain) | Target::Goto(chain) => Some(chain),
            _ => None,
        }
    }
}

// === impl Match ===

impl Match {
    /// The probability with which every packet matches.
    pub const CERTAIN: u32 = 1 << 31;
}

// === impl States ===

impl States {
    /// `INVALID`.
    pub const INVALID: States = States(1);
    /// `ESTABLISHED`.
    pub const ESTABLISHED: States = States(1 << 1);
    /// `RELATED`.
    pub const RELATED: States = States(1 << 2);
    /// `NEW`.
    pub const NEW: States = States(1 << 3);
    /// `DNAT`: the connection's destination was rewritten.
    pub const DNAT: States = States(1 << 7);

    /// The union of both sets.
    #[must_use]
    pub const fn or(self, other: States) -> States {
        States(self.0 | other.0)
    }

    /// Whether this set contains all of `other`.
    #[must_use]
    pub const fn has(self, other: States) -> bool {
        self.0 & other.0 == other.0
    }
}

// === impl TableName ===

impl TableName {
    /// All tables. nat comes first, so that a Service that gets its first endpoints is served a
    /// moment before it is no longer rejected, not after.
    pub const ALL: [TableName; 2] = [TableName::Nat, TableName::Filter];
}

// === impl AddressMatch ===

impl AddressMatch {
    /// Addresses in `range`.
    pub fn within(range: IpNet) -> AddressMatch {
        AddressMatch {
            range: range.trunc(),
            inverted: false,
        }
    }

    /// Addresses outside `range`.
    pub fn outside(range: IpNet) -> AddressMatch {
        AddressMatch {
            inverted: true,
            ..AddressMatch::within(range)
        }
    }

    /// Whether it matches `address`.
    pub fn matches(&self, address: IpAddr) -> bool {
        self.range.contains(&address) != self.inverted
    }
}

// === impl InterfaceMatch ===

impl InterfaceMatch {
    /// Whether it matches a packet that came in on `interface`; `None` for a packet sent from here.
    pub fn matches(&self, interface: Option<&str>) -> bool {
        let name = interface.unwrap_or("");
        let same = match self.is_prefix {
            true => name.starts_with(&*self.name),
            false => name == &*self.name,
        };
        same != self.inverted
    }
}
