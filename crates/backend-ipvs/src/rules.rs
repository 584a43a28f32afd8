//! The rules of the mode as a value, as observed or desired.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use backend::first_of;
use dataplane::{
    Difference, Family, FrontendKey, PersistentMap, Port, Protocol, ServiceKey, ServicePortName,
    Target,
};
use netlink::ipvs::{
    Connections, Destination, ForeignVirtualServer, Forwarding, Mark, Thresholds, VirtualServer,
    Weight,
};
use netlink::nf_tables::{Bytes, ElementData};
use netlink::route::Presence;
use nftables_model::{Contents, Elements, View, frontend, parse_frontend};

use crate::allocation::{Allocation, number_in, number_of};
use crate::chains::affinity::AffinityGroup;
use crate::idle::IdleTimeouts;
use crate::layout::{DELIVERY, MARKS, SetName};
use crate::missing_schedulers::MissingSchedulers;
use crate::scheduler_tables::{Pages, WithoutTable, table_of};

/// How many virtual servers of other programs a message names.
const FOREIGN_NAMED: usize = 8;

/// The table, the virtual servers and the routing rule of one family. Copies share what they have
/// in common. Equal if the kernel would list them identically.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    pub(crate) table: Contents,
    /// By the number of the mark.
    pub(crate) servers: PersistentMap<u32, Arc<Server>>,
    /// Whether [`DELIVERY`](crate::layout::DELIVERY) exists.
    pub(crate) delivery: Presence,
    /// The kernel stores only hashes of this.
    pub(crate) allocation: Allocation,
    /// The Services for which no mark was left, each with its first frontend without one. Not stored
    /// in the kernel.
    pub(crate) unmarked: PersistentMap<ServiceKey, FrontendKey>,
    /// The Services with other schedulers than those that they ask for, for want of room for the tables.
    /// Not stored in the kernel.
    pub(crate) without_table: PersistentMap<ServiceKey, WithoutTable>,
    /// The number of virtual servers in each affinity group. Derived from them; determines the
    /// table.
    pub(crate) affinity_groups: PersistentMap<AffinityGroup, usize>,
    /// The idle timeouts of IPVS. They belong to the whole network namespace, so they stay when
    /// everything else is removed.
    pub(crate) idle: IdleTimeouts,
    /// How long connections to an endpoint that has left may last; `None` for as long as they do.
    /// Not stored in the kernel.
    pub(crate) drain_limit: Option<Duration>,
    /// The schedulers that the kernel was known to lack when the rules were rendered or read. Not
    /// stored in the kernel.
    pub(crate) missing_schedulers: MissingSchedulers,
    /// What the kernel says besides, if the rules were read from it.
    pub(crate) figures: Arc<Figures>,
    /// The owners of marks as they were before the rules were read, if an agent has known them since. Not
    /// stored in the kernel: another program may have removed the map of owners.
    pub(crate) remembered: Elements,
}

/// What the kernel says when it lists the rules.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// The connections of destinations that have any, by the number of the virtual server. `None`
    /// if the rules were not read from the kernel.
    pub(crate) connections: Option<BTreeMap<(u32, SocketAddr), Connections>>,
    /// The virtual servers of other programs, of both families.
    pub(crate) foreign: Vec<ForeignVirtualServer>,
}

/// A virtual server and its destinations.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) server: VirtualServer,
    pub(crate) destinations: BTreeMap<SocketAddr, Destination>,
    /// Not stored in the kernel.
    pub(crate) owner: Option<ServicePortName>,
}

// === impl Rules ===

impl Rules {
    /// Whether there is a table, a virtual server or the routing rule.
    pub fn exist(&self) -> bool {
        self.table.exists || !self.servers.is_empty() || self.delivery != Presence::Absent
    }

    /// The number of elements in all sets plus that of destinations of all virtual servers.
    pub fn elements(&self) -> usize {
        let sets = self.table.sets.values();
        let elements: usize = sets.map(|set| set.elements.len()).sum();
        let servers = self.servers.iter();
        let destinations: usize = servers.map(|(_, server)| server.destinations.len()).sum();
        elements + destinations
    }

    /// The endpoints for new connections to a frontend, from any client.
    pub fn targets(&self, key: &FrontendKey) -> BTreeSet<Target> {
        let servers = self.numbers(key).into_iter();
        let servers = servers.filter_map(|number| self.servers.get(&number));
        let targets = servers.flat_map(|server| server.open());
        targets
            .filter(|target| Family::of(target.address) == key.family())
            .collect()
    }

    /// The marks of the virtual servers that a frontend leads to.
    pub fn marks(&self, key: &FrontendKey) -> BTreeSet<u32> {
        let numbers = self.numbers(key).into_iter();
        numbers
            .filter_map(|number| Some(MARKS.mark(number)?.value()))
            .collect()
    }

    /// The table of a virtual server's scheduler, if the virtual server exists.
    pub(crate) fn table_of(&self, number: u32) -> Option<Pages> {
        let server = self.servers.get(&number)?;
        Some(table_of(&server.server.scheduler))
    }

    /// The numbers of the virtual servers that a frontend leads to.
    pub(crate) fn numbers(&self, key: &FrontendKey) -> BTreeSet<u32> {
        self.leads(key).map(|(_, number)| number).collect()
    }

    /// The maps that lead a frontend to virtual servers, with their numbers.
    pub(crate) fn leads(&self, key: &FrontendKey) -> impl Iterator<Item = (SetName, u32)> {
        let bytes = frontend(key);
        SetName::MARKS.into_iter().filter_map(move |set| {
            // Keys of other sets have other lengths.
            let element = self.table.sets.get(set.as_str())?.elements.get(&bytes)?;
            Some((set, number_of(mark_of(element)?)?))
        })
    }

    /// The protocol of each virtual server that a frontend leads to, by number. Reads all frontends.
    pub(crate) fn protocols(&self, family: Family) -> BTreeMap<u32, Protocol> {
        let sets = SetName::MARKS.into_iter();
        let sets =
            sets.filter_map(|name| Some((name.fields()?, self.table.sets.get(name.as_str())?)));
        let leads = sets.flat_map(|(fields, set)| {
            let elements = set.elements.iter();
            elements.filter_map(move |(key, data)| {
                let frontend = parse_frontend(family, fields, key.as_slice())?;
                Some((number_of(mark_of(data)?)?, frontend.protocol()))
            })
        });
        leads.collect()
    }

    /// The rules without what stays for its connections alone: destinations that get no new ones and
    /// that `desired` does not have, and virtual servers that have no others.
    pub(crate) fn without_draining(&self, desired: &Rules) -> Rules {
        let mut rules = self.clone();
        for (number, server) in self.servers.iter() {
            let desired = desired.servers.get(number);
            let is_draining = |(address, destination): (&SocketAddr, &Destination)| {
                let is_desired = desired.is_some_and(|d| d.destinations.contains_key(address));
                destination.weight == Weight::DRAINING && !is_desired
            };
            if !server.destinations.iter().any(is_draining) {
                continue;
            }
            let destinations = server.destinations.iter();
            let kept = destinations.filter(|destination| !is_draining(*destination));
            let kept: BTreeMap<SocketAddr, Destination> = kept.map(|(at, d)| (*at, *d)).collect();
            match kept.is_empty() && desired.is_none() {
                true => drop(rules.servers.remove(number)),
                false => {
                    let server = Server {
                        destinations: kept,
                        ..Server::clone(server)
                    };
                    rules.servers.insert(*number, Arc::new(server));
                }
            }
        }
        rules
    }

    /// The owner of each mark, by the table. For a mark that the table does not name, the owner that is
    /// remembered, as long as the mark has a virtual server.
    pub(crate) fn owners(&self) -> Elements {
        let named = self.table.sets.get(SetName::Owners.as_str());
        let mut owners = named.map_or_else(Elements::new, |set| set.elements.clone());
        // Rendered rules remember nothing, and every change asks.
        if self.remembered.is_empty() {
            return owners;
        }
        for Difference { key, before, after } in self.remembered.differences(&owners.clone()) {
            let server = number_in(key).and_then(|number| self.servers.get(&number));
            if let (Some(owner), None, Some(_)) = (before, after, server) {
                owners.insert(key.clone(), owner.clone());
            }
        }
        owners
    }

    pub(crate) fn view(&self) -> View<'_> {
        View {
            chains: &self.table.chains,
            sets: &self.table.sets,
        }
    }
}

impl PartialEq for Rules {
    fn eq(&self, other: &Rules) -> bool {
        let Rules {
            table,
            servers,
            delivery,
            allocation: _,
            unmarked: _,
            without_table: _,
            affinity_groups: _,
            idle,
            drain_limit: _,
            missing_schedulers: _,
            figures: _,
            remembered: _,
        } = self;
        (table, servers, delivery) == (&other.table, &other.servers, &other.delivery)
            && idle.agree(&other.idle)
    }
}

impl fmt::Display for Rules {
    /// Prints the table, the routing rule, and the virtual servers by mark, in `ipvsadm` notation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)?;
        if let Some(printed) = print_delivery(self.delivery) {
            writeln!(f, "{printed}")?;
        }
        for (number, server) in self.servers.sorted() {
            writeln!(f, "{}", print_server(*number, &server.server))?;
            for (address, destination) in &server.destinations {
                writeln!(f, "    {address} {destination}")?;
            }
        }
        Ok(())
    }
}

// === impl Server ===

impl Server {
    /// The destinations that accept new connections.
    pub(crate) fn open(&self) -> impl Iterator<Item = Target> {
        let destinations = self.destinations.iter();
        destinations
            .filter(|(_, destination)| destination.weight != Weight::DRAINING)
            .filter_map(|(address, _)| {
                Some(Target {
                    address: address.ip(),
                    port: Port::new(address.port())?,
                })
            })
    }
}

impl PartialEq for Server {
    fn eq(&self, other: &Server) -> bool {
        let Server {
            server,
            destinations,
            owner: _,
        } = self;
        (server, destinations) == (&other.server, &other.destinations)
    }
}

/// Prints a virtual server in `ipvsadm` notation, with its mark as in the elements of the table.
pub(crate) fn print_server(number: u32, server: &VirtualServer) -> String {
    let mark = MARKS.mark(number).map_or(0, Mark::value);
    format!("virtual server -f {mark} ({mark:#010x}) {server}")
}

/// Names the first of other programs' virtual servers, as `ipvsadm -Ln` does; `None` if there are
/// none.
pub(crate) fn print_foreign(foreign: &[ForeignVirtualServer]) -> Option<String> {
    (!foreign.is_empty()).then(|| first_of(foreign, FOREIGN_NAMED))
}

/// Prints the routing rule as far as it exists.
pub(crate) fn print_delivery(delivery: Presence) -> Option<String> {
    match delivery {
        Presence::Absent => None,
        Presence::Partial => Some(format!("routing rule {DELIVERY}, without its route")),
        Presence::Whole => Some(format!("routing rule {DELIVERY}")),
    }
}

/// The value of an element that leads to the virtual server of this number.
pub(crate) fn lead(number: u32) -> ElementData {
    let mark = MARKS.mark(number).map_or(0, |mark| mark.value());
    ElementData::Value(Bytes::new().with(&mark.to_ne_bytes()))
}

/// The mark that an element leads to.
pub(crate) fn mark_of(data: &ElementData) -> Option<u32> {
    match data {
        ElementData::Value(value) => Some(u32::from_ne_bytes(value.as_slice().try_into().ok()?)),
        ElementData::None | ElementData::Verdict(_) => None,
    }
}

/// A destination with this weight, in the form that Signpost writes.
pub(crate) fn destination(weight: Weight) -> Destination {
    Destination {
        forwarding: Forwarding::Masquerade,
        weight,
        thresholds: Thresholds::default(),
    }
}

pub(crate) fn socket_address(target: &Target) -> SocketAddr {
    SocketAddr::new(target.address, target.port.get())
}
