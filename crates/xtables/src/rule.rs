//! One rule of iptables, of the forms that Signpost writes.

mod print;

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

pub use address::{Family, Protocol};

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableName {
    /// `nat`: sees the first packet of a connection.
    Nat,
    /// `filter`: sees every packet.
    Filter,
}

/// A chain that the kernel has by itself, one for each hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BuiltIn {
    /// A packet has come in, before routing. Table nat alone.
    Prerouting,
    /// A packet is for this machine.
    Input,
    /// A packet passes through. Table filter alone.
    Forward,
    /// A packet of a process on this machine.
    Output,
    /// A packet is about to leave. Table nat alone.
    Postrouting,
}

/// One rule. A packet that matches all of it goes to the target. What is asked first is what every
/// rule can ask without a match of its own: the fields before `matches`.
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
    /// `-m`, in the order in which they are asked. One that keeps something in mind
    /// ([`Recent::Set`], [`Match::Random`]) does so only when all before it match.
    pub matches: Vec<Match>,
    /// `-j` or `-g`.
    pub target: Target,
    /// `-m comment --comment`: for listings. At most 255 bytes, without quotes and
    /// control characters.
    pub comment: Option<Arc<str>>,
}

/// Packets with an address in a range, or with one outside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressMatch {
    /// The range; its host bits are zero.
    pub range: IpNet,
    /// Whether those outside are meant (`! -s`).
    pub inverted: bool,
}

/// Packets that came in on an interface, or on any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceMatch {
    /// Its name, at most 15 bytes.
    pub name: Arc<str>,
    /// Whether every interface is meant whose name begins so (`name+`).
    pub is_prefix: bool,
    /// Whether it matches every other interface (`! -i`).
    pub inverted: bool,
}

/// What a match asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// `-m tcp --dport first:last`, of the rule's protocol.
    DestinationPorts {
        /// The first.
        first: u16,
        /// The last, not before the first.
        last: u16,
    },
    /// `-m addrtype --src-type LOCAL` or `--dst-type LOCAL`: an address of this machine.
    LocalAddress(Which),
    /// `-m conntrack --ctstate`: any of these.
    ConnectionState(States),
    /// `-m mark --mark value/mask`.
    Mark {
        /// What must be left of the packet's mark.
        value: u32,
        /// The bits that are looked at.
        mask: u32,
    },
    /// `-m recent`, of the source.
    Recent {
        /// The list's name: at most 199 bytes, without `/`.
        list: Arc<str>,
        /// What is done.
        what: Recent,
    },
    /// `-m statistic --mode random`: matches so many times in 2^31.
    Random {
        /// From 0 to 2^31.
        probability: u32,
    },
    /// `-m statistic --mode nth --packet 0`: matches the first of so many times, and then again.
    Nth {
        /// At least 1.
        every: u32,
    },
}

/// Which end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// States of a packet's connection, a set: the bits of `xt_conntrack` (`XT_CONNTRACK_STATE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States(pub u16);

/// What `-m recent` does with a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recent {
    /// `--rcheck --seconds n --reap`: the source was written down within so many seconds; older
    /// entries go.
    Check {
        /// Not 0.
        seconds: u32,
    },
    /// `--set`: writes the source down, now. Matches always.
    Set,
}

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `-j ACCEPT`: this table is done with it.
    Accept,
    /// `-j DROP`.
    Drop,
    /// `-j RETURN`.
    Return,
    /// `-j chain`.
    Jump(Arc<str>),
    /// `-g chain`: at its end, back to the chain that jumped here.
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
        /// What is xored.
        value: u32,
        /// What is cleared before.
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

    /// Whether it asks what `other` asks, so that both match the same packets.
    pub fn asks_the_same_as(&self, other: &Rule) -> bool {
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

    /// The chain that it leads to.
    pub fn leads_to(&self) -> Option<&Arc<str>> {
        match &self.target {
            Target::Jump(chain) | Target::Goto(chain) => Some(chain),
            _ => None,
        }
    }
}

// === impl Match ===

impl Match {
    /// The probability that is always reached.
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
    /// `DNAT`: its destination was rewritten.
    pub const DNAT: States = States(1 << 7);

    /// These and those.
    #[must_use]
    pub const fn or(self, other: States) -> States {
        States(self.0 | other.0)
    }

    /// Whether all of `other` is among these.
    #[must_use]
    pub const fn has(self, other: States) -> bool {
        self.0 & other.0 == other.0
    }
}

// === impl TableName ===

impl TableName {
    /// All of them. What redirects comes first, so that a Service that has just got its endpoints
    /// is served a moment before it is no longer refused, not after.
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

    /// Whether `address` is meant.
    pub fn matches(&self, address: IpAddr) -> bool {
        self.range.contains(&address) != self.inverted
    }
}

// === impl InterfaceMatch ===

impl InterfaceMatch {
    /// Whether a packet that came in on `interface` is meant; `None`: it was sent from here.
    pub fn matches(&self, interface: Option<&str>) -> bool {
        let name = interface.unwrap_or("");
        let same = match self.is_prefix {
            true => name.starts_with(&*self.name),
            false => name == &*self.name,
        };
        same != self.inverted
    }
}
