//! What the kernel would do with a packet, step by step, from the rules alone.
//!
//! This knows nothing of Services: it runs expressions on registers as nf_tables does, through the
//! hooks a packet of its origin passes, so that what it says of our tables can differ from what the
//! dataplane says, and be found out.

mod loads;
mod path;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use backend::Event;
use dataplane::{Choice, Family, Node, Origin, Packet, Port, Target, Verdict as Outcome};
use netlink::nf_tables::{
    Bytes, ElementData, Expression, HookPoint, Learning, Operator, Register, Rule, SetContent,
    SetWriter, Verdict,
};

use crate::table::{SetWithElements, Table};
use path::Path;
pub use path::ways;

/// How deep chains may lead into each other (`NFT_JUMP_STACK_SIZE`).
const JUMPS: usize = 16;
/// `NF_CT_STATE_BIT(IP_CT_NEW)`.
const CT_STATE_NEW: u32 = 8;
/// `IPS_DST_NAT`.
const CT_STATUS_DNAT: u32 = 1 << 5;

/// What packets have written into the maps that they write to, and nothing has timed out.
#[derive(Debug, Clone, Default)]
pub struct Memory(BTreeMap<(Arc<str>, Bytes), Bytes>);

/// Where `packet`, the first of its connection, goes on a node whose kernel holds `table` for the
/// packet's family, and has seen what is in `memory`, if the first random number it draws is
/// `number`, or what that leaves over.
pub fn simulate_next(
    table: &Table,
    node: &Node,
    packet: &Packet,
    memory: &mut Memory,
    number: u32,
) -> Outcome {
    Walk::new(table, node, packet, memory, number).outcome()
}

/// Where `packet`, the first of its connection and of its client, may go on a node whose kernel
/// holds `table` for the packet's family.
pub fn simulate(table: &Table, node: &Node, packet: &Packet) -> Outcome {
    let mut choices: Vec<Choice> = Vec::new();
    let mut number = 0;
    loop {
        let mut memory = Memory::default();
        let mut walk = Walk::new(table, node, packet, &mut memory, number);
        match walk.run() {
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
            return Outcome::Deliver(choices);
        }
    }
}

/// How a packet's way ended.
enum End {
    /// It left this node or reached a process on it, redirected or not.
    Through(Option<Target>),
    Dropped,
    Rejected,
}

/// What a chain did to a packet.
enum Step {
    /// On with whatever comes next.
    Continue,
    /// This hook is done with it.
    Accept,
    Drop,
    Reject,
}

/// One way of one packet through the hooks.
struct Walk<'a> {
    table: &'a Table,
    node: &'a Node,
    packet: &'a Packet,
    memory: &'a mut Memory,
    /// What random numbers are drawn: this one, as long as it is below the modulus.
    number: u32,
    drawn_below: Option<u32>,
    /// Where DNAT has sent it.
    redirected: Option<Target>,
    masqueraded: bool,
    mark: u32,
    registers: [u8; 64],
    path: Path,
}

// === impl Memory ===

impl Memory {
    fn count(&self, set: &Arc<str>) -> u32 {
        let of_set = self.0.keys().filter(|(other, _)| other == set);
        u32::try_from(of_set.count()).unwrap_or(u32::MAX)
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn new(
        table: &'a Table,
        node: &'a Node,
        packet: &'a Packet,
        memory: &'a mut Memory,
        number: u32,
    ) -> Walk<'a> {
        Walk {
            table: table.serving(),
            node,
            packet,
            memory,
            number,
            drawn_below: None,
            redirected: None,
            masqueraded: false,
            mark: 0,
            registers: [0; 64],
            path: Path::default(),
        }
    }

    /// Where it ends, with one choice at the most.
    fn outcome(&mut self) -> Outcome {
        match self.run() {
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

    fn run(&mut self) -> End {
        let from_here = matches!(self.packet.origin, Origin::Node | Origin::Loopback);
        let mut hooks = vec![if from_here {
            HookPoint::Output
        } else {
            HookPoint::Prerouting
        }];
        let mut at = 0;
        while let Some(hook) = hooks.get(at).copied() {
            match self.hook(hook) {
                Step::Drop => return End::Dropped,
                Step::Reject => return End::Rejected,
                Step::Continue | Step::Accept => {}
            }
            // Where a packet goes on is decided by routing, after DNAT.
            match (hook, self.is_local(self.destination())) {
                (HookPoint::Prerouting, true) => hooks.push(HookPoint::Input),
                (HookPoint::Prerouting, false) => {
                    hooks.extend([HookPoint::Forward, HookPoint::Postrouting]);
                }
                // A packet to this node itself comes back through the loopback device, past NAT,
                // which sees a connection once.
                (HookPoint::Output, true) => {
                    hooks.extend([HookPoint::Postrouting, HookPoint::Input]);
                }
                (HookPoint::Output, false) => hooks.push(HookPoint::Postrouting),
                _ => {}
            }
            at += 1;
        }
        End::Through(self.redirected)
    }

    /// The base chains of one hook, lowest priority number first.
    fn hook(&mut self, point: HookPoint) -> Step {
        let table = self.table;
        let mut chains: Vec<_> = table
            .chains
            .values()
            .filter_map(|chain| Some((chain.chain.hook.as_ref()?, chain)))
            .filter(|(hook, _)| hook.point == point)
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
        let table = self.table;
        match table.chains.get(name) {
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
        let SetWithElements { set, elements } = self.table.sets.get(set)?;
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
        let Some(SetWithElements { set, .. }) = self.table.sets.get(set) else {
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
                    && self.memory.count(&set.name) >= capacity
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

    fn destination(&self) -> IpAddr {
        self.redirected
            .map_or(self.packet.destination, |target| target.address)
    }

    fn port(&self) -> Port {
        self.redirected
            .map_or(self.packet.port, |target| target.port)
    }

    fn is_local(&self, address: IpAddr) -> bool {
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

#[cfg(test)]
mod tests;
