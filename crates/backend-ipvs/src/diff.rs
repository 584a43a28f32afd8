//! Computes the change from some rules to others.
//!
//! The two subsystems have no common transaction: a target of packets must exist before packets are
//! sent to it, and may be removed only when none are. So the routing rule comes first. Then virtual
//! servers are added or changed, each with all its destinations, and destinations leave. Then come
//! the table's transactions, then virtual servers are removed or leave, and the routing rule is
//! removed last.
//!
//! If the table lacks the rules that refuse what IPVS does not take, the routing rule is added after
//! the table's transactions: a packet for a virtual server that another program has removed, too,
//! would be delivered to a process of this node.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use backend::Size;
use dataplane::{Family, FrontendKey, Protocol, ServiceKey, ServicePortName};
use netlink::ipvs::{Operation, SchedulerName, VirtualServerKey, Weight};
use netlink::nf_tables::{self, Expression, Rule, Transaction};
use netlink::route::Presence;
use nftables_model::{Elements, parse_frontend};

use crate::chains::REFUSE_UNTAKEN;
use crate::idle::IdleTimeouts;
use crate::layout::{DELIVERY, MARKS, SetName};
use crate::rules::{Rules, Server};
use crate::scheduler_tables::{Pages, table_of};
use crate::table_diff;

/// Steps in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Change {
    pub(crate) steps: Vec<Step>,
    services: BTreeSet<ServiceKey>,
    /// The Service port of each virtual server that gets destinations, as far as known.
    ports: BTreeMap<VirtualServerKey, ServicePortName>,
    /// The owners of marks once it is committed.
    owners: Elements,
}

/// A part of a change that one of the subsystems applies.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Operations on virtual servers, each of which is applied separately, in order.
    Servers(Vec<Operation>),
    /// Destinations that get no new connections, and that are removed when those they have have
    /// ended.
    Departures(Vec<Departure>),
    /// The routing rule that brings marked packets to IPVS: [`Presence::Whole`] adds what is
    /// missing, [`Presence::Absent`] removes what exists.
    Delivery(Presence),
    /// How long IPVS remembers idle connections of all programs. Times that are not set stay.
    Timeouts(IdleTimeouts),
    /// A transaction on the table, which takes effect as a whole or not at all.
    Table(Transaction),
}

/// Destinations of one virtual server that leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    pub(crate) key: VirtualServerKey,
    /// The Service port, if it is known.
    pub(crate) owner: Option<ServicePortName>,
    /// Each with how long its connections may last; `None` for as long as they do.
    pub(crate) destinations: Vec<(SocketAddr, Option<Duration>)>,
    pub(crate) server_removal: ServerRemoval,
    /// The table of its scheduler.
    pub(crate) table: Pages,
}

/// Whether a virtual server leaves with its destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerRemoval {
    /// It stays, for other destinations.
    Stays,
    /// It leaves with the last one.
    Leaves,
}

/// When the routing rule is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RouteOrder {
    /// Before everything else.
    First,
    /// After the table's transactions.
    BehindTable,
    /// After everything else.
    Last,
}

/// Operations on virtual servers.
#[derive(Default)]
struct Servers {
    /// Changes to schedulers that need smaller tables. They come before all that needs larger ones.
    shrinking: Vec<Operation>,
    /// Additions of virtual servers and other changes to existing ones. They can come first: a new
    /// frontend then finds no destination that is about to be removed.
    first: Vec<Operation>,
    /// Destinations that leave virtual servers which stay.
    departures: Vec<Departure>,
    /// Removals of virtual servers that nothing leads to any more.
    last: Vec<Operation>,
    /// Virtual servers that nothing leads to any more, but some connections.
    last_departures: Vec<Departure>,
    /// The Services of these virtual servers.
    services: BTreeSet<ServiceKey>,
    /// The ports of those that get destinations.
    ports: BTreeMap<VirtualServerKey, ServicePortName>,
}

pub(crate) fn diff(family: Family, observed: &Rules, desired: &Rules) -> Change {
    let servers = Servers::between(family, observed, desired);
    let table = table_diff::diff(family, &observed.table, &desired.table);
    let operations = |operations: Vec<Operation>| {
        let some = (!operations.is_empty()).then_some(operations);
        some.map(Step::Servers)
    };
    let delivery = (observed.delivery != desired.delivery).then_some(desired.delivery);
    let refusals = [observed, desired].map(|rules| rules.table.chains.get(REFUSE_UNTAKEN));
    let lacks_refusals = observed.table.exists && refusals[0] != refusals[1];
    let delivery = |place: RouteOrder| {
        let step = delivery.filter(|presence| {
            let its_place = match (presence, lacks_refusals) {
                (Presence::Absent, _) => RouteOrder::Last,
                (Presence::Partial | Presence::Whole, true) => RouteOrder::BehindTable,
                (Presence::Partial | Presence::Whole, false) => RouteOrder::First,
            };
            its_place == place
        });
        step.map(Step::Delivery)
    };
    let timeouts = desired.idle.is_more_than(&observed.idle);
    let timeouts = timeouts.then_some(Step::Timeouts(desired.idle));
    let departures = |departures: Vec<Departure>| {
        let some = (!departures.is_empty()).then_some(departures);
        some.map(Step::Departures)
    };
    let steps = timeouts.into_iter().chain(delivery(RouteOrder::First));
    Change {
        steps: steps
            .chain(operations([servers.shrinking, servers.first].concat()))
            .chain(departures(servers.departures))
            .chain(table.into_iter().map(Step::Table))
            .chain(delivery(RouteOrder::BehindTable))
            .chain(operations(servers.last))
            .chain(departures(servers.last_departures))
            .chain(delivery(RouteOrder::Last))
            .collect(),
        services: servers.services,
        ports: servers.ports,
        owners: desired.owners(),
    }
}

/// Whether a virtual server of this protocol keeps the connections of a destination that leaves.
/// UDP has none: a flow must find another endpoint at once. Without frontends that lead to it, the
/// protocol of a virtual server in the kernel is unknown, and it counts if it was leaving already.
fn keeps_connections(protocol: Option<Protocol>, server: &Server) -> bool {
    match protocol {
        Some(protocol) => protocol != Protocol::Udp,
        None => {
            let mut destinations = server.destinations.values();
            destinations.all(|destination| destination.weight == Weight::DRAINING)
        }
    }
}

// === impl Servers ===

impl Servers {
    fn between(family: Family, observed: &Rules, desired: &Rules) -> Servers {
        let mut servers = Servers::default();
        let mut differences = observed.servers.differences(&desired.servers);
        differences.sort_by_key(|difference| *difference.key);
        // An agent that starts knows no owners of what it finds.
        let protocols = LazyCell::new(|| observed.protocols(family));
        let protocol = |number: u32, server: &Server| match &server.owner {
            Some(owner) => Some(owner.protocol),
            None => protocols.get(&number).copied(),
        };
        // Needed only where virtual servers leave, and connections have a limit.
        let changed: Vec<_> = differences.iter().filter_map(|d| d.after).collect();
        let successors = LazyCell::new(|| {
            let addresses = changed.iter().flat_map(|server| {
                let addresses = server.destinations.keys();
                addresses.filter_map(|address| Some((server.owner.as_ref()?, *address)))
            });
            addresses.collect::<BTreeSet<(&ServicePortName, SocketAddr)>>()
        });
        let remaining = LazyCell::new(|| {
            let servers = desired.servers.iter();
            let addresses = servers.flat_map(|(_, server)| server.destinations.keys().copied());
            addresses.collect::<BTreeSet<SocketAddr>>()
        });
        for difference in differences {
            let Some(mark) = MARKS.mark(*difference.key) else {
                continue;
            };
            let key = VirtualServerKey { family, mark };
            let owners = [difference.before, difference.after].into_iter().flatten();
            servers
                .services
                .extend(owners.filter_map(|server| Some(server.owner.as_ref()?.service.clone())));
            let Some(after) = difference.after else {
                let keeps = |before: &&Arc<Server>| {
                    keeps_connections(protocol(*difference.key, before), before)
                };
                match difference.before.filter(keeps) {
                    None => servers.last.push(Operation::RemoveVirtualServer { key }),
                    Some(before) => {
                        // An endpoint that the virtual server in its place has does not leave.
                        let limit = |address: &SocketAddr| {
                            desired.drain_limit.filter(|_| match &before.owner {
                                Some(owner) => !successors.contains(&(owner, *address)),
                                None => !remaining.contains(address),
                            })
                        };
                        let addresses = before.destinations.keys();
                        servers.last_departures.push(Departure {
                            key,
                            owner: before.owner.clone(),
                            destinations: addresses.map(|at| (*at, limit(at))).collect(),
                            server_removal: ServerRemoval::Leaves,
                            table: table_of(&before.server.scheduler),
                        });
                    }
                }
                continue;
            };
            let server = after.server.clone();
            match difference.before {
                None => servers
                    .first
                    .push(Operation::AddVirtualServer { key, server }),
                Some(before) if before.server != after.server => {
                    let [from, to] = [before, after].map(|held| table_of(&held.server.scheduler));
                    let operations = match to < from {
                        true => &mut servers.shrinking,
                        false => &mut servers.first,
                    };
                    operations.push(Operation::SetVirtualServer { key, server });
                }
                Some(_) => {}
            }
            let nothing = BTreeMap::new();
            let before = difference.before.map_or(&nothing, |b| &b.destinations);
            if let Some(port) = &after.owner {
                servers.ports.insert(key, port.clone());
            }
            // New destinations are added before old ones stop receiving connections.
            let mut changed = Vec::new();
            for (address, destination) in &after.destinations {
                let (address, destination) = (*address, *destination);
                match before.get(&address) {
                    None => servers.first.push(Operation::AddDestination {
                        key,
                        address,
                        destination,
                    }),
                    Some(old) if *old != destination => changed.push(Operation::SetDestination {
                        key,
                        address,
                        destination,
                    }),
                    Some(_) => {}
                }
            }
            servers.first.extend(changed);
            let gone = before
                .keys()
                .filter(|address| !after.destinations.contains_key(address));
            let gone: Vec<SocketAddr> = gone.copied().collect();
            if gone.is_empty() {
                continue;
            }
            if keeps_connections(protocol(*difference.key, after), after) {
                let gone = gone.into_iter();
                servers.departures.push(Departure {
                    key,
                    owner: after.owner.clone(),
                    destinations: gone.map(|at| (at, desired.drain_limit)).collect(),
                    server_removal: ServerRemoval::Stays,
                    table: table_of(&after.server.scheduler),
                });
                continue;
            }
            let removals = gone
                .into_iter()
                .map(|address| Operation::RemoveDestination { key, address });
            servers.first.extend(removals);
        }
        servers
    }
}

// === impl Departure ===

impl Departure {
    /// The removals with which it ends.
    pub(crate) fn removals(&self) -> impl Iterator<Item = Operation> {
        let key = self.key;
        let destinations = self.destinations.iter();
        let destinations = destinations.map(move |(address, _)| Operation::RemoveDestination {
            key,
            address: *address,
        });
        let server = match self.server_removal {
            ServerRemoval::Stays => None,
            ServerRemoval::Leaves => Some(Operation::RemoveVirtualServer { key }),
        };
        destinations.chain(server)
    }
}

// === impl Change ===

impl Change {
    /// The steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Splits the change in two, to be committed in order: between its steps, within a step of
    /// several operations, and a transaction as [`commit`](backend::Backend::commit) splits one that
    /// is too large for the kernel. Returns `None` if it cannot be split, and for the end of the mode,
    /// which keeps connections only as a whole. Pure.
    pub fn halves(&self) -> Option<[Change; 2]> {
        if self.ends() {
            return None;
        }
        let halves = match &self.steps[..] {
            [one] => one.halves()?.map(|half| vec![half]),
            steps => in_two(steps)?,
        };
        Some(halves.map(|steps| Change {
            steps,
            services: self.services.clone(),
            ports: self.ports.clone(),
            owners: self.owners.clone(),
        }))
    }

    /// Whether it begins to bring packets to IPVS.
    pub(crate) fn begins(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step, Step::Delivery(Presence::Partial | Presence::Whole)))
    }

    /// Whether it stops doing so.
    pub(crate) fn ends(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step, Step::Delivery(Presence::Absent)))
    }

    /// Whether it adds chains or rules to the table.
    pub(crate) fn adds_rules(&self) -> bool {
        let mut operations = self.transactions().flat_map(|t| &t.operations);
        operations.any(|operation| {
            matches!(operation, nf_tables::Operation::AddChain(_))
                || added_rule(operation).is_some()
        })
    }

    /// Whether it adds rules that hash, as session affinity does.
    pub(crate) fn adds_hashes(&self) -> bool {
        let operations = self.transactions().flat_map(|t| &t.operations);
        let mut expressions = operations
            .filter_map(added_rule)
            .flat_map(|rule| &rule.expressions);
        expressions.any(|expression| matches!(expression, Expression::Hash { .. }))
    }

    /// Its transactions on the table, in order.
    pub(crate) fn transactions(&self) -> impl Iterator<Item = &Transaction> {
        self.steps.iter().filter_map(|step| match step {
            Step::Table(transaction) => Some(transaction),
            Step::Servers(_) | Step::Departures(_) | Step::Delivery(_) | Step::Timeouts(_) => None,
        })
    }

    /// The frontends whose elements are added or removed. The cost is proportional to the change.
    pub(crate) fn frontends(&self, family: Family) -> BTreeSet<FrontendKey> {
        let mut frontends = BTreeSet::new();
        for operation in self.transactions().flat_map(|t| &t.operations) {
            let (set, keys): (_, Vec<_>) = match operation {
                nf_tables::Operation::AddElements { set, elements } => {
                    (set, elements.iter().map(|(key, _)| key).collect())
                }
                nf_tables::Operation::DeleteElements { set, keys } => (set, keys.iter().collect()),
                _ => continue,
            };
            if let Some(fields) = SetName::parse(&set.name).and_then(SetName::fields) {
                let keys = keys.into_iter();
                frontends
                    .extend(keys.filter_map(|key| parse_frontend(family, fields, key.as_slice())));
            }
        }
        frontends
    }

    /// The schedulers that its virtual servers need.
    pub(crate) fn schedulers(&self) -> BTreeSet<&SchedulerName> {
        let servers = self.steps.iter().filter_map(|step| match step {
            Step::Servers(operations) => Some(operations),
            Step::Table(_) | Step::Departures(_) | Step::Delivery(_) | Step::Timeouts(_) => None,
        });
        let named = servers.flatten().filter_map(|operation| match operation {
            Operation::AddVirtualServer { server, .. }
            | Operation::SetVirtualServer { server, .. } => Some(&server.scheduler),
            _ => None,
        });
        named.collect()
    }

    /// The addresses of the destinations that it adds.
    pub(crate) fn added_destinations(&self) -> impl Iterator<Item = IpAddr> {
        let servers = self.steps.iter().filter_map(|step| match step {
            Step::Servers(operations) => Some(operations),
            Step::Table(_) | Step::Departures(_) | Step::Delivery(_) | Step::Timeouts(_) => None,
        });
        servers.flatten().filter_map(|operation| match operation {
            Operation::AddDestination { address, .. } => Some(address.ip()),
            _ => None,
        })
    }

    /// The owners of marks once it is committed.
    pub(crate) fn owners(&self) -> &Elements {
        &self.owners
    }

    /// The Service port of each virtual server that gets destinations, as far as known.
    pub(crate) fn ports(&self) -> &BTreeMap<VirtualServerKey, ServicePortName> {
        &self.ports
    }

    /// The Services whose virtual servers change, as far as known.
    pub(crate) fn services(&self) -> &BTreeSet<ServiceKey> {
        &self.services
    }
}

// === impl Step ===

impl Step {
    fn halves(&self) -> Option<[Step; 2]> {
        match self {
            Step::Servers(operations) => Some(in_two(operations)?.map(Step::Servers)),
            Step::Departures(departures) => Some(in_two(departures)?.map(Step::Departures)),
            Step::Table(transaction) => Some(table_diff::halves(transaction)?.map(Step::Table)),
            Step::Delivery(_) | Step::Timeouts(_) => None,
        }
    }
}

/// The rule that the operation adds.
fn added_rule(operation: &nf_tables::Operation) -> Option<&Rule> {
    match operation {
        nf_tables::Operation::AddRule { rule, .. }
        | nf_tables::Operation::InsertRule { rule, .. } => Some(rule),
        _ => None,
    }
}

/// Splits a list; `None` if it has fewer than two entries.
fn in_two<T: Clone>(all: &[T]) -> Option<[Vec<T>; 2]> {
    let (first, second) = all.split_at(all.len() / 2);
    (!first.is_empty()).then(|| [first.to_vec(), second.to_vec()])
}

impl backend::Change for Change {
    fn size(&self) -> Size {
        let mut size = Size::default();
        for step in &self.steps {
            match step {
                Step::Servers(operations) => size.elements += operations.len(),
                Step::Departures(departures) => {
                    let operations = departures.iter().flat_map(Departure::removals);
                    size.elements += operations.count();
                }
                Step::Delivery(_) | Step::Timeouts(_) => size.objects += 1,
                Step::Table(transaction) => {
                    size.elements += transaction.elements();
                    let is_element = |operation: &&nf_tables::Operation| {
                        matches!(
                            operation,
                            nf_tables::Operation::AddElements { .. }
                                | nf_tables::Operation::DeleteElements { .. }
                        )
                    };
                    let operations = transaction.operations.iter();
                    size.objects += operations.filter(|o| !is_element(o)).count();
                }
            }
        }
        size
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            match step {
                Step::Table(transaction) => transaction.fmt(f)?,
                Step::Delivery(Presence::Absent) => writeln!(f, "delete routing rule {DELIVERY}")?,
                Step::Delivery(_) => writeln!(f, "add routing rule {DELIVERY}")?,
                Step::Timeouts(timeouts) => writeln!(f, "set {timeouts}")?,
                Step::Servers(operations) => {
                    for operation in operations {
                        writeln!(f, "{operation}")?;
                    }
                }
                Step::Departures(departures) => {
                    for operation in departures.iter().flat_map(Departure::removals) {
                        writeln!(f, "{operation}, once it has no connections")?;
                    }
                }
            }
        }
        Ok(())
    }
}
