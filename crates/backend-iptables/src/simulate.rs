//! Simulates the kernel's processing of a packet, rule by rule.
//!
//! The simulation does not use Services or trees: it walks through chains as the kernel does.
//! Therefore its verdict on Signpost's rules can differ from that of the dataplane, which reveals
//! errors.

mod path;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use backend::Event;
use dataplane::{Choice, Node, Origin, Packet, Port, Target as Endpoint, Verdict};
use xtables::{BuiltIn, Match, PacketEnd, Recent, Rule, States, TableName, Target};

use crate::rules::Rules;
use crate::table_rules::MOST_NESTED;
use path::Path;

pub use path::paths;

/// The clients that packets have recorded, by list. Entries do not expire.
#[derive(Debug, Clone, Default)]
pub struct Memory(BTreeSet<(Arc<str>, IpAddr)>);

/// Returns where `packet`, the first of its connection, goes on a node whose kernel holds `rules`
/// for the packet's family and the clients in `memory`. Of the random matches that the packet
/// reaches, only number `number`, counted from 0, matches.
pub fn simulate_next(
    rules: &Rules,
    node: &Node,
    packet: &Packet,
    memory: &mut Memory,
    number: u32,
) -> Verdict {
    memory.forget_unused(rules);
    Walk::new(rules, node, packet, memory, number).outcome()
}

/// Returns where `packet`, the first of its connection and of its client, may go on a node whose
/// kernel holds `rules` for the packet's family.
pub fn simulate(rules: &Rules, node: &Node, packet: &Packet) -> Verdict {
    let mut ends: Vec<(Choice, f64)> = Vec::new();
    let mut count = 0;
    for number in 0.. {
        let mut memory = Memory::default();
        let mut walk = Walk::new(rules, node, packet, &mut memory, number);
        let outcome = walk.outcome();
        let Verdict::Deliver(choices) = outcome else {
            return outcome;
        };
        count += 1;
        for choice in choices {
            let same = |(c, _): &&mut (Choice, f64)| {
                c.target == choice.target && c.masquerade == choice.masquerade
            };
            match ends.iter_mut().find(same) {
                Some((_, share)) => *share += walk.share,
                None => ends.push((choice, walk.share)),
            }
        }
        if walk.draws <= number {
            break;
        }
    }
    let mut choices: Vec<Choice> = ends
        .into_iter()
        .map(|(choice, share)| Choice {
            weight: weight(share, count),
            ..choice
        })
        .collect();
    choices.sort();
    Verdict::Deliver(choices)
}

/// Converts `share` to a number of `count` equal shares: a small number, rounded.
fn weight(share: f64, count: u32) -> u32 {
    let exact = share * f64::from(count);
    (0..=count)
        .find(|whole| exact < f64::from(*whole) + 0.5)
        .unwrap_or(count)
}

/// How a packet's path ended.
enum End {
    /// It left this node or reached a process on it, redirected or not.
    Through(Option<Endpoint>),
    Dropped,
    Rejected,
}

/// The result of a chain for a packet.
enum Step {
    /// Continue with the next rule or table.
    Continue,
    /// Accepted by this table.
    Accept,
    Drop,
    Reject,
}

/// One path of one packet through the hooks.
struct Walk<'a> {
    rules: &'a Rules,
    node: &'a Node,
    packet: &'a Packet,
    memory: &'a mut Memory,
    /// The number of the random match that matches.
    number: u32,
    /// How many random matches were evaluated so far.
    draws: u32,
    /// The probability of this path.
    share: f64,
    redirected: Option<Endpoint>,
    masqueraded: bool,
    mark: u32,
    path: Path,
}

// === impl Memory ===

impl Memory {
    /// Drops lists without rules: the kernel frees a list with the last rule that uses it, and a
    /// new one of the same name is empty (`recent_mt_destroy`).
    fn forget_unused(&mut self, rules: &Rules) {
        let chains = rules.nat.chains().iter();
        let asked = chains.flat_map(|(_, chain)| chain.rules.iter());
        let asked = asked.flat_map(|rule| &rule.matches);
        let used: BTreeSet<&str> = asked
            .filter_map(|asked| match asked {
                Match::Recent { list, .. } => Some(&**list),
                _ => None,
            })
            .collect();
        self.0.retain(|(list, _)| used.contains(&**list));
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn new(
        rules: &'a Rules,
        node: &'a Node,
        packet: &'a Packet,
        memory: &'a mut Memory,
        number: u32,
    ) -> Walk<'a> {
        Walk {
            rules,
            node,
            packet,
            memory,
            number,
            draws: 0,
            share: 1.0,
            redirected: None,
            masqueraded: false,
            mark: 0,
            path: Path::default(),
        }
    }

    fn outcome(&mut self) -> Verdict {
        match self.run() {
            End::Through(Some(target)) => Verdict::Deliver(vec![Choice {
                target,
                weight: 1,
                masquerade: self.masqueraded,
            }]),
            End::Through(None) => Verdict::Untouched,
            End::Dropped => Verdict::Drop,
            End::Rejected => Verdict::Reject,
        }
    }

    fn run(&mut self) -> End {
        use BuiltIn::{Forward, Input, Output, Postrouting, Prerouting};
        use TableName::{Filter, Nat};
        let from_here = matches!(self.packet.origin, Origin::Node | Origin::Loopback);
        // Routing, after DNAT, decides which hooks follow.
        let first: &[_] = match from_here {
            true => &[(Nat, Output)],
            false => &[(Nat, Prerouting)],
        };
        if let Some(end) = self.hooks(first) {
            return end;
        }
        let here = self.is_local(self.destination());
        let rest: &[_] = match (from_here, here) {
            // A packet to the node itself comes back through the loopback device and skips NAT,
            // which processes a connection once.
            (true, true) => &[(Filter, Output), (Nat, Postrouting), (Filter, Input)],
            (true, false) => &[(Filter, Output), (Nat, Postrouting)],
            (false, true) => &[(Filter, Input)],
            (false, false) => &[(Filter, Forward), (Nat, Postrouting)],
        };
        self.hooks(rest).unwrap_or(End::Through(self.redirected))
    }

    fn hooks(&mut self, hooks: &[(TableName, BuiltIn)]) -> Option<End> {
        for (table, hook) in hooks {
            let rules = self.rules;
            let Some(entries) = rules.of(*table).entries.get(hook) else {
                continue;
            };
            self.path.note(|| Event::Base {
                chain: hook.to_string().into(),
                hook: table.to_string(),
            });
            match self.walk((*table, *hook), entries, None) {
                Step::Drop => return Some(End::Dropped),
                Step::Reject => return Some(End::Rejected),
                Step::Continue | Step::Accept => {}
            }
        }
        None
    }

    /// Walks through the rules of the chain `of`, or of a built-in chain.
    fn walk(
        &mut self,
        at: (TableName, BuiltIn),
        rules: &[Rule],
        of: Option<(&Arc<str>, usize)>,
    ) -> Step {
        let (_, hook) = at;
        let below = of.map_or(0, |(_, depth)| depth + 1);
        for rule in rules {
            if !self.matches(rule, hook) {
                continue;
            }
            if path::asks_something(rule) {
                self.path.note(|| Event::Element(rule.to_string()));
            }
            for asked in &rule.matches {
                if let Match::Recent {
                    list,
                    what: Recent::Set,
                } = asked
                {
                    self.path.note(|| Event::Learn(Arc::clone(list)));
                }
            }
            match &rule.target {
                Target::Accept => {
                    self.path.note(|| Event::Accept);
                    return Step::Accept;
                }
                Target::Drop => {
                    self.path.note(|| Event::Drop);
                    return Step::Drop;
                }
                Target::Reject => {
                    self.path.note(|| Event::Reject);
                    return Step::Reject;
                }
                Target::Return => return Step::Continue,
                Target::Jump(chain) => match self.chain(at, chain, below) {
                    Step::Continue => self.path.come_back(of),
                    end => return end,
                },
                Target::Goto(chain) => return self.chain(at, chain, below),
                Target::Mark { value, mask } => {
                    self.mark = (self.mark & !mask) ^ value;
                    let mark = self.mark;
                    self.path.note(|| Event::Mark(mark));
                }
                Target::Masquerade => {
                    self.masqueraded = true;
                    self.path.note(|| Event::Masquerade);
                    return Step::Accept;
                }
                Target::DestinationNat { address, port } => {
                    self.redirected = Port::new(*port).map(|port| Endpoint {
                        address: *address,
                        port,
                    });
                    if let Some(target) = self.redirected {
                        self.path.note(|| Event::Redirect(target));
                    }
                    return Step::Accept;
                }
            }
        }
        Step::Continue
    }

    fn chain(&mut self, at: (TableName, BuiltIn), name: &Arc<str>, depth: usize) -> Step {
        let rules = self.rules;
        match rules.of(at.0).chains().get(name) {
            Some(chain) if depth < MOST_NESTED => {
                self.path.note(|| path::entering(name, depth));
                self.walk(at, &chain.rules, Some((name, depth)))
            }
            // The kernel refuses such rules.
            _ => Step::Drop,
        }
    }

    fn matches(&mut self, rule: &Rule, hook: BuiltIn) -> bool {
        let source = self.packet.source;
        let interface = match hook {
            BuiltIn::Output | BuiltIn::Postrouting => None,
            _ => self.packet.origin.interface(),
        };
        let protocol = rule.protocol.map(xtables::Protocol::number);
        rule.source.is_none_or(|asked| asked.matches(source))
            && rule
                .destination
                .is_none_or(|asked| asked.matches(self.destination()))
            && rule
                .input
                .as_ref()
                .is_none_or(|asked| asked.matches(interface))
            && protocol.is_none_or(|number| number == self.packet.protocol.number())
            && rule.matches.iter().all(|asked| self.meets(asked))
    }

    fn meets(&mut self, asked: &Match) -> bool {
        match asked {
            Match::DestinationPorts { first, last } => {
                (*first..=*last).contains(&self.port().get())
            }
            Match::LocalAddress(PacketEnd::Source) => self.is_local(self.packet.source),
            Match::LocalAddress(PacketEnd::Destination) => self.is_local(self.destination()),
            Match::ConnectionState(states) => {
                let dnat = self.redirected.is_some() && states.has(States::DNAT);
                states.has(States::NEW) || dnat
            }
            // The packet is the first of its connection.
            Match::UnconfirmedConnection => true,
            Match::Mark { value, mask } => self.mark & mask == *value,
            Match::Recent { list, what } => {
                let entry = (Arc::clone(list), self.packet.source);
                match what {
                    Recent::Check { .. } => self.memory.0.contains(&entry),
                    Recent::Set => {
                        self.memory.0.insert(entry);
                        true
                    }
                }
            }
            Match::Random { probability } => {
                self.draw(f64::from(*probability) / f64::from(Match::CERTAIN))
            }
            Match::Nth { every } => self.draw(1.0 / f64::from(*every)),
        }
    }

    /// Evaluates a random match that takes this share of packets.
    fn draw(&mut self, share: f64) -> bool {
        let matches = self.draws == self.number;
        self.draws += 1;
        self.share *= if matches { share } else { 1.0 - share };
        matches
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
}

#[cfg(test)]
mod tests;
