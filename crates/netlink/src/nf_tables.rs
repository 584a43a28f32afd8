//! nf_tables objects as values, with the kernel's names.

mod decode;
mod encode;
mod expression;
mod extension;
mod flowtable;
mod foreign;
mod jenkins;
mod listed;
mod print;
mod transaction;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub use address::Family;
pub use decode::DecodeError;
pub(crate) use decode::{chain, elements, generation, rule, set};
pub(crate) use encode::{
    Batch, encode, encode_check, encode_dump, encode_generation, encode_get_chain,
    encode_get_extension, encode_get_table, message as request,
};
pub use expression::{
    ADDRESS_TYPE_LOCAL, CONNECTION_LABELS, CtKey, Direction, Expression, FibField, MapUpdate,
    MetaKey, Module, NatKind, NumberGenerator, Operator, PayloadBase, Register, RejectKind,
    SettableCtKey, connection_label,
};
pub use extension::{Extension, ExtensionKind};
pub(crate) use flowtable::flowtable;
pub use flowtable::{Flowtable, ListedFlowtable};
pub use foreign::{Entry, ForeignChain, Jump, TableState};
pub(crate) use foreign::{foreign_chain, jump, table_state};
pub use jenkins::{jhash, reciprocal_scale};
pub use listed::ListedRule;
pub(crate) use listed::listed;
pub use print::{Typed, family_name};
pub use transaction::{Operation, Transaction};

/// An object with its name, or that of its chain; or why Signpost cannot have written it.
pub type Named<T> = (Arc<str>, Result<T, DecodeError>);

/// A chain without its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name, unique in its table.
    pub name: Arc<str>,
    /// The hook at which packets enter it; `None` for a chain that only verdicts lead to.
    pub hook: Option<Hook>,
}

/// How a base chain is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// `filter`, `nat` or `route`.
    pub kind: ChainKind,
    /// The hook point.
    pub point: HookPoint,
    /// Its order among the chains of that hook point; lower comes first.
    pub priority: i32,
}

/// The type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// `type filter`.
    Filter,
    /// `type nat`: only the first packet of a connection traverses it.
    Nat,
    /// `type route`: packets whose mark or header changes here are routed again. Only at
    /// [`HookPoint::Output`].
    Route,
}

/// `NF_INET_*` hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookPoint {
    /// Incoming packets, before routing.
    Prerouting,
    /// Packets for this machine.
    Input,
    /// Forwarded packets.
    Forward,
    /// Packets of processes on this machine.
    Output,
    /// Packets that are about to leave.
    Postrouting,
}

/// One rule: expressions in order. Rules have no names; chains are compared as lists of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its matches and actions, in order.
    pub expressions: Vec<Expression>,
    /// Shown in listings; at most 253 bytes (`NFT_USERDATA_MAXLEN`), of which nft writes 127.
    pub comment: Option<Arc<str>>,
}

/// A set or map without its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Its name, unique in its table.
    pub name: Arc<str>,
    /// The fields of a key, in order.
    pub key: Vec<DataType>,
    /// The type of its elements' data.
    pub content: SetContent,
    /// What adds and removes its elements.
    pub writer: SetWriter,
}

/// What adds and removes the elements of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetWriter {
    /// Only transactions.
    Transactions,
    /// Packets, by [`Expression::Learn`]. Each element has a timeout.
    Packets {
        /// The maximum number of elements.
        capacity: u32,
    },
}

/// Whether a set is a map, and the type of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetContent {
    /// Not a map: elements have keys only.
    Membership,
    /// A map to verdicts.
    Verdicts,
    /// A map to values with these fields.
    Values(Vec<DataType>),
}

/// The type of a field of a key or value. Each field occupies whole 32-bit registers, and so a
/// multiple of four bytes in a concatenation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataType {
    /// `ipv4_addr`, 4 bytes, network order.
    Ipv4Address,
    /// `ipv6_addr`, 16 bytes.
    Ipv6Address,
    /// `inet_proto`, 1 byte.
    Protocol,
    /// `inet_service`, 2 bytes, network order.
    Service,
    /// `mark`, 4 bytes, host order. Also used for plain numbers: nft has no named integer type of
    /// fixed size, and every version prints this one.
    Mark,
}

/// Bytes of a key or a value, laid out as in registers.
#[derive(Clone)]
pub struct Bytes(Stored);

/// Storage of [`Bytes`]. A large cluster has a hundred thousand keys, and almost all consist of an
/// address, a protocol, a port and a slot. Longer ones, such as two IPv6 addresses, are boxed.
#[derive(Clone)]
enum Stored {
    Inline {
        length: u8,
        buffer: [u8; Bytes::INLINE],
    },
    Boxed(Box<[u8]>),
}

/// The data of an element of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementData {
    /// No data: the set is not a map.
    None,
    /// A value, loaded into registers.
    Value(Bytes),
    /// A verdict.
    Verdict(Verdict),
}

/// What a rule or element does with a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Accepts the packet at this hook.
    Accept,
    /// Drops the packet.
    Drop,
    /// Continues with the rules of a chain, then returns here.
    Jump(Arc<str>),
    /// Continues with the rules of a chain, then returns to the chain that jumped to this one.
    Goto(Arc<str>),
    /// Returns to the chain that jumped to this one.
    Return,
}

// === impl DataType ===

impl DataType {
    /// The type of the addresses of a family.
    pub fn address(family: Family) -> DataType {
        match family {
            Family::Ipv4 => DataType::Ipv4Address,
            Family::Ipv6 => DataType::Ipv6Address,
        }
    }

    /// The number of bytes it uses in a register.
    pub fn size(self) -> usize {
        match self {
            DataType::Ipv4Address | DataType::Mark => 4,
            DataType::Ipv6Address => 16,
            DataType::Protocol => 1,
            DataType::Service => 2,
        }
    }

    /// The number of bytes it occupies in a concatenation.
    pub fn width(self) -> usize {
        self.size().next_multiple_of(4)
    }

    /// nft's number of the type (`enum datatypes` of nftables' include/datatype.h). The kernel only
    /// stores it, but nft cannot print a listing without it.
    pub(crate) fn number(self) -> u32 {
        match self {
            DataType::Ipv4Address => 7,
            DataType::Ipv6Address => 8,
            DataType::Protocol => 12,
            DataType::Service => 13,
            DataType::Mark => 19,
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<DataType> {
        [
            DataType::Ipv4Address,
            DataType::Ipv6Address,
            DataType::Protocol,
            DataType::Service,
            DataType::Mark,
        ]
        .into_iter()
        .find(|t| t.number() == number)
    }
}

// === impl Bytes ===

impl Bytes {
    /// The longest key: two IPv6 addresses, a protocol and a port.
    pub const CAPACITY: usize = 40;

    /// The inline capacity. With it, key and data of an element take 64 bytes together: an
    /// [`ElementData`] is as long as its largest variant.
    const INLINE: usize = 30;

    /// No bytes.
    pub const fn new() -> Bytes {
        Bytes(Stored::Inline {
            length: 0,
            buffer: [0; Bytes::INLINE],
        })
    }

    /// Copies `bytes`; `None` if they are longer than [`Bytes::CAPACITY`].
    pub fn from_slice(bytes: &[u8]) -> Option<Bytes> {
        (bytes.len() <= Bytes::CAPACITY).then(|| Bytes::new().with(bytes))
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Stored::Inline { length, buffer } => &buffer[..usize::from(*length)],
            Stored::Boxed(bytes) => bytes,
        }
    }

    /// Appends one field, padded to a whole register.
    ///
    /// # Panics
    /// If the result exceeds [`Bytes::CAPACITY`]; the layouts of keys are constants.
    #[must_use]
    #[inline]
    pub fn with(mut self, field: &[u8]) -> Bytes {
        if let Stored::Inline { length, buffer } = &mut self.0 {
            let start = usize::from(*length);
            let end = start + field.len().next_multiple_of(4);
            if let Ok(end) = u8::try_from(end)
                && usize::from(end) <= Bytes::INLINE
            {
                buffer[start..start + field.len()].copy_from_slice(field);
                *length = end;
                return self;
            }
        }
        self.with_elsewhere(field)
    }

    /// Like [`Bytes::with`], for a result too long to store inline. A separate function, so that
    /// the compiler inlines the short case: fields have known lengths, and a start of the agent
    /// makes a million keys.
    fn with_elsewhere(&self, field: &[u8]) -> Bytes {
        let start = self.as_slice().len();
        let end = start + field.len().next_multiple_of(4);
        assert!(end <= Bytes::CAPACITY, "a key of {end} bytes");
        let mut bytes = vec![0; end];
        bytes[..start].copy_from_slice(self.as_slice());
        bytes[start..start + field.len()].copy_from_slice(field);
        Bytes(Stored::Boxed(bytes.into()))
    }
}

impl PartialEq for Bytes {
    #[inline]
    fn eq(&self, other: &Bytes) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Bytes {}

impl PartialOrd for Bytes {
    #[inline]
    fn partial_cmp(&self, other: &Bytes) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bytes {
    /// Shorter keys come first.
    #[inline]
    fn cmp(&self, other: &Bytes) -> Ordering {
        // An inline buffer is zero behind its end. Comparing whole buffers of constant length needs
        // no function call; a start of the agent makes millions of comparisons.
        if let (
            Stored::Inline { length, buffer },
            Stored::Inline {
                length: others,
                buffer: other,
            },
        ) = (&self.0, &other.0)
        {
            return length.cmp(others).then_with(|| buffer.cmp(other));
        }
        let (own, other) = (self.as_slice(), other.as_slice());
        (own.len(), own).cmp(&(other.len(), other))
    }
}

impl Hash for Bytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes::new()
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.as_slice() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
