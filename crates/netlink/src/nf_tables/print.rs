//! Prints values in nft's syntax, for logs, bug reports and golden files.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};

use super::{
    Bytes, CONNECTION_LABELS, Chain, ChainKind, CtKey, DataType, Direction, ElementData,
    Expression, Family, FibField, Flowtable, Hook, HookPoint, MapUpdate, MetaKey, NumberGenerator,
    Operation, Operator, PayloadBase, Register, RejectKind, Rule, Set, SetContent, SetWriter,
    SettableCtKey, Transaction, Verdict,
};

/// A key or value with the types of its fields.
#[derive(Debug, Clone, Copy)]
pub struct Typed<'a> {
    fields: &'a [DataType],
    bytes: &'a Bytes,
}

impl Bytes {
    /// Interprets these bytes as `fields`; bytes beyond them are printed in hexadecimal.
    pub fn typed<'a>(&'a self, fields: &'a [DataType]) -> Typed<'a> {
        Typed {
            fields,
            bytes: self,
        }
    }
}

impl Display for Typed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.bytes.as_slice();
        for (at, field) in self.fields.iter().enumerate() {
            if at > 0 {
                f.write_str(" . ")?;
            }
            let Some(bytes) = rest.get(..field.size()) else {
                return f.write_str("?");
            };
            rest = rest.get(field.width()..).unwrap_or(&[]);
            write_field(f, *field, bytes)?;
        }
        if !rest.is_empty() {
            f.write_str(" . 0x")?;
            for byte in rest {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

fn write_field(f: &mut fmt::Formatter<'_>, field: DataType, bytes: &[u8]) -> fmt::Result {
    match (field, bytes) {
        (DataType::Ipv4Address, &[a, b, c, d]) => Ipv4Addr::new(a, b, c, d).fmt(f),
        (DataType::Ipv6Address, bytes) => match <[u8; 16]>::try_from(bytes) {
            Ok(octets) => Ipv6Addr::from(octets).fmt(f),
            Err(_) => f.write_str("?"),
        },
        (DataType::Protocol, [6]) => f.write_str("tcp"),
        (DataType::Protocol, [17]) => f.write_str("udp"),
        (DataType::Protocol, [132]) => f.write_str("sctp"),
        (DataType::Protocol, [number]) => number.fmt(f),
        (DataType::Service, &[high, low]) => u16::from_be_bytes([high, low]).fmt(f),
        (DataType::Mark, &[a, b, c, d]) => write!(f, "{:#010x}", u32::from_ne_bytes([a, b, c, d])),
        _ => f.write_str("?"),
    }
}

impl Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DataType::Ipv4Address => "ipv4_addr",
            DataType::Ipv6Address => "ipv6_addr",
            DataType::Protocol => "inet_proto",
            DataType::Service => "inet_service",
            DataType::Mark => "mark",
        })
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

impl Display for Set {
    /// `services { type ipv4_addr . inet_proto . inet_service : verdict }`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {{ type {}", self.name, join(&self.key))?;
        match &self.content {
            SetContent::Membership => {}
            SetContent::Verdicts => f.write_str(" : verdict")?,
            SetContent::Values(fields) => write!(f, " : {}", join(fields))?,
        }
        match self.writer {
            SetWriter::Transactions => f.write_str(" }"),
            SetWriter::Packets { capacity } => {
                write!(f, "; size {capacity}; flags dynamic,timeout }}")
            }
        }
    }
}

fn join(fields: &[DataType]) -> String {
    let names: Vec<String> = fields.iter().map(DataType::to_string).collect();
    names.join(" . ")
}

impl Set {
    fn keyword(&self) -> &'static str {
        match self.content {
            SetContent::Membership => "set",
            _ => "map",
        }
    }

    /// Formats one element as nft would.
    pub fn element(&self, key: &Bytes, data: &ElementData) -> String {
        let key = key.typed(&self.key);
        match (data, &self.content) {
            (ElementData::None, _) => key.to_string(),
            (ElementData::Verdict(verdict), _) => format!("{key} : {verdict}"),
            (ElementData::Value(value), SetContent::Values(fields)) => {
                format!("{key} : {}", value.typed(fields))
            }
            (ElementData::Value(value), _) => format!("{key} : {value:?}"),
        }
    }
}

impl Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match &self.hook {
            None => Ok(()),
            Some(hook) => write!(f, " {{ type {hook}; }}"),
        }
    }
}

impl Display for Hook {
    /// `nat hook prerouting priority -100`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ChainKind::Filter => "filter",
            ChainKind::Nat => "nat",
            ChainKind::Route => "route",
        };
        let point = match self.point {
            HookPoint::Prerouting => "prerouting",
            HookPoint::Input => "input",
            HookPoint::Forward => "forward",
            HookPoint::Output => "output",
            HookPoint::Postrouting => "postrouting",
        };
        write!(f, "{kind} hook {point} priority {}", self.priority)
    }
}

impl Display for Flowtable {
    /// `services { hook ingress priority 0; }`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Flowtable { name, priority } = self;
        write!(f, "{name} {{ hook ingress priority {priority}; }}")
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut registers = Registers::default();
        let statements: Vec<String> = self
            .expressions
            .iter()
            .filter_map(|expression| registers.statement(expression))
            .collect();
        f.write_str(&statements.join(" "))?;
        match &self.comment {
            Some(comment) => write!(f, " comment {comment:?}"),
            None => Ok(()),
        }
    }
}

/// A description of each register's content at one point of a rule.
#[derive(Default)]
struct Registers(BTreeMap<u8, (u8, String)>);

impl Registers {
    fn load(&mut self, to: Register, length: usize, text: String) -> Option<String> {
        let words = u8::try_from(length.div_ceil(4)).unwrap_or(u8::MAX);
        self.0.insert(to.0, (words, text));
        None
    }

    /// Removes and returns the fields in `from` and the registers after it, so that a later key
    /// does not contain them.
    fn key(&mut self, from: Register) -> String {
        let mut fields = Vec::new();
        let mut at = from.0;
        while let Some((words, text)) = self.0.remove(&at) {
            fields.push(text);
            at = at.saturating_add(words);
        }
        fields.join(" . ")
    }

    fn statement(&mut self, expression: &Expression) -> Option<String> {
        match expression {
            Expression::Payload {
                base,
                offset,
                length,
                to,
            } => {
                let text = payload(*base, *offset, *length);
                self.load(*to, usize::try_from(*length).unwrap_or(0), text)
            }
            Expression::SetPayload {
                base,
                offset,
                length,
                from,
            } => {
                let field = payload(*base, *offset, *length);
                Some(format!("{field} set {}", self.key(*from)))
            }
            Expression::Meta { key, to } => {
                let (length, text) = match key {
                    MetaKey::Mark => (4, "meta mark"),
                    MetaKey::InputInterfaceName => (16, "iifname"),
                    MetaKey::TransportProtocol => (1, "meta l4proto"),
                };
                self.load(*to, length, text.to_owned())
            }
            Expression::Ct { key, direction, to } => {
                let direction = match direction {
                    None => "",
                    Some(Direction::Original) => "original ",
                    Some(Direction::Reply) => "reply ",
                };
                let (length, key) = match key {
                    CtKey::State => (4, "state"),
                    CtKey::Status => (4, "status"),
                    CtKey::Ipv4Source => (4, "ip saddr"),
                    CtKey::Ipv4Destination => (4, "ip daddr"),
                    CtKey::Ipv6Source => (16, "ip6 saddr"),
                    CtKey::Ipv6Destination => (16, "ip6 daddr"),
                    CtKey::DestinationPort => (2, "proto-dst"),
                    CtKey::Direction => (1, "direction"),
                    CtKey::Labels => (16, "label"),
                };
                self.load(*to, length, format!("ct {direction}{key}"))
            }
            Expression::Numgen {
                generator,
                modulus,
                offset,
                to,
            } => {
                let generator = match generator {
                    NumberGenerator::Incremental => "inc",
                    NumberGenerator::Random => "random",
                };
                let mut text = format!("numgen {generator} mod {modulus}");
                if *offset != 0 {
                    let _ = write!(text, " offset {offset}");
                }
                self.load(*to, 4, text)
            }
            Expression::Hash {
                from,
                modulus,
                seed,
                offset,
                to,
                ..
            } => {
                let hashed = self.key(*from);
                let text = format!("jhash {hashed} mod {modulus} seed {seed:#x} offset {offset}");
                self.load(*to, 4, text)
            }
            Expression::Learn {
                set,
                how,
                key,
                value,
            } => {
                // The value lies behind the key and would otherwise be taken for another field of
                // it.
                let value = self.key(*value);
                let key = self.key(*key);
                Some(match how {
                    MapUpdate::Update { timeout } => {
                        let seconds = timeout.as_secs();
                        format!("update @{set} {{ {key} timeout {seconds}s : {value} }}")
                    }
                    MapUpdate::Delete => format!("delete @{set} {{ {key} : {value} }}"),
                })
            }
            Expression::FibType { field, to } => {
                let field = match field {
                    FibField::Source => "saddr",
                    FibField::Destination => "daddr",
                };
                self.load(*to, 4, format!("fib {field} type"))
            }
            Expression::Bitwise {
                from,
                to,
                mask,
                xor,
            } => {
                let operand = self.key(*from);
                let (ones, bits) = (number(&operand, mask), number(&operand, xor));
                let text = if xor.iter().all(|byte| *byte == 0) {
                    format!("{operand} & {ones}")
                } else if mask.iter().zip(xor).all(|(mask, xor)| *mask == !xor) {
                    format!("{operand} | {bits}")
                } else {
                    format!("({operand} & {ones}) ^ {bits}")
                };
                self.load(*to, mask.len(), text)
            }
            Expression::Compare {
                from,
                operator,
                value,
            } => {
                let operator = match operator {
                    Operator::Equal => "==",
                    Operator::NotEqual => "!=",
                };
                let left = self.key(*from);
                let right = match left.as_str() {
                    "iifname" => String::from_utf8_lossy(value).replace('\0', ""),
                    _ => number(&left, value),
                };
                Some(format!("{left} {operator} {right}"))
            }
            Expression::Range {
                from,
                operator,
                first,
                last,
            } => {
                let not = match operator {
                    Operator::Equal => "",
                    Operator::NotEqual => "!= ",
                };
                let left = self.key(*from);
                let (first, last) = (number(&left, first), number(&left, last));
                Some(format!("{left} {not}{first}-{last}"))
            }
            Expression::SetMeta { key: _, from } => {
                Some(format!("meta mark set {}", self.key(*from)))
            }
            Expression::SetCt { key, from } => {
                let value = self.key(*from);
                Some(match key {
                    SettableCtKey::Labels => format!("ct label set {value}"),
                })
            }
            Expression::Load { value, to } => self.load(*to, value.len(), number("", value)),
            Expression::Lookup { set, from } => Some(format!("{} @{set}", self.key(*from))),
            Expression::LookupVerdict { set, from } => {
                Some(format!("{} vmap @{set}", self.key(*from)))
            }
            Expression::LookupValue { set, from, to } => {
                let text = format!("{} map @{set}", self.key(*from));
                // A value of several words overwrites the old content behind its first word.
                let behind = Register(to.0.saturating_add(1));
                if self.0.contains_key(&behind.0) {
                    self.load(behind, 4, text.clone());
                }
                self.load(*to, 4, text)
            }
            Expression::Immediate(verdict) => Some(verdict.to_string()),
            Expression::Nat { address, .. } => Some(format!("dnat to {}", self.key(*address))),
            Expression::Masquerade => Some("masquerade fully-random".to_owned()),
            Expression::Reject(RejectKind::PortUnreachable) => Some("reject".to_owned()),
            Expression::Reject(RejectKind::TcpReset) => Some("reject with tcp reset".to_owned()),
            Expression::Offload { flowtable } => Some(format!("flow add @{flowtable}")),
            Expression::Counter => Some("counter".to_owned()),
            Expression::Match(module) => Some(format!("xt match {}", module.name)),
            Expression::Target(module) => Some(format!("xt target {}", module.name)),
        }
    }
}

/// The name of a field of the packet.
fn payload(base: PayloadBase, offset: u32, length: u32) -> String {
    match (base, offset, length) {
        (PayloadBase::Network, 12, 4) => "ip saddr".to_owned(),
        (PayloadBase::Network, 16, 4) => "ip daddr".to_owned(),
        (PayloadBase::Network, 8, 16) => "ip6 saddr".to_owned(),
        (PayloadBase::Network, 24, 16) => "ip6 daddr".to_owned(),
        (PayloadBase::Transport, 0, 2) => "th sport".to_owned(),
        (PayloadBase::Transport, 2, 2) => "th dport".to_owned(),
        (PayloadBase::Network, ..) => raw("nh", offset, length),
        (PayloadBase::Transport, ..) => raw("th", offset, length),
    }
}

/// Bytes of a header without a name in nft, which counts bits.
fn raw(header: &str, offset: u32, length: u32) -> String {
    let bits = |bytes: u32| u64::from(bytes) * 8;
    format!("@{header},{},{}", bits(offset), bits(length))
}

/// Formats a constant that is compared with `operand`: metadata is a number in host order, packet
/// content is bytes.
fn number(operand: &str, bytes: &[u8]) -> String {
    let from_packet = operand.starts_with("ip") || operand.starts_with('@');
    if let Some(label) = label(bytes).filter(|_| !from_packet) {
        return label.to_string();
    }
    match <[u8; 4]>::try_from(bytes) {
        Ok(bytes) if !from_packet => format!("{:#010x}", u32::from_ne_bytes(bytes)),
        _ => bytes.iter().fold(String::from("0x"), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }),
    }
}

/// The number of the only label set in `bytes`, if these are connection labels.
fn label(bytes: &[u8]) -> Option<u32> {
    if bytes.len() != CONNECTION_LABELS / 8 {
        return None;
    }
    let words = bytes.chunks_exact(4).map(|word| word.try_into());
    let words: Vec<u32> = words
        .filter_map(|word| word.ok().map(u32::from_ne_bytes))
        .collect();
    let mut set = (0_u32..)
        .step_by(32)
        .zip(&words)
        .filter(|(_, word)| **word != 0);
    match (set.next(), set.next()) {
        (Some((first, word)), None) if word.is_power_of_two() => {
            Some(first + word.trailing_zeros())
        }
        _ => None,
    }
}

/// nft's name of a family: `ip`, `ip6`.
pub fn family_name(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    }
}

impl Display for Transaction {
    /// Prints one command per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = format!("{} {}", family_name(self.family), self.table);
        for operation in &self.operations {
            match operation {
                Operation::AddTable => writeln!(f, "add table {table}")?,
                Operation::AddOwnedTable => writeln!(f, "add table {table} {{ flags owner ; }}")?,
                Operation::DeleteTable => writeln!(f, "delete table {table}")?,
                Operation::FlushTable => writeln!(f, "flush table {table}")?,
                Operation::AddChain(chain) => writeln!(f, "add chain {table} {chain}")?,
                Operation::FlushChain(chain) => writeln!(f, "flush chain {table} {chain}")?,
                Operation::DeleteChain(chain) => writeln!(f, "delete chain {table} {chain}")?,
                Operation::DeleteRule { chain, handle } => {
                    writeln!(f, "delete rule {table} {chain} handle {handle}")?;
                }
                Operation::AddRule { chain, rule } => {
                    writeln!(f, "add rule {table} {chain} {rule}")?;
                }
                Operation::InsertRule { chain, rule } => {
                    writeln!(f, "insert rule {table} {chain} {rule}")?;
                }
                Operation::AddSet(set) => writeln!(f, "add {} {table} {set}", set.keyword())?,
                Operation::DeleteSet(set) => writeln!(f, "delete set {table} {set}")?,
                Operation::AddFlowtable(flowtable) => {
                    writeln!(f, "add flowtable {table} {flowtable}")?;
                }
                Operation::DeleteFlowtable(name) => {
                    writeln!(f, "delete flowtable {table} {name}")?;
                }
                Operation::AddDevice { flowtable, device } => {
                    let name = &flowtable.name;
                    writeln!(
                        f,
                        "add flowtable {table} {name} {{ devices = {{ {device} }} ; }}"
                    )?;
                }
                Operation::DeleteDevice { flowtable, device } => {
                    let name = &flowtable.name;
                    writeln!(
                        f,
                        "delete flowtable {table} {name} {{ devices = {{ {device} }} ; }}"
                    )?;
                }
                Operation::AddElements { set, elements } => {
                    for (key, data) in elements {
                        let element = set.element(key, data);
                        writeln!(f, "add element {table} {} {{ {element} }}", set.name)?;
                    }
                }
                Operation::DeleteElements { set, keys } => {
                    for key in keys {
                        let key = key.typed(&set.key);
                        writeln!(f, "delete element {table} {} {{ {key} }}", set.name)?;
                    }
                }
            }
        }
        Ok(())
    }
}
