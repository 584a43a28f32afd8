//! The packet paths after each transaction of a change.

use super::*;

use std::sync::Arc;

use backend::{Backend, Rendered};
use dataplane::{Config, Dataplane, Node, Origin, Packet, Protocol, Service, Verdict, compile};
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::laws::Stepwise;
use testkit::{
    EndpointsBuilder, ServiceBuilder, TableDamage, cases, changes, histories, laws, mk_config,
    mk_endpoints, mk_node, mk_service, port, questions, questions_beside_tenants,
    services_at_shared_addresses, table_damages,
};

use crate::{Nftables, simulate};

/// Fewer elements in a transaction than any frontend has, so that each frontend is separate.
const ONE_BY_ONE: usize = 1;

pub(super) fn render(family: Family, dataplane: &Dataplane, from: &Rendered<Table>) -> Table {
    Nftables::detached(family).render(dataplane, from)
}

/// The tables that each prefix of the transactions from `observed` to `desired` leaves in the
/// kernel.
pub(super) fn prefixes(family: Family, observed: &Table, desired: &Table) -> Vec<Table> {
    let mut held = observed.clone();
    let mut prefixes = Vec::new();
    for transaction in diff_in_parts(family, observed, desired, ONE_BY_ONE).transactions() {
        held.replay(transaction).expect("the kernel takes it");
        prefixes.push(held.clone());
    }
    assert_eq!(&held, desired, "the change does not arrive");
    prefixes
}

fn never_misleads(held: &Table, ends: [&Dataplane; 2], packets: &[Packet]) {
    for packet in packets {
        let simulated = simulate_both(held, ends[1].node(), packet);
        laws::never_misleads(ends, packet, &simulated);
    }
}

/// The verdict on a packet that traverses both tables, where both are hooked: the first one that
/// redirects it decides, and neither may refuse it.
pub(super) fn simulate_both(held: &Table, node: &Node, packet: &Packet) -> Verdict {
    let own = Table {
        next: None,
        ..held.clone()
    };
    let tables = [Some(&own), held.next.as_deref()];
    let mut outcome = Verdict::Untouched;
    for table in tables.into_iter().flatten() {
        match simulate(table, node, packet) {
            refused @ (Verdict::Reject | Verdict::Drop) => return refused,
            served if outcome == Verdict::Untouched => outcome = served,
            _ => {}
        }
    }
    outcome
}

/// The same table in a form that cannot be changed in place, as an older version might have written
/// it.
fn in_another_form(table: &Table) -> Table {
    let mut table = table.clone();
    let chains = Arc::make_mut(&mut table.chains);
    for name in ["nat-prerouting", "nat-output"] {
        let chain = chains.get_mut(name).map(Arc::make_mut);
        let hook = chain.and_then(|chain| chain.chain.hook.as_mut());
        hook.expect("it is at a hook").priority += 1;
    }
    table
}

fn of_family(family: Family, packets: &[Packet]) -> Vec<Packet> {
    let packets = packets
        .iter()
        .filter(|p| Family::of(p.destination) == family);
    packets.cloned().collect()
}

/// A node port of the API server's Service must not take packets to the load balancer of another
/// Service that has the node's address and the same port.
#[test]
fn t55_a_node_port_that_comes_first_takes_no_packet_for_an_address() {
    let node = mk_node(1).build();
    let config = mk_config().node_ports_anywhere().build();
    let mut desired = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    let api = mk_service("default/kubernetes").cluster_ip("10.96.0.1");
    let api = api.port("", 443).node_port(30_080).first().build();
    let shop = mk_service("shop/web").cluster_ip("10.96.0.10");
    let shop = shop.load_balancer_ip("192.168.0.1").port("", 30_080);
    for (service, endpoint) in [(api, "10.0.1.5:6443"), (shop.build(), "10.0.1.6:8080")] {
        let endpoints = mk_endpoints().tcp("").ready(endpoint, "node-1").build();
        desired.set(compile(&service, &endpoints, &node, &config).into());
    }
    let packet = from_outside("192.168.0.1", 30_080);
    let rules = render(Family::Ipv4, &desired, &Rendered::default());
    for held in prefixes(Family::Ipv4, &Table::default(), &rules) {
        never_misleads(
            &held,
            [&Dataplane::default(), &desired],
            std::slice::from_ref(&packet),
        );
    }
}

/// What a client outside asks of the node's address.
fn from_outside(destination: &str, number: u16) -> Packet {
    Packet {
        origin: Origin::Outside {
            interface: "eth0".into(),
        },
        source: "192.0.2.7".parse().expect("an address"),
        destination: destination.parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(number),
    }
}

/// The dataplane of node-1 with Services of one endpoint and a second one of two.
fn with_services(config: &Arc<Config>, services: [Service; 2]) -> Dataplane {
    let node = mk_node(1).build();
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(config));
    let [one, two] = services;
    let endpoints = || mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
    let more = endpoints().ready("10.0.1.6:8080", "node-1").build();
    for (service, endpoints) in [(one, endpoints().build()), (two, more)] {
        dataplane.set(compile(&service, &endpoints, &node, config).into());
    }
    dataplane
}

/// The rules at both ends. Those of the second do not keep what only the first needs.
fn rules_of(before: &Dataplane, after: &Dataplane) -> (Table, Table) {
    let [before, after] =
        [before, after].map(|dataplane| render(Family::Ipv4, dataplane, &Rendered::default()));
    (before, after)
}

/// Failure story T302: an address is the cluster IP of one Service and the external IP of another one
/// afterwards, or before.
#[test]
fn t302_an_address_that_changes_its_service_is_refused_or_served_at_every_step() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let address = "198.51.100.1";
    let state = |service: ServiceBuilder, endpoints: EndpointsBuilder| {
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        dataplane.set(compile(&service.build(), &endpoints.build(), &node, &config).into());
        dataplane
    };
    let endpoint = || mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
    let other = mk_service("shop/other").cluster_ip(address).port("", 443);
    let other = state(other, endpoint());
    let packet = from_outside(address, 80);
    for endpoints in [mk_endpoints().tcp(""), endpoint()] {
        let web = mk_service("shop/web").cluster_ip("10.96.0.10");
        let web = state(web.external_ip(address).port("", 80), endpoints);
        for ends in [[&other, &web], [&web, &other]] {
            let (from, to) = rules_of(ends[0], ends[1]);
            let verdict = |held: &Table| simulate_both(held, &node, &packet);
            let [had, has] = [&from, &to].map(verdict);
            for held in prefixes(Family::Ipv4, &from, &to) {
                laws::no_worse_than_both_ends(&packet, ends, [&had, &has], &verdict(&held));
            }
        }
    }
}

/// Failure story T174: node ports are open at all addresses of the node, then at listed ones only,
/// while other elements are written with the same rules. The rules look the listed addresses up
/// from their own transaction on, or from its first half if the kernel takes no more.
#[test]
fn t174_node_ports_stay_open_at_an_address_that_is_listed_from_now_on() {
    let [before, after] = [
        mk_config().node_ports_anywhere(),
        mk_config().node_ports_at(&["192.168.0.1"]),
    ];
    let web = mk_service("shop/web").cluster_ip("10.96.0.10").port("", 80);
    let web = web.node_port(30_080).build();
    let api = mk_service("shop/api").cluster_ip("10.96.0.11").port("", 80);
    let before = with_services(&before.build(), [web.clone(), api.clone().build()]);
    let after = with_services(&after.build(), [web, api.node_port(30_081).build()]);
    let packets = [from_outside("192.168.0.1", 30_080)];
    let (observed, desired) = rules_of(&before, &after);
    for held in prefixes(Family::Ipv4, &observed, &desired) {
        never_misleads(&held, [&before, &after], &packets);
    }
    let mut left: Vec<_> = diff(Family::Ipv4, &observed, &desired).transactions;
    let mut held = observed;
    left.reverse();
    while let Some(next) = left.pop() {
        if let Some([first, second]) = halves(Family::Ipv4, &next) {
            left.extend([second, first]);
            continue;
        }
        held.replay(&next).expect("the kernel takes it");
        never_misleads(&held, [&before, &after], &packets);
    }
    assert_eq!(held, desired);
}

/// Failure story T326: all addresses of the node accept node ports, then listed ones only, and another
/// one gets a load balancer's frontend with the port of one instead.
#[test]
fn t326_an_address_that_is_not_listed_is_served_by_its_own_frontend_at_once() {
    let web = || mk_service("shop/web").cluster_ip("10.96.0.10");
    let other = mk_service("shop/api").cluster_ip("10.96.0.11").port("", 80);
    let other = other.build();
    let old = web().port("", 30_080).node_port(30_080).build();
    let new = web().load_balancer_ip("172.20.0.1").port("", 30_080);
    let before = mk_config().node_ports_anywhere().build();
    let after = mk_config().node_ports_at(&["192.168.0.1"]).build();
    let before = with_services(&before, [old, other.clone()]);
    let after = with_services(&after, [new.node_port(30_080).build(), other]);
    let packets = [from_outside("172.20.0.1", 30_080)];
    for ends in [[&before, &after], [&after, &before]] {
        let (observed, desired) = rules_of(ends[0], ends[1]);
        for held in prefixes(Family::Ipv4, &observed, &desired) {
            never_misleads(&held, ends, &packets);
        }
    }
}

/// Failure story T326, where the node port has no endpoints: what is refused before and served after is
/// one of them in between, and nothing of the node's own answers.
#[test]
fn t326_an_address_that_is_not_listed_is_refused_or_served_at_every_step() {
    let before = mk_config().node_ports_anywhere().build();
    let after = mk_config().node_ports_at(&["192.168.0.1"]).build();
    let web = || {
        mk_service("shop/web")
            .cluster_ip("10.96.0.10")
            .port("", 30_080)
    };
    let old = web().node_port(30_080).build();
    let node = mk_node(1).build();
    let nowhere = mk_endpoints().build();
    let mut ahead = Dataplane::new(Arc::clone(&node), Arc::clone(&before));
    ahead.set(compile(&old, &nowhere, &node, &before).into());
    let other = mk_service("shop/api").cluster_ip("10.96.0.11");
    let other = other.load_balancer_ip("172.20.0.1").port("", 30_080);
    let third = mk_service("shop/shop")
        .cluster_ip("10.96.0.12")
        .port("", 80);
    let behind = with_services(&after, [other.build(), third.build()]);
    let packet = from_outside("172.20.0.1", 30_080);
    let (observed, desired) = rules_of(&ahead, &behind);
    let mut verdicts = Vec::new();
    for held in prefixes(Family::Ipv4, &observed, &desired) {
        verdicts.push(simulate_both(&held, behind.node(), &packet));
    }
    assert!(!verdicts.contains(&Verdict::Untouched), "{verdicts:?}");
}

/// Failure story T174, the other way: an address no longer accepts node ports and gets a load
/// balancer's frontend with the port of one instead.
#[test]
fn t174_an_address_that_closes_to_node_ports_is_served_by_its_own_frontend_before() {
    let [before, after] = [
        mk_config().node_ports_at(&["192.168.0.1", "172.20.0.1"]),
        mk_config().node_ports_at(&["192.168.0.1"]),
    ];
    let web = || mk_service("shop/web").cluster_ip("10.96.0.10");
    let other = mk_service("shop/api").cluster_ip("10.96.0.11").port("", 80);
    let other = other.build();
    let old = web().port("", 80).node_port(30_080).build();
    let new = web()
        .load_balancer_ip("172.20.0.1")
        .port("", 30_080)
        .build();
    let before = with_services(&before.build(), [old, other.clone()]);
    let after = with_services(&after.build(), [new, other]);
    let packets = [from_outside("172.20.0.1", 30_080)];
    let (observed, desired) = rules_of(&before, &after);
    for held in prefixes(Family::Ipv4, &observed, &desired) {
        never_misleads(&held, [&before, &after], &packets);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(150)))]

    /// Failure story T42: a cold start adds frontend by frontend, and in between refuses no client
    /// that it is going to serve.
    #[test]
    fn t42_a_start_refuses_no_packet_that_it_is_going_to_serve((cluster, packets) in questions(23)) {
        let (nothing, desired) = (Dataplane::default(), cluster.compile());
        for family in Family::ALL {
            let packets = of_family(family, &packets);
            let rules = render(family, &desired, &Rendered::default());
            for held in prefixes(family, &Table::default(), &rules) {
                never_misleads(&held, [&nothing, &desired], &packets);
            }
        }
    }

    /// Holds for any change, including one of the configuration, and for rules that were rendered
    /// or read from the kernel.
    #[test]
    fn no_step_of_a_change_refuses_or_misleads_a_packet_that_both_ends_serve(
        (cluster, packets) in questions(23), history in histories(3), read_back: bool,
    ) {
        let mut states = history;
        states.push(cluster.compile());
        states.retain(|state| state.node() == &cluster.node);
        for ends in states.windows(2) {
            let [before, after] = ends else { continue };
            for family in Family::ALL {
                let packets = of_family(family, &packets);
                let rules = render(family, before, &Rendered::default());
                let dataplane = if read_back { Dataplane::default() } else { before.clone() };
                let observed = Rendered { dataplane, rules };
                let rules = render(family, after, &observed);
                for held in prefixes(family, &observed.rules, &rules) {
                    never_misleads(&held, [before, after], &packets);
                }
            }
        }
    }
}

/// Changes in the smallest transactions.
struct Smallest(Family);

impl Stepwise for Smallest {
    type Rules = Table;

    fn family(&self) -> Family {
        self.0
    }

    fn render(&self, dataplane: &Dataplane, from: &Rendered<Table>) -> Table {
        render(self.0, dataplane, from)
    }

    fn steps(&self, held: &Table, desired: &Table) -> Vec<Table> {
        prefixes(self.0, held, desired)
    }

    fn simulate(&self, held: &Table, node: &Node, packet: &Packet) -> Verdict {
        simulate(held, node, packet)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(60)))]

    /// Failure story T286: an agent changes some Services, is killed after any transaction, and the
    /// next one goes on from what it finds.
    #[test]
    fn t286_a_change_that_is_cut_short_harms_no_other_service_and_misleads_no_packet(
        (before, after, packets) in changes(6),
    ) {
        for family in Family::ALL {
            let ends = [&before.compile(), &after.compile()];
            laws::a_change_that_is_cut_short_harms_nobody(&Smallest(family), ends, &packets);
        }
    }

    /// The same where most changes move an address from one Service to another.
    #[test]
    fn t302_a_change_among_few_addresses_that_is_cut_short_misleads_no_packet(
        (before, after, packets) in services_at_shared_addresses(),
    ) {
        for family in Family::ALL {
            let ends = [&before.compile(), &after.compile()];
            laws::a_change_that_is_cut_short_harms_nobody(&Smallest(family), ends, &packets);
        }
    }
}

proptest! {
    // Each case is hundreds of changes.
    #![proptest_config(ProptestConfig::with_cases(cases(16)))]

    /// Failure story T87: an agent that finds the table of another version keeps it serving until
    /// its own table is complete, even if it is killed after any single transaction.
    #[test]
    fn t87_a_table_of_another_form_serves_until_its_successor_does(
        (cluster, packets) in questions(23), left_out in any::<Index>(),
    ) {
        let after = cluster.compile();
        let mut before = after.clone();
        if let Some((service, _)) = cluster.services.get(left_out.index(cluster.services.len().max(1))) {
            before.remove(&service.key);
        }
        for family in Family::ALL {
            let mut packets = of_family(family, &packets);
            packets.truncate(3);
            let found = in_another_form(&render(family, &before, &Rendered::default()));
            let from = |rules| Rendered { dataplane: Dataplane::default(), rules };
            let desired = render(family, &after, &from(found.clone()));
            let prefixes = prefixes(family, &found, &desired);
            for held in &prefixes {
                never_misleads(held, [&before, &after], &packets);
            }
            // The older version returns after a kill between the removal of a table's rules and of
            // the table.
            let is_flushed = |held: &&Table| {
                held.is_flushed() || held.next.as_deref().is_some_and(Table::is_flushed)
            };
            for held in prefixes.iter().filter(is_flushed) {
                let older = in_another_form(&render(family, &after, &from(held.clone())));
                for held in self::prefixes(family, held, &older) {
                    never_misleads(&held, [&before, &after], &packets);
                }
            }

            let mut held = found;
            for _ in 0..=prefixes.len() {
                let desired = render(family, &after, &from(held.clone()));
                let change = diff_in_parts(family, &held, &desired, ONE_BY_ONE);
                let Some(first) = change.transactions().first() else { break };
                held.replay(first).expect("the kernel takes it");
                never_misleads(&held, [&before, &after], &packets);
            }
            prop_assert_eq!(held.canonical(family), desired.canonical(family));
        }
    }
}

/// Does to the table what another program does. The kernel refuses some of it.
fn damage(family: Family, held: &mut Table, damages: &[(TableDamage, Index)]) {
    for (damage, at) in damages {
        let mut transaction = Transaction::new(family, layout::name(TABLE));
        transaction.operations = operations(*damage, *at, held);
        drop(held.replay(&transaction));
    }
}

fn operations(damage: TableDamage, at: Index, held: &Table) -> Vec<Operation> {
    let chains: Vec<Arc<str>> = held.chains.keys().cloned().collect();
    let chain = || (!chains.is_empty()).then(|| Arc::clone(at.get(&chains)));
    let sets: Vec<_> = held.sets.values().collect();
    let set = || (!sets.is_empty()).then(|| *at.get(&sets));
    let elements = held.sets.values().flat_map(|set| {
        let keys = set.elements.sorted().into_iter();
        keys.map(move |(key, _)| (Arc::clone(&set.set), vec![key.clone()]))
    });
    let operations = match damage {
        TableDamage::AllRules => Some(vec![Operation::FlushTable]),
        TableDamage::Rules => chain().map(|name| vec![Operation::FlushChain(name)]),
        TableDamage::Chain => chain().map(|name| {
            let flushed = Operation::FlushChain(Arc::clone(&name));
            vec![flushed, Operation::DeleteChain(name)]
        }),
        TableDamage::Elements => set().map(|held| {
            let keys = held.elements.sorted().into_iter();
            let keys = keys.map(|(key, _)| key.clone()).collect();
            let set = Arc::clone(&held.set);
            vec![Operation::DeleteElements { set, keys }]
        }),
        TableDamage::Element => {
            let elements: Vec<_> = elements.collect();
            (!elements.is_empty()).then(|| {
                let (set, keys) = at.get(&elements).clone();
                vec![Operation::DeleteElements { set, keys }]
            })
        }
        TableDamage::Set => {
            set().map(|held| vec![Operation::DeleteSet(Arc::clone(&held.set.name))])
        }
    };
    operations.unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(60)))]

    /// Failure story T353: another program removes rules, chains, sets or elements, and an agent that
    /// has just started repairs them.
    #[test]
    fn t353_no_step_of_a_repair_refuses_or_misleads_a_packet(
        (cluster, packets) in questions(12), damages in table_damages(6),
    ) {
        let state = cluster.compile();
        for family in Family::ALL {
            let packets = of_family(family, &packets);
            let mut rules = render(family, &state, &Rendered::default());
            damage(family, &mut rules, &damages);
            let found = Rendered { dataplane: Dataplane::default(), rules };
            let desired = render(family, &state, &found);
            let verdict = |held: &Table, packet| simulate_both(held, state.node(), packet);
            let of_packets: Vec<_> = packets
                .iter()
                .map(|packet| (packet, verdict(&found.rules, packet), verdict(&desired, packet)))
                .collect();
            for held in prefixes(family, &found.rules, &desired) {
                for (packet, had, has) in &of_packets {
                    let between = verdict(&held, packet);
                    laws::no_worse_during_repair(packet, &state, [had, has], &between);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(30)))]

    /// Failure story T352: also if an agent is killed after any transaction, and the next one finds
    /// the tenants gone.
    #[test]
    fn t352_honest_services_notice_nothing_while_tenants_come_and_go(
        (cluster, tenants, packets) in questions_beside_tenants(8), killed_after in any::<Index>(),
    ) {
        for family in Family::ALL {
            laws::honest_services_notice_nothing_while_tenants_come_and_go(
                &Smallest(family), &cluster, &tenants, &packets, killed_after,
            );
        }
    }
}
