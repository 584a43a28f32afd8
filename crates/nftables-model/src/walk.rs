//! What the kernel would do with a packet, step by step, from the rules alone.
//!
//! This knows nothing of Services: it runs expressions on registers as nf_tables does, so that what it
//! says of our tables can differ from what the dataplane says, and be found out. Which hooks a packet
//! passes is for the mechanism to say.

mod loads;
mod path;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeBounds;
use std::sync::Arc;

use backend::Event;
use dataplane::{Choice, Family, Node, Packet, Port, Target, Verdict as Outcome};
use netlink::nf_tables::{
    Bytes, CONNECTION_LABELS, ElementData, Expression, HookPoint, Learning, Operator, Register,
    Rule, SetContent, SetWriter, SettableCtKey, Verdict,
};

use self::path::Path;
pub use self::path::ways;
use crate::contents::{Chains, SetWithElements, Sets};

/// How deep chains may lead into each other (`NFT_JUMP_STACK_SIZE`).
const JUMPS: usize = 16;
/// `NF_CT_STATE_BIT(IP_CT_NEW)`.
const CT_STATE_NEW: u32 = 8;
/// `IPS_DST_NAT`.
const CT_STATUS_DNAT: u32 = 1 << 5;

/// What packets have written into the maps that they write to, and nothing has timed out.
#[derive(Debug, Clone, Default)]
pub struct Memory(BTreeMap<(Arc<str>, Bytes), Bytes>);

/// What packets find in a table.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Its chains.
    pub chains: &'a Chains,
    /// Its sets.
    pub sets: &'a Sets,
}

/// How a packet's way ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It left this node or reached a process on it, redirected or not.
    Through(Option<Target>),
    /// It disappeared.
    Dropped,
    /// It was answered with a refusal.
    Rejected,
}

/// What a chain did to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// On with whatever comes next.
    Continue,
    /// This hook is done with it.
    Accept,
    /// It disappeared.
    Drop,
    /// It was answered with a refusal.
    Reject,
}

/// What becomes of a hash of the packet that chooses an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hashes {
    /// It is computed, as in the kernel.
    Computed,
    /// It is any number, as if another client had sent the packet.
    Drawn,
}

/// One way of one packet through the hooks.
#[derive(Debug)]
pub struct Walk<'a> {
    view: View<'a>,
    node: &'a Node,
    packet: &'a Packet,
    memory: &'a mut Memory,
    /// What random numbers are drawn: this one, as long as it is below the modulus.
    number: u32,
    hashes: Hashes,
    drawn_below: Option<u32>,
    /// Where it was sent, by DNAT or by another mechanism.
    redirected: Option<Target>,
    /// Whether that was DNAT.
    has_dnat: bool,
    masqueraded: bool,
    mark: u32,
    /// Of its connection.
    labels: [u8; CONNECTION_LABELS / 8],
    registers: [u8; 64],
    path: Path,
}

/// Where `packet`, the first of its connection, goes on a node whose kernel holds what is in `view`
/// for the packet's family, and has seen what is in `memory`, if the first random number it draws is
/// `number`, or what that leaves over. `run` leads it through the hooks.
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

/// Where `packet`, the first of its connection and of its client, may go on a node whose kernel
/// holds what is in `view` for the packet's family; where its address decides, packets of all clients
/// like it. [`simulate_next`] has the endpoint of this client. `run` leads it through the hooks.
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
        // The first draw decides; there is no second one on a way that DNAT has taken.
        if number >= walk.drawn_below.unwrap_or(1) {
            choices.sort();
            return Outcome::Deliver(in_proportion(choices));
        }
    }
}

/// Weights as multiples of the least, rounded: many slots may lead to one endpoint, and to one more than
/// to another where their number does not divide.
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
    /// The keys that were written to a set.
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

    /// The outcome of a way that ends so, with one choice at the most.
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

    /// Sends it to `target`, as what is no rule does.
    pub fn redirect(&mut self, target: Target) {
        self.redirected = Some(target);
        self.path.note(|| Event::Redirect(target));
    }

    /// Writes down what it meets beside rules.
    pub fn note(&mut self, event: impl FnOnce() -> Event) {
        self.path.note(event);
    }

    /// Where it was redirected, if it was.
    pub fn redirected(&self) -> Option<Target> {
        self.redirected
    }

    /// Through the base chains of one hook that have these priorities, lowest number first.
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
            // The kernel does not take such rules.
            _ => Step::Drop,
        }
    }

    /// The verdict of one rule, if it matches and has one. An end is what no later rule can change.
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
                    self.redirected = self.target(*address, *port);
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

    /// Whether the rule goes on.
    fn learn(&mut self, set: &Arc<str>, how: Learning, key: Register, value: Register) -> bool {
        let Some(SetWithElements { set, .. }) = self.view.sets.get(set) else {
            return false;
        };
        let width = set.key.iter().map(|field| field.width()).sum();
        let Some(key) = Bytes::from_slice(self.at(key, width)) else {
            return false;
        };
        let entry = (Arc::clone(&set.name), key);
        match how {
            Learning::Update { .. } => {
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
            Learning::Delete => self.memory.0.remove(&entry).is_some(),
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

    /// Its destination, after DNAT.
    pub fn destination(&self) -> IpAddr {
        self.redirected
            .map_or(self.packet.destination, |target| target.address)
    }

    fn port(&self) -> Port {
        self.redirected
            .map_or(self.packet.port, |target| target.port)
    }

    /// Whether an address is one of the node.
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
