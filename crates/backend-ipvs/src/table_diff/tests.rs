use backend::Rendered;
use dataplane::{
    Dataplane, FrontendKey, Node, Origin, Packet, PersistentMap, Protocol, Verdict, compile,
};
use netlink::ipvs::{self, VirtualServerKey};
use netlink::route::Presence;
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::laws::Stepwise;
use testkit::{
    EndpointsBuilder, ServiceBuilder, TableDamage, cases, changes, histories, laws, mk_config,
    mk_endpoints, mk_node, mk_service, port, questions, questions_beside_tenants,
    services_at_shared_addresses, table_damages,
};

use super::*;
use crate::chains::REFUSE_UNTAKEN;
use crate::diff::{Step, diff as diff_rules};
use crate::layout::MARKS;
use crate::missing_schedulers::MissingSchedulers;
use crate::render::render;
use crate::rules::Rules;
use crate::simulate::simulate;

/// The states on the way from `held` to `desired`, in the smallest steps: a transaction is divided as
/// for a kernel that has no memory for more.
pub(super) fn prefixes(family: Family, mut held: Rules, desired: &Rules) -> Vec<Rules> {
    let mut prefixes = Vec::new();
    let mut rest = vec![diff_rules(family, &held, desired)];
    while let Some(change) = rest.pop() {
        if let Some([first, second]) = change.halves() {
            rest.extend([second, first]);
            continue;
        }
        for step in change.steps() {
            held.replay(step).expect("the kernel takes it");
            prefixes.push(held.clone());
        }
    }
    assert_eq!(&held, desired, "the change does not arrive");
    prefixes
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
    let packet = Packet {
        origin: Origin::Outside {
            interface: "eth0".into(),
        },
        source: "192.0.2.7".parse().expect("an address"),
        destination: address.parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(80),
    };
    for endpoints in [mk_endpoints().tcp(""), endpoint()] {
        let web = mk_service("shop/web").cluster_ip("10.96.0.10");
        let web = state(web.external_ip(address).port("", 80), endpoints);
        for ends in [[&other, &web], [&web, &other]] {
            let of = |dataplane: &Dataplane, from: &Rendered<Rules>| {
                render(Family::Ipv4, dataplane, from, &MissingSchedulers::default())
            };
            let rules = of(ends[0], &Rendered::default());
            let from = Rendered {
                dataplane: ends[0].clone(),
                rules,
            };
            let to = of(ends[1], &from);
            let verdict = |held: &Rules| simulate(held, &node, &packet);
            let [had, has] = [&from.rules, &to].map(verdict);
            for held in prefixes(Family::Ipv4, from.rules.clone(), &to) {
                laws::no_worse_than_both_ends(&packet, ends, [&had, &has], &verdict(&held));
            }
        }
    }
}

/// Failure story T326: all addresses of the node accept node ports, then listed ones only, and another
/// one gets a load balancer's frontend with the port of one instead.
#[test]
fn t326_an_address_that_is_not_listed_is_served_by_its_own_frontend_at_once() {
    let node = mk_node(1).build();
    let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
    let endpoints = endpoints.build();
    let web = mk_service("shop/web").cluster_ip("10.96.0.10");
    let balanced = web.clone().load_balancer_ip("172.20.0.1");
    let [before, after] = [
        (mk_config().node_ports_anywhere(), web),
        (mk_config().node_ports_at(&["192.168.0.1"]), balanced),
    ]
    .map(|(config, web)| {
        let (config, web) = (config.build(), web.port("", 30_080).node_port(30_080));
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        dataplane.set(compile(&web.build(), &endpoints, &node, &config).into());
        dataplane
    });
    let packet = Packet {
        origin: Origin::Outside {
            interface: "eth0".into(),
        },
        source: "192.0.2.7".parse().expect("an address"),
        destination: "172.20.0.1".parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(30_080),
    };
    for ends in [[&before, &after], [&after, &before]] {
        let [observed, desired] = ends.map(|end| {
            render(
                Family::Ipv4,
                end,
                &Rendered::default(),
                &MissingSchedulers::default(),
            )
        });
        for held in prefixes(Family::Ipv4, observed, &desired) {
            laws::never_misleads(ends, &packet, &simulate(&held, &node, &packet));
        }
    }
}

/// Checks the steps of the repair of one Service, after other programs did `damage`, by the verdict on a
/// packet from `source` to this address of it.
fn check_repair(source: &str, destination: &str, damage: impl Fn(&mut Rules)) {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    let web = mk_service("shop/web").cluster_ip("10.96.0.10").port("", 80);
    let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
    let rules = compile(&web.build(), &endpoints.build(), &node, &config);
    dataplane.set(rules.into());
    let packet = Packet {
        origin: Origin::Outside {
            interface: "eth0".into(),
        },
        source: source.parse().expect("an address"),
        destination: destination.parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(80),
    };
    let render = |from: &Rendered<Rules>| {
        render(
            Family::Ipv4,
            &dataplane,
            from,
            &MissingSchedulers::default(),
        )
    };
    let mut rules = render(&Rendered::default());
    damage(&mut rules);
    let found = Rendered {
        dataplane: Dataplane::default(),
        rules,
    };
    let desired = render(&found);
    let verdict = |held: &Rules| simulate(held, &node, &packet);
    let ends = [&found.rules, &desired].map(verdict);
    let steps = prefixes(Family::Ipv4, found.rules.clone(), &desired);
    assert!(steps.len() > 1, "the repair is one step");
    for held in steps {
        let between = verdict(&held);
        let waits = between == Verdict::Drop && ends[0] == Verdict::Reject;
        assert!(
            waits || ends.contains(&between),
            "{packet} is {between:?}, and not {ends:?}"
        );
    }
}

/// Removes the rules of a chain.
pub(super) fn empty(held: &mut Rules, chain: &str) {
    let mut transaction = Transaction::new(Family::Ipv4, name(TABLE));
    let operations = &mut transaction.operations;
    operations.push(Operation::FlushChain(name(chain)));
    let damage = held.replay(&Step::Table(transaction));
    damage.expect("any program can do that");
}

/// Failure story T362: another program removes the routing rule, a virtual server, and the chain that
/// refuses what IPVS does not take.
#[test]
fn t362_no_process_of_the_node_answers_while_routing_rule_and_virtual_servers_come_back() {
    check_repair("192.0.2.7", "10.96.0.10", |held| {
        empty(held, "after-ipvs");
        held.delivery = Presence::Absent;
        held.servers = PersistentMap::new();
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(100)))]

    #[test]
    fn a_start_refuses_no_packet_that_it_is_going_to_serve((cluster, packets) in questions(23)) {
        let (nothing, desired) = (Dataplane::default(), cluster.compile());
        for family in Family::ALL {
            let rules = render(family, &desired, &Rendered::default(), &MissingSchedulers::default());
            for held in prefixes(family, Rules::default(), &rules) {
                for packet in packets.iter().filter(|p| Family::of(p.destination) == family) {
                    let simulated = simulate(&held, desired.node(), packet);
                    laws::never_misleads([&nothing, &desired], packet, &simulated);
                }
            }
        }
    }

    /// Failure story T127. Holds for any change, including one of the configuration, and for rules
    /// that were rendered or read from the kernel.
    #[test]
    fn t127_no_step_of_a_change_refuses_or_misleads_a_packet_that_both_ends_serve(
        (cluster, packets) in questions(23), history in histories(3), read_back: bool,
    ) {
        let mut states = history;
        states.push(cluster.compile());
        states.retain(|state| state.node() == &cluster.node);
        for ends in states.windows(2) {
            let [before, after] = ends else { continue };
            for family in Family::ALL {
                let rules = render(family, before, &Rendered::default(), &MissingSchedulers::default());
                let dataplane = if read_back { Dataplane::default() } else { before.clone() };
                let from = Rendered { dataplane, rules };
                let desired = render(family, after, &from, &MissingSchedulers::default());
                for held in prefixes(family, from.rules, &desired) {
                    for packet in packets.iter().filter(|p| Family::of(p.destination) == family) {
                        let simulated = simulate(&held, after.node(), packet);
                        laws::never_misleads([before, after], packet, &simulated);
                    }
                }
            }
        }
    }
}

/// The same rules with a table that cannot be changed in place, as an older version might have written
/// it.
fn in_another_form(rules: &Rules) -> Rules {
    let mut rules = rules.clone();
    let chains = Arc::make_mut(&mut rules.table.chains);
    for name in ["filter-prerouting", "nat-prerouting"] {
        let chain = chains.get_mut(name).map(Arc::make_mut);
        let hook = chain.and_then(|chain| chain.chain.hook.as_mut());
        hook.expect("it is at a hook").priority += 1;
    }
    rules
}

/// Changes in the smallest steps.
struct Smallest(Family);

impl Stepwise for Smallest {
    type Rules = Rules;

    fn family(&self) -> Family {
        self.0
    }

    fn render(&self, dataplane: &Dataplane, from: &Rendered<Rules>) -> Rules {
        render(self.0, dataplane, from, &MissingSchedulers::default())
    }

    fn steps(&self, held: &Rules, desired: &Rules) -> Vec<Rules> {
        prefixes(self.0, held.clone(), desired)
    }

    fn simulate(&self, held: &Rules, node: &Node, packet: &Packet) -> Verdict {
        simulate(held, node, packet)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(40)))]

    /// Failure story T311: an agent finds the table of a version that wrote another form, and other
    /// Services in it.
    #[test]
    fn t311_a_table_of_another_form_is_replaced_and_no_packet_refused_or_misled(
        (cluster, packets) in questions(23), history in histories(2),
    ) {
        let after = cluster.compile();
        let mut states = history;
        states.retain(|state| state.node() == &cluster.node);
        states.push(after.clone());
        for before in &states {
            for family in Family::ALL {
                let rules = render(family, before, &Rendered::default(), &MissingSchedulers::default());
                let found = Rendered { dataplane: Dataplane::default(), rules: in_another_form(&rules) };
                let desired = render(family, &after, &found, &MissingSchedulers::default());
                prop_assert!(!can_update_in_place(&found.rules.table, &desired.table));
                for held in prefixes(family, found.rules, &desired) {
                    for packet in packets.iter().filter(|p| Family::of(p.destination) == family) {
                        let simulated = simulate(&held, after.node(), packet);
                        laws::never_misleads([before, &after], packet, &simulated);
                    }
                }
            }
        }
    }

    /// Failure story T286: an agent changes some Services, is killed after any step, and the next one
    /// goes on from what it finds.
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

/// What another program removes of the virtual servers and of the way to them.
#[derive(Debug, Clone, Copy)]
enum ServerDamage {
    Server,
    Destination,
    Delivery,
}

fn server_damages() -> impl Strategy<Value = Vec<(ServerDamage, Index)>> {
    let damage = prop_oneof![
        3 => Just(ServerDamage::Server),
        3 => Just(ServerDamage::Destination),
        1 => Just(ServerDamage::Delivery),
    ];
    proptest::collection::vec((damage, any::<Index>()), 0..=3)
}

/// Does to the rules what another program does. The kernel refuses some of it.
fn damage(
    family: Family,
    held: &mut Rules,
    of_table: &[(TableDamage, Index)],
    of_servers: &[(ServerDamage, Index)],
) {
    for (damage, at) in of_table {
        let mut transaction = Transaction::new(family, name(TABLE));
        transaction.operations = operations(*damage, *at, &held.table);
        drop(held.replay(&Step::Table(transaction)));
    }
    for (damage, at) in of_servers {
        let numbers = held.servers.sorted().into_iter();
        let keys = numbers.filter_map(|(number, _)| {
            let mark = MARKS.mark(*number)?;
            Some(VirtualServerKey { family, mark })
        });
        let keys: Vec<_> = keys.collect();
        let servers = held.servers.sorted().into_iter().zip(&keys);
        let destinations = servers.flat_map(|((_, server), key)| {
            let addresses = server.destinations.keys();
            addresses.map(move |address| (*key, *address))
        });
        let destinations: Vec<_> = destinations.collect();
        let step = match damage {
            ServerDamage::Delivery => Step::Delivery(Presence::Absent),
            ServerDamage::Server if !keys.is_empty() => {
                let key = *at.get(&keys);
                Step::Servers(vec![ipvs::Operation::RemoveVirtualServer { key }])
            }
            ServerDamage::Destination if !destinations.is_empty() => {
                let (key, address) = *at.get(&destinations);
                Step::Servers(vec![ipvs::Operation::RemoveDestination { key, address }])
            }
            ServerDamage::Server | ServerDamage::Destination => continue,
        };
        held.replay(&step).expect("any program can do that");
    }
}

fn operations(damage: TableDamage, at: Index, held: &Contents) -> Vec<Operation> {
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

/// Whether rules lead `packet`, at an address of the node, to a virtual server that does not exist. IPVS
/// does not take it, and after IPVS it cannot be told from one for an endpoint on this node.
fn is_led_nowhere(held: &Rules, dataplane: &Dataplane, packet: &Packet) -> bool {
    let (address, protocol, port) = (packet.destination, packet.protocol, packet.port);
    let family = Family::of(address);
    let at_address = FrontendKey::Address {
        address,
        protocol,
        port,
    };
    let node_port = FrontendKey::NodePort {
        family,
        protocol,
        port,
    };
    let keys = [at_address, node_port];
    let mut numbers = keys.iter().flat_map(|key| held.numbers(key));
    dataplane.node().local_addresses.contains(&address)
        && numbers.any(|number| held.servers.get(&number).is_none())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(60)))]

    /// Failure story T353: another program removes rules, chains, sets, elements, virtual servers,
    /// destinations or the routing rule, and an agent repairs them that has just started, or that remembers
    /// the owners of marks.
    #[test]
    fn t353_no_step_of_a_repair_refuses_or_misleads_a_packet(
        (cluster, packets) in questions(12),
        of_table in table_damages(4),
        of_servers in server_damages(),
        remembers: bool,
    ) {
        let state = cluster.compile();
        for family in Family::ALL {
            let packets = packets.iter().filter(|p| Family::of(p.destination) == family);
            let mut rules = render(family, &state, &Rendered::default(), &MissingSchedulers::default());
            let owners = rules.owners();
            damage(family, &mut rules, &of_table, &of_servers);
            if remembers {
                rules.remembered = owners;
            }
            let found = Rendered { dataplane: Dataplane::default(), rules };
            let desired = render(family, &state, &found, &MissingSchedulers::default());
            let verdict = |held: &Rules, packet| simulate(held, state.node(), packet);
            // The routing rule waits for the rules that refuse what IPVS does not take.
            let refusals = |held: &Rules| held.table.chains.get(REFUSE_UNTAKEN).cloned();
            let are_lost = refusals(&found.rules) != refusals(&desired);
            let waits = |held: &Rules| are_lost && held.delivery != Presence::Whole;
            // Virtual servers and the routing rule come back before the source ranges.
            let comes_early =
                found.rules.servers != desired.servers || found.rules.delivery != desired.delivery;
            let of_packets: Vec<_> = packets
                .map(|packet| (packet, verdict(&found.rules, packet), verdict(&desired, packet)))
                .collect();
            for held in prefixes(family, found.rules.clone(), &desired) {
                for (packet, had, has) in &of_packets {
                    let between = verdict(&held, packet);
                    let refused = matches!(had, Verdict::Reject | Verdict::Drop);
                    if refused && (
                        between == Verdict::Untouched
                            && (is_led_nowhere(&held, &state, packet) || waits(&held))
                            || comes_early && laws::is_served_in_spite_of_its_source(packet, &state, &between)
                    ) {
                        continue;
                    }
                    laws::no_worse_during_repair(packet, &state, [had, has], &between);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(30)))]

    /// Failure story T352: also if an agent is killed after any step, and the next one finds the
    /// tenants gone.
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
