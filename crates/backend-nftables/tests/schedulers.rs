//! Checks the guarantees of schedulers against the simulated rules: which client gets which
//! endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use backend::{Backend, Rendered};
use backend_nftables::{Memory, Nftables, Table, simulate_next};
use dataplane::{
    Basis, Dataplane, Family, Origin, Packet, Protocol, Scheduler, Target, Verdict, compile,
};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service, port};

const BY_SOURCE: [Scheduler; 2] = [Scheduler::SourceHash, Scheduler::Maglev];
const CLIENTS: u16 = 4_000;

/// The Service's cluster IP.
fn address(family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => IpAddr::from([10, 96, 0, 10]),
        Family::Ipv6 => IpAddr::from([0xfd00, 0x10, 0x96, 0, 0, 0, 0, 10]),
    }
}

/// A dataplane with one Service and these endpoints, given by the last part of their addresses.
fn dataplane(family: Family, scheduler: Scheduler, endpoints: &[u8]) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("shop/cart").cluster_ip(&address(family).to_string());
    let service = service.port("http", 80).scheduler(scheduler).build();
    let slice = endpoints
        .iter()
        .fold(mk_endpoints().tcp("http"), |slice, number| {
            let address = match family {
                Family::Ipv4 => format!("10.0.2.{number}:8080"),
                Family::Ipv6 => format!("[fd00:10:0:2::{number:x}]:8080"),
            };
            slice.ready(&address, "node-2")
        });
    let rules = compile(&service, &slice.build(), &node, &config);
    assert_eq!(rules.rejections, []);
    let mut dataplane = Dataplane::new(node, config);
    dataplane.set(rules.into());
    dataplane
}

fn render(family: Family, dataplane: &Dataplane, from: &Rendered<Table>) -> Table {
    Nftables::detached(family).render(dataplane, from)
}

fn packet(family: Family, client: u16) -> Packet {
    let [high, low] = client.to_be_bytes();
    Packet {
        origin: Origin::Outside {
            interface: "eth0".into(),
        },
        source: match family {
            Family::Ipv4 => IpAddr::from([203, 0, high, low]),
            Family::Ipv6 => IpAddr::from([0x2001, 0xdb8, 0x113, 0, 0, 0, 0, client]),
        },
        destination: address(family),
        protocol: Protocol::Tcp,
        port: port(80),
    }
}

/// The endpoint of each client. It must not depend on the random number.
fn placements(family: Family, dataplane: &Dataplane, table: &Table) -> Vec<Target> {
    let mut memory = Memory::default();
    let mut place = |client| {
        let packet = packet(family, client);
        assert_eq!(dataplane.basis(&packet), Some(Basis::Source));
        let number = u32::from(client % 7);
        match simulate_next(table, dataplane.node(), &packet, &mut memory, number) {
            Verdict::Deliver(choices) => choices[0].target,
            other => panic!("{packet}: {other}"),
        }
    };
    (0..CLIENTS).map(&mut place).collect()
}

fn placed_at_once(family: Family, scheduler: Scheduler, endpoints: &[u8]) -> Vec<Target> {
    let dataplane = dataplane(family, scheduler, endpoints);
    let table = render(family, &dataplane, &Rendered::default());
    placements(family, &dataplane, &table)
}

/// The share of clients that two placements place differently, among all clients. Only clients
/// whose endpoint `counts` are counted as moved.
fn moved(before: &[Target], after: &[Target], counts: impl Fn(&Target) -> bool) -> f64 {
    let pairs = before.iter().zip(after);
    let moved = pairs.filter(|(old, new)| old != new && counts(old)).count();
    let moved = u32::try_from(moved).expect("few");
    f64::from(moved) / f64::from(CLIENTS)
}

fn numbers(range: RangeInclusive<u8>) -> Vec<u8> {
    range.collect()
}

/// Failure story T106.
#[test]
fn t106_a_client_has_one_endpoint_on_every_node_whatever_was_there_before() {
    for family in Family::ALL {
        for scheduler in BY_SOURCE {
            let now = placed_at_once(family, scheduler, &[2, 3, 4, 5, 6]);
            for history in [vec![2, 7, 6], vec![9, 8, 7, 6, 5, 4], numbers(2..=60)] {
                let past = dataplane(family, scheduler, &history);
                let rules = render(family, &past, &Rendered::default());
                let desired = dataplane(family, scheduler, &[6, 5, 4, 3, 2]);
                for known in [past, Dataplane::default()] {
                    let rendered = Rendered {
                        dataplane: known,
                        rules: rules.clone(),
                    };
                    let table = render(family, &desired, &rendered);
                    assert_eq!(placements(family, &desired, &table), now, "{scheduler}");
                }
            }
        }
    }
}

#[test]
fn clients_are_spread_evenly_by_their_addresses() {
    for family in Family::ALL {
        for scheduler in BY_SOURCE {
            for count in [2_u8, 3, 7, 16] {
                let mut shares: BTreeMap<Target, u32> = BTreeMap::new();
                for target in placed_at_once(family, scheduler, &numbers(2..=count + 1)) {
                    *shares.entry(target).or_default() += 1;
                }
                assert_eq!(shares.len(), usize::from(count));
                let fair = f64::from(CLIENTS) / f64::from(count);
                for (target, share) in shares {
                    let share = f64::from(share) / fair;
                    assert!(
                        (0.75..1.25).contains(&share),
                        "{target}: {share} of its share"
                    );
                }
            }
        }
    }
}

/// Failure story T67. At most 8 % of the clients of endpoints that stay may move.
#[test]
fn t67_maglev_moves_the_clients_of_the_endpoint_that_leaves_and_few_others() {
    for family in Family::ALL {
        for count in [2_u8, 5, 10, 15] {
            let fewer = numbers(2..=count + 1);
            let before = placed_at_once(family, Scheduler::Maglev, &fewer);
            let after = placed_at_once(family, Scheduler::Maglev, &numbers(2..=count + 2));
            let fair = 1.0 / f64::from(count + 1);
            let share = moved(&before, &after, |_| true);
            assert!(
                share <= 1.25 * fair + 0.08,
                "{share} moved as one came to {count}"
            );
            let stays = |target: &Target| before.contains(target);
            let others = moved(&after, &before, stays);
            assert!(
                others <= 0.08,
                "{others} of others moved as one left {count}"
            );
        }
    }
}

/// The contrast to Maglev: the same change with a hash modulo the number of endpoints.
#[test]
fn a_source_hash_moves_most_clients_as_the_number_of_endpoints_changes() {
    let before = placed_at_once(Family::Ipv4, Scheduler::SourceHash, &numbers(2..=11));
    let after = placed_at_once(Family::Ipv4, Scheduler::SourceHash, &numbers(2..=12));
    assert!(moved(&before, &after, |_| true) > 0.4);
}

/// Failure story T105: two Services with the same number of endpoints have separate round-robin
/// counters, and each keeps its counter through a restart.
#[test]
fn t105_each_service_counts_its_own_turns() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(node.clone(), config.clone());
    for (name, address) in [("shop/a", "10.96.0.10"), ("shop/b", "10.96.0.11")] {
        let service = mk_service(name).cluster_ip(address).port("http", 80);
        let service = service.scheduler(Scheduler::RoundRobin).build();
        let slice = mk_endpoints().tcp("http");
        let slice = slice.ready("10.0.2.5:80", "node-2");
        let slice = slice.ready("10.0.2.6:80", "node-2").build();
        dataplane.set(compile(&service, &slice, &node, &config).into());
    }
    let table = render(Family::Ipv4, &dataplane, &Rendered::default());
    let text = table.to_string();
    for chain in ["turns-1-lb-2", "turns-2-lb-2"] {
        let own = text.split(&format!("chain {chain}\n")).nth(1);
        let rules = own.and_then(|rest| rest.split("chain ").next());
        let rules = rules.unwrap_or_else(|| panic!("{chain} is missing:\n{text}"));
        assert!(rules.contains("numgen inc mod 2"), "{rules}");
    }
    let chain_id = |table: &str| {
        let mut lines = table.lines().map(str::trim);
        lines
            .find(|line| line.starts_with("10.96.0.11 . "))
            .map(str::to_owned)
    };
    dataplane.remove(&dataplane::ServiceKey::new("shop", "a"));
    let found = Rendered {
        dataplane: Dataplane::default(),
        rules: table,
    };
    let restarted = render(Family::Ipv4, &dataplane, &found).to_string();
    assert!(chain_id(&text).is_some(), "{text}");
    assert_eq!(
        chain_id(&restarted),
        chain_id(&text),
        "it has its counter still"
    );
}

/// A client must keep its endpoint where nodes run different versions: neither the hash of its
/// address nor Maglev's table may change. These values were computed independently of this code.
#[test]
fn t106_every_version_has_the_same_hashes_and_tables() {
    let expected = [
        (
            Scheduler::SourceHash,
            [4, 4, 3, 4, 3, 3, 2, 2, 4, 4, 3, 4, 3, 2, 2, 3],
        ),
        (
            Scheduler::Maglev,
            [3, 3, 4, 3, 2, 4, 3, 4, 4, 4, 2, 4, 2, 4, 3, 3],
        ),
    ];
    for (scheduler, expected) in expected {
        let placed = placed_at_once(Family::Ipv4, scheduler, &[2, 3, 4]);
        let expected = expected.map(|number: u8| IpAddr::from([10, 0, 2, number]));
        let placed: Vec<IpAddr> = placed.iter().map(|to| to.address).collect();
        assert_eq!(placed[..expected.len()], expected, "{scheduler}");
    }
}

/// Adds a Service with round robin and two endpoints, whose cluster IP ends with `number`.
fn add_with_turns(dataplane: &mut Dataplane, name: &str, number: u16) {
    let [high, low] = number.to_be_bytes();
    let service = mk_service(name)
        .cluster_ip(&format!("10.96.{high}.{low}"))
        .port("http", 80)
        .scheduler(Scheduler::RoundRobin)
        .build();
    let slice = mk_endpoints().tcp("http");
    let slice = slice.ready("10.0.2.5:80", "node-2");
    let slice = slice.ready("10.0.2.6:80", "node-2").build();
    let rules = compile(&service, &slice, dataplane.node(), dataplane.config());
    dataplane.set(rules.into());
}

/// Failure story T105: counters are few, and a removed frontend must release its counter.
#[test]
fn t105_a_frontend_that_goes_gives_its_counter_back() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut held = Rendered::default();
    for number in 0..600_u16 {
        let mut dataplane = Dataplane::new(node.clone(), config.clone());
        add_with_turns(&mut dataplane, &format!("shop/{number}"), number);
        let rules = render(Family::Ipv4, &dataplane, &held);
        held = Rendered { dataplane, rules };
    }
    let text = held.rules.to_string();
    assert!(
        !text.contains("chain turns-lb-2"),
        "it shares a counter:\n{text}"
    );
}

/// Failure story T105: a tenant with hundreds of Services takes no counter from a Service of another
/// namespace that comes later.
#[test]
fn t105_no_namespace_takes_all_counters() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(node.clone(), config.clone());
    let mut held = Rendered::default();
    let of_tenant = (0..600_u16).map(|number| (format!("tenant/{number}"), number));
    for (name, number) in of_tenant.chain([("shop/web".to_owned(), 600)]) {
        add_with_turns(&mut dataplane, &name, number);
        let rules = render(Family::Ipv4, &dataplane, &held);
        held = Rendered {
            dataplane: dataplane.clone(),
            rules,
        };
    }
    let text = held.rules.to_string();
    let words = text.split([' ', '\n', ',']);
    let own: BTreeSet<&str> = words
        .filter(|word| {
            word.starts_with("turns-") && word.ends_with("-lb-2") && *word != "turns-lb-2"
        })
        .collect();
    // The tenant has as many as it leaves, and the Service one of those left.
    assert_eq!(own.len(), 256 + 1, "of 511");
    // The status names some of those without.
    let backend = Nftables::detached(Family::Ipv4);
    let named = |held: &Rendered<Table>| {
        let named = backend.without_room(&held.rules).into_iter();
        named
            .map(|field| field.service.to_string())
            .collect::<Vec<_>>()
    };
    let of_tenant = named(&held);
    assert_eq!(of_tenant.len(), 8);
    let message = &backend.without_room(&held.rules)[0].message;
    // 344 of the tenant's 600 are without a counter.
    let expected = "this port and 343 others have no counter of scheduler roundRobin alone";
    assert!(message.starts_with(expected), "{message}");
    assert!(of_tenant.iter().all(|name| name.starts_with("tenant/")));
    // A restart takes none away.
    let found = Rendered {
        dataplane: Dataplane::default(),
        rules: held.rules.clone(),
    };
    let restarted = render(Family::Ipv4, &dataplane, &found);
    assert_eq!(restarted.to_string(), text);
    let rules = restarted;
    let restarted = Rendered {
        dataplane: dataplane.clone(),
        rules,
    };
    assert_eq!(named(&restarted), of_tenant);
    // Nor are they named when they have gone.
    for number in 0..600 {
        dataplane.remove(&dataplane::ServiceKey::new("tenant", format!("{number}")));
    }
    let rules = render(Family::Ipv4, &dataplane, &restarted);
    assert!(named(&Rendered { dataplane, rules }).is_empty());
}

/// A Service of namespace `shop` with round robin, these external IPs and these endpoints.
fn set_with_addresses(dataplane: &mut Dataplane, external_ips: &[u8], endpoints: &[u8]) {
    let mut service = mk_service("shop/web").cluster_ip("10.96.200.1");
    for number in external_ips {
        service = service.external_ip(&format!("198.51.100.{number}"));
    }
    let service = service.port("http", 80).scheduler(Scheduler::RoundRobin);
    let mut slice = mk_endpoints().tcp("http");
    for number in endpoints {
        slice = slice.ready(&format!("10.0.2.{number}:80"), "node-2");
    }
    let (node, config) = (dataplane.node(), dataplane.config());
    let rules = compile(&service.build(), &slice.build(), node, config);
    dataplane.set(rules.into());
}

/// The lines of `table` that begin with an address of that Service, without the address: its chains
/// and its slots.
fn lines_of_addresses(table: &Table) -> BTreeMap<String, Vec<String>> {
    let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let text = table.to_string();
    for line in text.lines().map(str::trim) {
        if let Some((address, rest)) = line.split_once(" . tcp . 80")
            && (address == "10.96.200.1" || address.starts_with("198.51.100."))
        {
            let rest = rest.trim_end_matches(',').to_owned();
            lines.entry(address.to_owned()).or_default().push(rest);
        }
    }
    lines
}

/// Failure story T381: a client that uses a Service's addresses in turn reached the same endpoint at
/// all of them, because each address counted for itself. The addresses have one counter, and the same
/// endpoint in each slot, whenever they came.
#[test]
fn t381_all_addresses_of_a_service_have_one_counter_and_the_same_slots() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(node, config);
    let mut held: Rendered<Table> = Rendered::default();
    let steps: [(&[u8], &[u8]); 6] = [
        (&[], &[5, 6, 7]),
        (&[], &[6, 7]),
        (&[1], &[6, 7]),
        (&[1, 2], &[5, 6, 7]),
        (&[2, 3], &[5, 6, 7, 8]),
        (&[2, 3], &[5, 8]),
    ];
    for (external_ips, endpoints) in steps {
        set_with_addresses(&mut dataplane, external_ips, endpoints);
        add_with_turns(&mut dataplane, "shop/other", 11);
        for known in [held.dataplane.clone(), Dataplane::default()] {
            let from = Rendered {
                dataplane: known,
                rules: held.rules.clone(),
            };
            let rules = render(Family::Ipv4, &dataplane, &from);
            let lines = lines_of_addresses(&rules);
            assert_eq!(lines.len(), external_ips.len() + 1, "{lines:?}");
            // `0x…` at the end names the chain: the addresses differ in whether it masquerades
            // packets of pods, in bits that are not the counter's.
            let parts = |own: &[String]| {
                let (chains, slots): (Vec<String>, Vec<String>) =
                    own.iter().cloned().partition(|line| line.starts_with(" :"));
                let chains = chains.into_iter();
                let counters: Vec<String> = chains
                    .filter_map(|line| Some(line.rsplit_once("0x")?.1[4..].to_owned()))
                    .collect();
                (counters, slots)
            };
            let all: BTreeSet<_> = lines.values().map(|own| parts(own)).collect();
            assert_eq!(all.len(), 1, "{lines:#?}");
            let [(counters, slots)] = &Vec::from_iter(all)[..] else {
                panic!("one counter")
            };
            assert_eq!((counters.len(), slots.len()), (1, endpoints.len()));
            held.rules = rules;
        }
        held.dataplane = dataplane.clone();
    }
    // Where an older version gave each address its own, those of one win.
    let text = held.rules.to_string();
    let chain = |counter: u16| text.contains(&format!("chain turns-{counter}-lb-2\n"));
    assert_eq!([1, 2, 3, 4].map(chain), [true, true, false, false]);
}
