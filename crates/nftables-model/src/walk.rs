//! Simulates what the kernel does with a packet, step by step, from the rules alone.
//!
//! The simulation knows nothing of Services: it evaluates expressions on registers as nf_tables
//! does. So its result can differ from the dataplane's, which reveals errors in Signpost's tables.
//! The backend defines which hooks a packet traverses.

mod loads;
mod path;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeBounds;
use std::sync::Arc;

use backend::Event;
use dataplane::{Choice, Family, Node, Packet, Port, Target, Verdict as Outcome};
use netlink::nf_tables::{
    Bytes, CONNECTION_LABELS, ElementData, Expression, HookPoint, MapUpdate, Operator, Register,
    Rule, SetContent, SetWriter, SettableCtKey, Verdict,
};

use self::path::Path;
pub use self::path::paths;
use crate::contents::{Chains, SetWithElements, Sets};

/// The maximum depth of jumps (`NFT_JUMP_STACK_SIZE`).
const JUMPS: usize = 16;
/// `NF_CT_STATE_BIT(IP_CT_NEW)`.
const CT_STATE_NEW: u32 = 8;
/// `IPS_DST_NAT`.
const CT_STATUS_DNAT: u32 = 1 << 5;

/// The elements that packets have written to maps; none has timed out.
#[derive(Debug, Clone, Default)]
pub struct Memory(BTreeMap<(Arc<str>, Bytes), Bytes>);

/// The part of a table that packets traverse.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Its chains.
    pub chains: &'a Chains,
    /// Its sets.
    pub sets: &'a Sets,
}

/// The final outcome for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It left this node or reached a process on it, redirected or not.
    Through(Option<Target>),
    /// It was dropped.
    Dropped,
    /// It was rejected with an error to its sender.
    Rejected,
}

/// The outcome of a chain for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The packet continues with the next rule or hook.
    Continue,
    /// The packet is accepted at this hook.
    Accept,
    /// The packet was dropped.
    Drop,
    /// The packet was rejected with an error to its sender.
    Reject,
}

/// The result of a hash of the packet that chooses an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hashes {
    /// Computed, as in the kernel.
    Computed,
    /// Any number, as if another client had sent the packet.
    Drawn,
}

/// One traversal of the hooks by one packet.
#[derive(Debug)]
pub struct Walk<'a> {
    view: View<'a>,
    node: &'a Node,
    packet: &'a Packet,
    memory: &'a mut Memory,
    /// The random number of every draw, reduced modulo the draw's modulus.
    number: u32,
    hashes: Hashes,
    drawn_below: Option<u32>,
    /// Its new destination, set by DNAT or by another mechanism.
    redirected: Option<Target>,
    /// Whether DNAT set it.
    has_dnat: bool,
    masqueraded: bool,
    mark: u32,
    /// The labels of its connection.
    labels: [u8; CONNECTION_LABELS / 8],
    registers: [u8; 64],
    path: Path,
}

/// Simulates `packet`, the first of its connection, on a node whose kernel has the content of
/// `view` for the packet's family. `memory` contains what earlier packets wrote. Every random draw
/// yields `number`, modulo its modulus. `run` leads the packet through the hooks.
pub fn simulate_next(
    view: View<'_>,
    node: &Node,
    packet: &Packet,
    memory: &mut Memory,
    number: u32,
    run: impl Fn(&mut Walk<'_>) -> End,
) -> Outcome {
    let mut walk = Walk::new(view, node, packet, memory, number);
    let end = run(&mut walk);
    walk.outcome(end)
}

/// Simulates every possible choice for `packet`, the first of its connection and of its client, on
/// a node whose kernel has the content of `view` for the packet's family. If a hash of the source
/// chooses the endpoint, the outcome covers all other clients, too; [`simulate_next`] returns the
/// endpoint of this client. `run` leads the packet through the hooks.
pub fn simulate(
    view: View<'_>,
    node: &Node,
    packet: &Packet,
    run: impl Fn(&mut Walk<'_>) -> End,
) -> Outcome {
    let mut choices: Vec<Choice> = Vec::new();
    let mut number = 0;
    loop {
        let mut memory = Memory::default();
        let mut walk = Walk::new(view, node, packet, &mut memory, number);
        walk.hashes = Hashes::Drawn;
        match run(&mut walk) {
            End::Through(Some(target)) => {
                let masquerade = walk.masqueraded;
                let same = |c: &&mut Choice| c.target == target && c.masquerade == masquerade;
                match choices.iter_mut().find(same) {
                    Some(choice) => choice.weight += 1,
                    None => choices.push(Choice {
                        target,
                        weight: 1,
                        masquerade,
                    }),
                }
            }
            End::Through(None) => return Outcome::Untouched,
            End::Dropped => return Outcome::Drop,
            End::Rejected => return Outcome::Reject,
        }
        number += 1;
        // The first draw decides; after DNAT there is no second one.
        if number >= walk.drawn_below.unwrap_or(1) {
            choices.sort();
            return Outcome::Deliver(in_proportion(choices));
        }
    }
}

/// Scales weights to multiples of the least, rounded: many slots may lead to one endpoint, and to
/// one more than to another if their number is not divisible.
fn in_proportion(mut choices: Vec<Choice>) -> Vec<Choice> {
    let least = choices.iter().map(|choice| choice.weight).min();
    let least = least.unwrap_or(1).max(1);
    for choice in &mut choices {
        choice.weight = (choice.weight + least / 2) / least;
    }
    choices
}

// === impl Memory ===

impl Memory {
    /// The keys that packets wrote to a set.
    pub fn keys(&self, set: &str) -> impl Iterator<Item = &Bytes> {
        let of_set = self.0.keys().filter(move |(other, _)| **other == *set);
        of_set.map(|(_, key)| key)
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn new(
        view: View<'a>,
        node: &'a Node,
        packet: &'a Packet,
        memory: &'a mut Memory,
        number: u32,
    ) -> Walk<'a> {
        Walk {
            view,
            node,
            packet,
            memory,
            number,
            hashes: Hashes::Computed,
            drawn_below: None,
            redirected: None,
            has_dnat: false,
            masqueraded: false,
            mark: 0,
            labels: [0; CONNECTION_LABELS / 8],
            registers: [0; 64],
            path: Path::default(),
        }
    }

    /// The outcome for a walk with this end, with at most one choice.
    fn outcome(&self, end: End) -> Outcome {
        match end {
            End::Through(Some(target)) => Outcome::Deliver(vec![Choice {
                target,
                weight: 1,
                masquerade: self.masqueraded,
            }]),
            End::Through(None) => Outcome::Untouched,
            End::Dropped => Outcome::Drop,
            End::Rejected => Outcome::Reject,
        }
    }

    /// The packet.
    pub fn packet(&self) -> &'a Packet {
        self.packet
    }

    /// Its mark.
    pub fn mark(&self) -> u32 {
        self.mark
    }

    /// Draws a number below `modulus`.
    pub fn draw(&mut self, modulus: u32) -> u32 {
        self.drawn_below.get_or_insert(modulus);
        self.path.note(|| Event::Draw { modulus });
        self.number % modulus.max(1)
    }

    /// Redirects the packet to `target` by another mechanism than a rule.
    pub fn redirect(&mut self, target: Target) {
        self.redirected = Some(target);
        self.path.note(|| Event::Redirect(target));
    }

    /// Records an event that is not caused by a rule.
    pub fn note(&mut self, event: impl FnOnce() -> Event) {
        self.path.note(event);
    }

    /// The packet's new destination, if it was redirected.
    pub fn redirected(&self) -> Option<Target> {
        self.redirected
    }

    /// Traverses the base chains of one hook with these priorities, lowest first.
    pub fn hook(&mut self, point: HookPoint, priorities: impl RangeBounds<i32>) -> Step {
        let chains = self.view.chains.values();
        let mut chains: Vec<_> = chains
            .filter_map(|chain| Some((chain.chain.hook.as_ref()?, chain)))
            .filter(|(hook, _)| hook.point == point && priorities.contains(&hook.priority))
            .collect();
        chains.sort_by_key(|(hook, _)| hook.priority);
        for (_, chain) in chains {
            self.path.note(|| path::entering(&chain.chain, 0));
            match self.rules(&chain.rules, 0) {
                Step::Continue | Step::Accept => {}
                end => return end,
            }
        }
        Step::Continue
    }

    fn rules(&mut self, rules: &[Rule], depth: usize) -> Step {
        for rule in rules {
            let verdict = match self.rule(rule) {
                Ok(None) => continue,
                Ok(Some(verdict)) => verdict,
                Err(end) => return end,
            };
            match verdict {
                Verdict::Accept => {
                    self.path.note(|| Event::Accept);
                    return Step::Accept;
                }
                Verdict::Drop => {
                    self.path.note(|| Event::Drop);
                    return Step::Drop;
                }
                Verdict::Return => return Step::Continue,
                Verdict::Jump(chain) => match self.chain(&chain, depth) {
                    Step::Continue => {}
                    end => return end,
                },
                Verdict::Goto(chain) => return self.chain(&chain, depth),
            }
        }
        Step::Continue
    }

    fn chain(&mut self, name: &str, depth: usize) -> Step {
        match self.view.chains.get(name) {
            Some(chain) if depth < JUMPS => {
                self.path.note(|| path::entering(&chain.chain, depth));
                self.rules(&chain.rules, depth + 1)
            }
            // The kernel refuses such rules.
            _ => Step::Drop,
        }
    }

    /// Evaluates one rule: returns its verdict, if it matches and has one. An error is an outcome
    /// that no later rule can change.
    fn rule(&mut self, rule: &Rule) -> Result<Option<Verdict>, Step> {
        for expression in &rule.expressions {
            let matches = match expression {
                Expression::Immediate(verdict) => return Ok(Some(verdict.clone())),
                Expression::Reject(_) => {
                    self.path.note(|| Event::Reject);
                    return Err(Step::Reject);
                }
                Expression::LookupVerdict { set, from } => match self.lookup(set, *from) {
                    Some(ElementData::Verdict(verdict)) => return Ok(Some(verdict)),
                    _ => false,
                },
                Expression::LookupValue { set, from, to } => match self.lookup(set, *from) {
                    Some(ElementData::Value(value)) => {
                        self.load(*to, value.as_slice());
                        true
                    }
                    _ => false,
                },
                Expression::Lookup { set, from } => self.lookup(set, *from).is_some(),
                Expression::Nat { address, port, .. } => {
                    let target = self.target(*address, *port);
                    // The kernel does not set IPS_DST_NAT for a translation to the same.
                    if target == Some(self.current_target()) {
                        return Err(Step::Accept);
                    }
                    self.redirected = target;
                    self.has_dnat = self.redirected.is_some();
                    if let Some(target) = self.redirected {
                        self.path.note(|| Event::Redirect(target));
                    }
                    return Err(Step::Accept);
                }
                Expression::Masquerade => {
                    self.masqueraded = true;
                    self.path.note(|| Event::Masquerade);
                    return Err(Step::Accept);
                }
                Expression::Learn {
                    set,
                    how,
                    key,
                    value,
                } => self.learn(set, *how, *key, *value),
                Expression::SetMeta { from, .. } => {
                    self.mark = self.number_at(*from);
                    self.path.note(|| Event::Mark(self.mark));
                    true
                }
                Expression::SetCt {
                    key: SettableCtKey::Labels,
                    from,
                } => {
                    let labels = self.at(*from, CONNECTION_LABELS / 8).to_vec();
                    let both = self.labels.iter_mut().zip(labels);
                    both.for_each(|(label, new)| *label |= new);
                    true
                }
                Expression::Load { value, to } => {
                    self.load(*to, value);
                    true
                }
                Expression::Compare {
                    from,
                    operator,
                    value,
                } => {
                    let same = self.at(*from, value.len()) == value.as_slice();
                    same == (*operator == Operator::Equal)
                }
                Expression::Bitwise {
                    from,
                    to,
                    mask,
                    xor,
                } => {
                    let operand = self.at(*from, mask.len()).to_vec();
                    let bytes = operand.iter().zip(mask).zip(xor);
                    let result: Vec<u8> = bytes.map(|((o, m), x)| (o & m) ^ x).collect();
                    self.load(*to, &result);
                    true
                }
                loading => self.load_from_packet(loading),
            };
            if !matches {
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn lookup(&mut self, set: &Arc<str>, from: Register) -> Option<ElementData> {
        let SetWithElements { set, elements } = self.view.sets.get(set)?;
        let width = set.key.iter().map(|field| field.width()).sum();
        let key = Bytes::from_slice(self.at(from, width))?;
        let data = match set.writer {
            SetWriter::Transactions => elements.get(&key).cloned()?,
            SetWriter::Packets { .. } => {
                let value = self.memory.0.get(&(Arc::clone(&set.name), key.clone()))?;
                ElementData::Value(value.clone())
            }
        };
        self.path.note(|| path::found(set, &key, &data));
        Some(data)
    }

    /// Performs the operation on the map. Returns whether the rule continues.
    fn learn(&mut self, set: &Arc<str>, how: MapUpdate, key: Register, value: Register) -> bool {
        let Some(SetWithElements { set, .. }) = self.view.sets.get(set) else {
            return false;
        };
        let width = set.key.iter().map(|field| field.width()).sum();
        let Some(key) = Bytes::from_slice(self.at(key, width)) else {
            return false;
        };
        let entry = (Arc::clone(&set.name), key);
        match how {
            MapUpdate::Update { .. } => {
                let width = match &set.content {
                    SetContent::Values(fields) => fields.iter().map(|field| field.width()).sum(),
                    SetContent::Membership | SetContent::Verdicts => 0,
                };
                let known = self.memory.0.contains_key(&entry);
                if let SetWriter::Packets { capacity } = set.writer
                    && !known
                    && self.memory.keys(&set.name).count()
                        >= usize::try_from(capacity).unwrap_or(usize::MAX)
                {
                    return false;
                }
                self.path.note(|| Event::Learn(Arc::clone(&set.name)));
                if let Some(value) = Bytes::from_slice(self.at(value, width)) {
                    self.memory.0.entry(entry).or_insert(value);
                }
                true
            }
            MapUpdate::Delete => self.memory.0.remove(&entry).is_some(),
        }
    }

    fn target(&self, address: Register, port: Register) -> Option<Target> {
        let address = match Family::of(self.packet.destination) {
            Family::Ipv4 => IpAddr::from(<[u8; 4]>::try_from(self.at(address, 4)).ok()?),
            Family::Ipv6 => IpAddr::from(<[u8; 16]>::try_from(self.at(address, 16)).ok()?),
        };
        let port = Port::new(u16::from_be_bytes(self.at(port, 2).try_into().ok()?))?;
        Some(Target { address, port })
    }

    /// The packet's destination, after DNAT.
    pub fn destination(&self) -> IpAddr {
        self.redirected
            .map_or(self.packet.destination, |target| target.address)
    }

    fn current_target(&self) -> Target {
        Target {
            address: self.destination(),
            port: self.port(),
        }
    }

    fn port(&self) -> Port {
        self.redirected
            .map_or(self.packet.port, |target| target.port)
    }

    /// Whether `address` is one of the node's.
    pub fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.node.local_addresses.contains(&address)
    }

    fn at(&self, register: Register, length: usize) -> &[u8] {
        let start = usize::from(register.0) * 4;
        self.registers.get(start..start + length).unwrap_or(&[])
    }

    fn number_at(&self, register: Register) -> u32 {
        let bytes = self.at(register, 4).try_into();
        bytes.map_or(0, u32::from_ne_bytes)
    }

    /// Loads a value as the kernel does: padded with zeroes to whole registers.
    fn load(&mut self, register: Register, value: &[u8]) {
        let start = usize::from(register.0) * 4;
        let end = start + value.len().next_multiple_of(4);
        if let Some(room) = self.registers.get_mut(start..end) {
            room.fill(0);
            room[..value.len()].copy_from_slice(value);
        }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
