//! Encodes and decodes a rule as an entry of a legacy table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use thiserror::Error;

use super::blob::Entry;
use super::layout::{
    CHAIN_NAME, ERROR, ERROR_TARGET, EXTENSION, EXTENSION_NAME, EXTENSION_REVISION, INTERFACE_NAME,
    INVERTED_DESTINATION, INVERTED_INPUT, INVERTED_PROTOCOL, INVERTED_SOURCE, Layout,
    STANDARD_TARGET, VERDICT_ACCEPT, VERDICT_DROP, VERDICT_RETURN, aligned, read_u16, read_u64,
    until_nul, write,
};
use crate::extension::{
    Extension, decode_comment, decode_match, decode_target, encode_comment, encode_match,
    encode_target,
};
use crate::{AddressMatch, CountedRule, Family, InterfaceMatch, Match, Protocol, Rule, Target};

/// Why a rule or a chain cannot be encoded as an entry.
#[derive(Debug, Error)]
pub(super) enum EncodeError {
    #[error("the name of the chain {0:?} is empty or longer than {CHAIN_NAME} bytes")]
    ChainName(String),
    #[error("the rule is for addresses of the other family: {0}")]
    Address(String),
    #[error("the name of the interface {0:?} is empty or longer than 15 bytes")]
    InterfaceName(String),
    #[error("the rule is longer than an entry can be: {0}")]
    Length(String),
}

/// Appends entries to a buffer.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) layout: &'static Layout,
    pub(super) family: Family,
    pub(super) bytes: Vec<u8>,
}

// === impl Writer ===

impl Writer {
    /// Appends `rule`. If it leads to a chain, it ends with a verdict that the caller fills in.
    pub(super) fn rule(&mut self, rule: &Rule) -> Result<(), EncodeError> {
        let start = self.begin();
        self.fields(start, rule)?;
        for asked in &rule.matches {
            self.extension(&encode_match(asked, rule.protocol));
        }
        // The comment is last, so that packets which another match rejects do not traverse it.
        if let Some(comment) = &rule.comment {
            self.extension(&encode_comment(comment));
        }
        let target = self.bytes.len();
        match (&rule.target, encode_target(&rule.target, self.family)) {
            (_, Some(extension)) => self.extension(&extension),
            (Target::Accept, None) => self.verdict(VERDICT_ACCEPT),
            (Target::Drop, None) => self.verdict(VERDICT_DROP),
            (Target::Return, None) => self.verdict(VERDICT_RETURN),
            (_, None) => self.verdict(0),
        }
        self.finish(start, target)
            .ok_or_else(|| EncodeError::Length(rule.to_string()))
    }

    /// Appends the entry that begins a chain.
    pub(super) fn head(&mut self, name: &str) -> Result<(), EncodeError> {
        let unfit = || EncodeError::ChainName(name.to_owned());
        if name.is_empty() || name.len() > CHAIN_NAME {
            return Err(unfit());
        }
        let start = self.begin();
        let target = self.bytes.len();
        self.bytes.resize(target + ERROR_TARGET, 0);
        let size = u16::try_from(ERROR_TARGET).unwrap_or_default();
        write(&mut self.bytes, target, &size.to_ne_bytes());
        write(&mut self.bytes, target + EXTENSION_NAME, ERROR);
        write(&mut self.bytes, target + EXTENSION, name.as_bytes());
        self.finish(start, target).ok_or_else(unfit)
    }

    /// Appends the entry that ends a chain.
    pub(super) fn foot(&mut self) -> Result<(), EncodeError> {
        self.rule(&Rule::always(Target::Return))
    }

    fn begin(&mut self) -> usize {
        let start = self.bytes.len();
        self.bytes.resize(start + self.layout.length, 0);
        start
    }

    fn finish(&mut self, start: usize, target: usize) -> Option<()> {
        let length = u16::try_from(self.bytes.len() - start).ok()?;
        let target = u16::try_from(target - start).ok()?;
        let layout = self.layout;
        self.put(start + layout.target_offset, &target.to_ne_bytes());
        self.put(start + layout.next_offset(), &length.to_ne_bytes());
        Some(())
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        write(&mut self.bytes, at, value);
    }

    fn fields(&mut self, start: usize, rule: &Rule) -> Result<(), EncodeError> {
        let layout = self.layout;
        let (mut flags, mut inverted) = (0, 0);
        let sides = [
            (
                &rule.source,
                layout.source(),
                layout.source_mask(),
                INVERTED_SOURCE,
            ),
            (
                &rule.destination,
                layout.destination(),
                layout.destination_mask(),
                INVERTED_DESTINATION,
            ),
        ];
        for (asked, address, mask, flag) in sides {
            let Some(asked) = asked else { continue };
            match (asked.range, self.family) {
                (IpNet::V4(range), Family::Ipv4) => {
                    self.put(start + address, &range.network().octets());
                    self.put(start + mask, &range.netmask().octets());
                }
                (IpNet::V6(range), Family::Ipv6) => {
                    self.put(start + address, &range.network().octets());
                    self.put(start + mask, &range.netmask().octets());
                }
                _ => return Err(EncodeError::Address(rule.to_string())),
            }
            if asked.inverted {
                inverted |= flag;
            }
        }
        if let Some(input) = &rule.input {
            let name = input.name.as_bytes();
            if name.is_empty() || name.len() >= INTERFACE_NAME {
                return Err(EncodeError::InterfaceName(input.name.as_ref().to_owned()));
            }
            // The comparison of a full name includes its terminating zero.
            let compared = name.len() + usize::from(!input.is_prefix);
            self.put(start + layout.input(), name);
            let mask = [0xff; INTERFACE_NAME];
            self.put(start + layout.input_mask(), &mask[..compared]);
            if input.inverted {
                inverted |= INVERTED_INPUT;
            }
        }
        if let Some(protocol) = rule.protocol {
            let number = u16::from(protocol.number());
            self.put(start + layout.protocol, &number.to_ne_bytes());
            flags |= layout.flag_protocol;
        }
        if matches!(rule.target, Target::Goto(_)) {
            flags |= layout.flag_goto;
        }
        self.put(start + layout.flags, &[flags]);
        self.put(start + layout.inverted, &[inverted]);
        Ok(())
    }

    fn extension(&mut self, extension: &Extension) {
        let start = self.bytes.len();
        let length = EXTENSION + aligned(extension.payload.len());
        self.bytes.resize(start + length, 0);
        // No extension of Signpost comes near this limit; `finish` rejects an entry that exceeds
        // it.
        let size = u16::try_from(length).unwrap_or(u16::MAX);
        self.put(start, &size.to_ne_bytes());
        self.put(start + EXTENSION_NAME, extension.name.as_bytes());
        self.put(start + EXTENSION_REVISION, &[extension.revision]);
        self.put(start + EXTENSION, &extension.payload);
    }

    fn verdict(&mut self, verdict: i32) {
        let start = self.bytes.len();
        self.bytes.resize(start + STANDARD_TARGET, 0);
        let size = u16::try_from(STANDARD_TARGET).unwrap_or_default();
        self.put(start, &size.to_ne_bytes());
        self.put(start + EXTENSION, &verdict.to_ne_bytes());
    }
}

/// Decodes `entry` if it is a rule that Signpost writes. `chain` is the chain that it leads to, if
/// any.
pub(super) fn decode(
    entry: Entry<'_>,
    layout: &Layout,
    family: Family,
    chain: Option<Arc<str>>,
) -> Option<Rule> {
    let bytes = entry.bytes;
    let flags = *bytes.get(layout.flags)?;
    let inverted = *bytes.get(layout.inverted)?;
    let known = INVERTED_INPUT | INVERTED_SOURCE | INVERTED_DESTINATION;
    let asks_more = inverted & !known != 0
        || flags & !(layout.flag_protocol | layout.flag_goto) != 0
        || bytes
            .get(layout.output_mask()..layout.protocol)?
            .iter()
            .any(|byte| *byte != 0);
    if asks_more {
        return None;
    }
    let protocol = match read_u16(bytes, layout.protocol)? {
        0 => None,
        number => Some(Protocol::from_number(u8::try_from(number).ok()?)?),
    };
    let is_outside = inverted & INVERTED_SOURCE != 0;
    let source = address_match(
        bytes,
        layout,
        [layout.source(), layout.source_mask()],
        is_outside,
    )?;
    let destination = destination(bytes, layout, inverted)?;
    let input = interface(bytes, layout, inverted & INVERTED_INPUT != 0)?;
    let (matches, comment) = matches(entry, layout, protocol)?;
    Some(Rule {
        source,
        destination,
        input,
        protocol,
        matches,
        target: target(entry, family, flags & layout.flag_goto != 0, chain)?,
        comment,
    })
}

/// Decodes what any rule, also of another program, asks of the destination, where it sends packets,
/// and its counter. Other matches are ignored. `chain` is the chain that it leads to, if any.
pub(super) fn decode_counted(
    entry: Entry<'_>,
    layout: &Layout,
    family: Family,
    chain: Option<Arc<str>>,
) -> Option<CountedRule> {
    let bytes = entry.bytes;
    let inverted = *bytes.get(layout.inverted)?;
    let number = read_u16(bytes, layout.protocol)?;
    let number = u8::try_from(number).ok();
    let number = number.filter(|_| inverted & INVERTED_PROTOCOL == 0);
    let protocol = number.and_then(Protocol::from_number);
    Some(CountedRule {
        destination: destination(bytes, layout, inverted)?,
        protocol,
        destination_port: destination_port(entry, layout, protocol),
        leads_to: chain,
        translates_to: translation(entry, family),
        packets: read_u64(bytes, layout.counters())?,
    })
}

fn translation(entry: Entry<'_>, family: Family) -> Option<SocketAddr> {
    let (name, revision, payload) = extension(entry.bytes.get(entry.target..)?)?;
    match decode_target(name, revision, payload, family)? {
        Target::DestinationNat { address, port } => Some(SocketAddr::new(address, port)),
        _ => None,
    }
}

/// The only destination port that a rule matches. kube-proxy puts a comment before it.
fn destination_port(entry: Entry<'_>, layout: &Layout, protocol: Option<Protocol>) -> Option<u16> {
    let mut rest = entry.bytes.get(layout.length..entry.target)?;
    loop {
        let size = usize::from(read_u16(rest, 0)?);
        let (asked, behind) = rest.split_at_checked(size)?;
        rest = behind;
        let (name, revision, payload) = extension(asked)?;
        if let Some(Match::DestinationPorts { first, last }) =
            decode_match(name, revision, payload, protocol)
        {
            return (first == last).then_some(first);
        }
    }
}

fn destination(bytes: &[u8], layout: &Layout, inverted: u8) -> Option<Option<AddressMatch>> {
    address_match(
        bytes,
        layout,
        [layout.destination(), layout.destination_mask()],
        inverted & INVERTED_DESTINATION != 0,
    )
}

/// The match of the address and the mask at these offsets; `Some(None)` if it matches any address.
fn address_match(
    bytes: &[u8],
    layout: &Layout,
    at: [usize; 2],
    inverted: bool,
) -> Option<Option<AddressMatch>> {
    let [address, mask] = at.map(|at| address(bytes.get(at..at + layout.address)?));
    let range = IpNet::with_netmask(address?, mask?).ok()?;
    let asked = range.prefix_len() > 0 || inverted;
    Some(asked.then_some(AddressMatch { range, inverted }))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(*bytes.first_chunk()?).into()),
        _ => Some(Ipv6Addr::from(*bytes.first_chunk()?).into()),
    }
}

/// The interface match of an entry; `Some(None)` if it matches any interface.
fn interface(bytes: &[u8], layout: &Layout, inverted: bool) -> Option<Option<InterfaceMatch>> {
    let name = until_nul(bytes.get(layout.input()..layout.output())?);
    let mask = bytes.get(layout.input_mask()..layout.output_mask())?;
    let compared = mask.iter().take_while(|byte| **byte == 0xff).count();
    if mask[compared..].iter().any(|byte| *byte != 0) {
        return None;
    }
    if compared == 0 {
        return (!inverted).then_some(None);
    }
    let is_prefix = compared <= name.len();
    if !is_prefix && compared != name.len() + 1 {
        return None;
    }
    // iptables stores the plus sign behind the compared part.
    let name = &name[..compared.min(name.len())];
    Some(Some(InterfaceMatch {
        name: str::from_utf8(name).ok()?.into(),
        is_prefix,
        inverted,
    }))
}

fn matches(
    entry: Entry<'_>,
    layout: &Layout,
    protocol: Option<Protocol>,
) -> Option<(Vec<Match>, Option<Arc<str>>)> {
    let mut rest = entry.bytes.get(layout.length..entry.target)?;
    let (mut matches, mut comment) = (Vec::new(), None);
    while !rest.is_empty() {
        let size = usize::from(read_u16(rest, 0)?);
        let (asked, behind) = rest.split_at_checked(size)?;
        rest = behind;
        let (name, revision, payload) = extension(asked)?;
        match decode_match(name, revision, payload, protocol) {
            Some(asked) => matches.push(asked),
            None if rest.is_empty() => {
                comment = Some(decode_comment(name, revision, payload)?.into());
            }
            None => return None,
        }
    }
    Some((matches, comment))
}

fn target(
    entry: Entry<'_>,
    family: Family,
    is_goto: bool,
    chain: Option<Arc<str>>,
) -> Option<Target> {
    match (entry.verdict(), chain) {
        (Some(_), Some(chain)) if is_goto => Some(Target::Goto(chain)),
        (Some(_), Some(chain)) => Some(Target::Jump(chain)),
        (Some(VERDICT_ACCEPT), None) => Some(Target::Accept),
        (Some(VERDICT_DROP), None) => Some(Target::Drop),
        (Some(VERDICT_RETURN), None) => Some(Target::Return),
        (Some(_), None) => None,
        (None, _) => {
            let (name, revision, payload) = extension(entry.bytes.get(entry.target..)?)?;
            decode_target(name, revision, payload, family)
        }
    }
}

/// The name, revision and payload of a match or target.
fn extension(bytes: &[u8]) -> Option<(&str, u8, &[u8])> {
    let name = until_nul(bytes.get(EXTENSION_NAME..EXTENSION_REVISION)?);
    let revision = *bytes.get(EXTENSION_REVISION)?;
    Some((
        str::from_utf8(name).ok()?,
        revision,
        bytes.get(EXTENSION..)?,
    ))
}
