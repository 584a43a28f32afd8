//! What tenants do to virtual servers, and what of that others notice. The kernel in memory keeps what
//! leaves, until its connections end.

use dataplane::{Mode, Protocol, Scheduler, compile};
use netlink::ipvs::{Connections, Operation, VirtualServerKey};
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::{cases, mk_config, mk_endpoints, mk_node, mk_service, port};

use super::super::*;
use crate::scheduler_tables::table_of;

/// How many virtual servers may serve.
const MOST: usize = 12;
/// How many pages the tables of those may take: the honest Services need 16.
const MOST_PAGES: usize = 56;
/// The Services of the namespace that asks for nothing unusual, each of one port.
const HONEST: [(&str, u8); 2] = [("shop/web", 1), ("shop/cart", 2)];

#[derive(Debug, Clone)]
enum Event {
    /// So many of a tenant's Services exist from now on, of this scheduler and endpoint.
    Set(u8, u8, Scheduler, u8),
    Delete(u8, u8),
    /// The honest Services have this endpoint.
    RollOut(u8),
    /// The connections end that keep a virtual server which leaves.
    End(Index),
    /// The agent is started again.
    Restart,
}

/// A node with its agent, in one family.
struct Node {
    backend: Ipvs,
    held: Rendered<Rules>,
    /// All that the kernel has.
    servers: BTreeMap<VirtualServerKey, Server>,
    tenant: BTreeMap<u8, (Scheduler, u8)>,
    /// The endpoint of the honest Services, once they exist.
    honest: Option<u8>,
}

impl Node {
    fn new() -> Node {
        let mut node = Node {
            backend: Ipvs::detached(Family::Ipv4),
            held: Rendered::default(),
            servers: BTreeMap::new(),
            tenant: BTreeMap::new(),
            honest: None,
        };
        node.restart();
        node
    }

    /// The agent knows what it reads from the kernel.
    fn restart(&mut self) {
        self.backend = Ipvs::detached(Family::Ipv4);
        let servers = self.servers.iter();
        let servers = servers.map(|(key, server)| {
            let number = number_of(key.mark.value()).expect("a mark");
            (number, Arc::new(server.clone()))
        });
        let servers: BTreeMap<u32, Arc<Server>> = servers.collect();
        let last = servers.keys().next_back().copied().unwrap_or(0);
        self.held = Rendered {
            dataplane: Dataplane::default(),
            rules: Rules {
                table: self.held.rules.table.clone(),
                servers: servers.into_iter().collect(),
                delivery: Presence::Whole,
                allocation: Allocation::bounded([MOST, MOST_PAGES], last),
                ..Rules::default()
            },
        };
    }

    fn desired(&self) -> Dataplane {
        let config = mk_config().mode(Mode::Ipvs).build();
        let node = mk_node(1).build();
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        let mut set = |name: &str, address: &str, scheduler, endpoint: u8| {
            let service = mk_service(name).cluster_ip(address).port("http", 80);
            let service = service.scheduler(scheduler).build();
            let endpoint = format!("10.0.2.{endpoint}:80");
            let endpoints = mk_endpoints().tcp("http").ready(&endpoint, "node-2");
            dataplane.set(compile(&service, &endpoints.build(), &node, &config).into());
        };
        for (number, (scheduler, endpoint)) in &self.tenant {
            let (name, address) = (format!("tenant/{number}"), format!("10.96.1.{number}"));
            set(&name, &address, *scheduler, *endpoint);
        }
        for (name, last) in HONEST {
            if let Some(endpoint) = self.honest {
                set(
                    name,
                    &format!("10.96.0.{last}"),
                    Scheduler::Maglev,
                    endpoint,
                );
            }
        }
        dataplane
    }

    fn sync(&mut self) {
        let desired = self.desired();
        let rules = self.backend.render(&desired, &self.held);
        let change = self.backend.diff(&self.held.rules, &rules);
        let ports = change.ports().clone();
        for step in change.steps {
            let operations = match step {
                Step::Servers(operations) => self.backend.draining.resume(operations, &ports),
                Step::Departures(departures) => {
                    self.backend.draining.begin(departures, Instant::now())
                }
                Step::Delivery(_) | Step::Timeouts(_) | Step::Table(_) => Vec::new(),
            };
            self.apply(operations);
        }
        self.held = Rendered {
            dataplane: desired,
            rules,
        };
    }

    fn apply(&mut self, operations: Vec<Operation>) {
        for operation in operations {
            self.carry_out(operation);
            let tables = self.servers.values();
            let tables = tables.map(|held| table_of(&held.server.scheduler).0);
            assert!(tables.sum::<usize>() <= 2 * MOST_PAGES, "too many tables");
        }
    }

    fn carry_out(&mut self, operation: Operation) {
        let key = operation.key();
        let held = self.servers.get_mut(&key);
        match operation {
            Operation::AddVirtualServer { server, .. } => {
                assert!(held.is_none(), "{key} is another's, or leaves");
                let server = Server {
                    server,
                    destinations: BTreeMap::new(),
                    owner: None,
                };
                self.servers.insert(key, server);
            }
            Operation::RemoveVirtualServer { .. } => drop(self.servers.remove(&key)),
            Operation::SetVirtualServer { server, .. } => {
                held.expect("it exists").server = server;
            }
            Operation::AddDestination {
                address,
                destination,
                ..
            }
            | Operation::SetDestination {
                address,
                destination,
                ..
            } => {
                let destinations = &mut held.expect("it exists").destinations;
                destinations.insert(address, destination);
            }
            Operation::RemoveDestination { address, .. } => {
                held.expect("it exists").destinations.remove(&address);
            }
        }
    }

    fn end(&mut self, which: Index) {
        let draining = self.backend.draining.keys();
        if draining.is_empty() {
            return;
        }
        let key = *which.get(&draining);
        let listed = self.servers[&key].destinations.iter();
        let listed = listed.map(|(at, held)| (*at, (*held, Connections::default())));
        let found = vec![(key, listed.collect())];
        let operations = self.backend.draining.end(&found, Instant::now());
        self.apply(operations);
    }

    /// What clients of the honest Services notice: their marks, and who serves them how.
    fn noticed(&self) -> BTreeMap<&str, (BTreeSet<u32>, Vec<String>)> {
        let rules = &self.held.rules;
        let noticed = HONEST.map(|(name, last)| {
            let key = FrontendKey::Address {
                address: [10, 96, 0, last].into(),
                protocol: Protocol::Tcp,
                port: port(80),
            };
            let numbers = rules.numbers(&key).into_iter();
            let servers = numbers.filter_map(|number| rules.servers.get(&number));
            let server = |server: &Arc<Server>| {
                let endpoints = server.open().map(|target| target.address.to_string());
                let endpoints: Vec<String> = endpoints.collect();
                format!("{} to {}", server.server.scheduler, endpoints.join(", "))
            };
            (name, (rules.marks(&key), servers.map(server).collect()))
        });
        noticed.into_iter().collect()
    }
}

fn event() -> impl Strategy<Value = Event> {
    let scheduler = proptest::sample::select(Scheduler::ALL.to_vec());
    let set = (0..20_u8, 1..6_u8, scheduler, 5..8_u8);
    prop_oneof![
        6 => set.prop_map(|(first, count, scheduler, endpoint)| {
            Event::Set(first, count, scheduler, endpoint)
        }),
        3 => (0..20_u8, 1..6_u8).prop_map(|(first, count)| Event::Delete(first, count)),
        2 => (5..8_u8).prop_map(Event::RollOut),
        3 => any::<Index>().prop_map(Event::End),
        1 => Just(Event::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(256)))]

    /// Failure stories T369 and T370: whatever a tenant does, no Service gets the mark of a virtual server
    /// that leaves, neither virtual servers nor their tables exceed the bounds, and others notice nothing.
    #[test]
    fn t369_t370_whatever_a_tenant_does_others_keep_their_marks_and_schedulers(
        events in proptest::collection::vec(event(), 1..60), comes: Index,
    ) {
        let mut node = Node::new();
        let comes = comes.index(events.len());
        for (done, event) in events.into_iter().enumerate() {
            let before = node.noticed().into_iter().map(|(name, (marks, _))| (name.to_owned(), marks));
            let before: BTreeMap<String, BTreeSet<u32>> = before.collect();
            let is_same = match event {
                Event::Set(first, count, scheduler, endpoint) => {
                    node.tenant.extend((first..first + count).map(|at| (at, (scheduler, endpoint))));
                    true
                }
                Event::Delete(first, count) => {
                    node.tenant.retain(|at, _| !(first..first + count).contains(at));
                    true
                }
                Event::RollOut(endpoint) if node.honest.is_some() => {
                    let before = node.honest.replace(endpoint);
                    before == Some(endpoint)
                }
                Event::End(which) => {
                    node.end(which);
                    true
                }
                // A new agent does not know whose the virtual servers are that leave. One of a hash that was
                // changed where it is it may replace.
                Event::Restart if node.honest.is_some() => {
                    let drains = |server: &Server| server.open().count() < server.destinations.len();
                    let marks: BTreeSet<u32> = before.values().flatten().copied().collect();
                    let mut own = node.servers.iter().filter(|(key, _)| marks.contains(&key.mark.value()));
                    let is_same = !own.any(|(_, server)| drains(server));
                    node.restart();
                    is_same
                }
                Event::RollOut(_) | Event::Restart => true,
            };
            let are_new = done == comes;
            if are_new {
                node.honest = Some(5);
            }
            node.sync();
            prop_assert!(node.servers.len() <= 2 * MOST);
            let serving = node.held.rules.servers.iter();
            let serving = serving.map(|(_, held)| table_of(&held.server.scheduler).0);
            prop_assert!(serving.sum::<usize>() <= MOST_PAGES);
            let Some(endpoint) = node.honest else { continue };
            for (name, (marks, served)) in node.noticed() {
                prop_assert_eq!(served, [format!("mh to 10.0.2.{endpoint}")], "{}", name);
                prop_assert!(!is_same || are_new || before[name] == marks, "{}", name);
            }
        }
    }
}
