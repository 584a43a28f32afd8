//! Where there is little room for virtual servers and for the tables of their schedulers.

mod affinity_timeouts;

use std::collections::{BTreeMap, BTreeSet};

use backend::{Backend, Rendered};
use dataplane::{Mode, Scheduler, compile};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use testkit::{cases, mk_config, mk_endpoints, mk_node, mk_service};

use super::*;
use crate::kernel::Ipvs;

/// How many virtual servers may serve, and the pages that their tables may take.
const ROOM: [usize; 2] = [10, 32];
/// The numbers of the Services, all of one namespace.
const SERVICES: std::ops::RangeInclusive<u8> = 1..=4;

/// What a user asks for.
#[derive(Debug, Clone, PartialEq)]
struct Asked {
    scheduler: Scheduler,
    /// How many ports it has.
    ports: u16,
    /// The last bytes of the addresses of its endpoints.
    endpoints: Vec<u8>,
}

type Cluster = BTreeMap<u8, Asked>;

fn desired(cluster: &Cluster) -> Dataplane {
    let config = mk_config().mode(Mode::Ipvs).build();
    let node = mk_node(1).build();
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (number, asked) in cluster {
        let mut service = mk_service(&format!("shop/{number}"))
            .cluster_ip(&format!("10.96.0.{number}"))
            .scheduler(asked.scheduler);
        let mut endpoints = mk_endpoints();
        for port in 0..asked.ports {
            let name = format!("p{port}");
            service = service.port(&name, 80 + port);
            endpoints = endpoints.tcp(&name);
            for last in &asked.endpoints {
                endpoints = endpoints.ready(&format!("10.0.2.{last}:80"), "node-2");
            }
        }
        dataplane.set(compile(&service.build(), &endpoints.build(), &node, &config).into());
    }
    dataplane
}

fn with_room(dataplane: Dataplane, rules: Rules) -> Rendered<Rules> {
    let allocation = Allocation::bounded(ROOM, rules.allocation.last());
    let rules = Rules {
        allocation,
        delivery: Presence::Whole,
        ..rules
    };
    Rendered { dataplane, rules }
}

fn next(cluster: &Cluster, from: &Rendered<Rules>) -> Rendered<Rules> {
    let dataplane = desired(cluster);
    Rendered {
        rules: Ipvs::detached(Family::Ipv4).render(&dataplane, from),
        dataplane,
    }
}

/// Which Services are created, changed or deleted at once.
fn events() -> impl Strategy<Value = BTreeMap<u8, Option<Asked>>> {
    let schedulers = vec![
        Scheduler::Maglev,
        Scheduler::SourceHash,
        Scheduler::DestinationHash,
        Scheduler::LocalityLeastConnection,
        Scheduler::RoundRobin,
    ];
    let asked = (
        select(schedulers),
        1..3_u16,
        subsequence(vec![5, 6, 7], 1..=3),
    );
    let asked = asked.prop_map(|(scheduler, ports, endpoints)| Asked {
        scheduler,
        ports,
        endpoints,
    });
    proptest::collection::btree_map(SERVICES, proptest::option::weighted(0.8, asked), 1..4)
}

/// The virtual servers by number, each with its scheduler and its endpoints.
fn printed(rules: &Rules) -> BTreeMap<u32, String> {
    let print = |server: &Server| {
        let endpoints = server.open().map(|target| target.address.to_string());
        let endpoints: Vec<String> = endpoints.collect();
        format!("{} to {}", server.server.scheduler, endpoints.join(", "))
    };
    let servers = rules.servers.iter();
    servers
        .map(|(number, server)| (*number, print(server)))
        .collect()
}

/// The Services that have not what they ask for.
fn named(rules: &Rules) -> BTreeSet<String> {
    let named = Ipvs::detached(Family::Ipv4).without_room(rules);
    named
        .into_iter()
        .map(|field| field.service.to_string())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(512)))]

    /// Failure stories T379 and T380: whatever came before, a hash is never changed where it is as long as
    /// another virtual server can take its place, each gets one number, and an agent that starts changes
    /// nothing.
    #[test]
    fn t379_t380_where_room_is_short_the_past_decides_only_who_has_it(
        steps in proptest::collection::vec(events(), 1..8),
    ) {
        let mut cluster = Cluster::new();
        let mut held = with_room(Dataplane::default(), Rules::default());
        for step in steps {
            for (number, asked) in step {
                match asked {
                    Some(asked) => drop(cluster.insert(number, asked)),
                    None => drop(cluster.remove(&number)),
                }
            }
            let after = next(&cluster, &held);
            let [old, new] = [&held.rules, &after.rules].map(printed);
            let is_hash = |text: &String| ["sh ", "mh ", "dh "].iter().any(|name| text.starts_with(name));
            let has_room_beside = after.rules.allocation.has_room_beside("shop");
            for (number, server) in new.iter().filter(|(_, server)| is_hash(server)) {
                let before = old.get(number).unwrap_or(server);
                prop_assert!(before == server || !has_room_beside, "{} from {:?} to {:?}", number, old, new);
            }
            let given = new.keys().filter(|number| !old.contains_key(number)).count();
            let [before, last] = [&held, &after].map(|held| held.rules.allocation.last());
            prop_assert_eq!(usize::try_from(last - before).expect("few"), given, "{:?}", new);
            // Connections of what leaves have ended.
            held = next(&cluster, &after);
            let read = with_room(Dataplane::default(), held.rules.clone());
            let restarted = next(&cluster, &read);
            let [settled, restarted] = [&held.rules, &restarted.rules].map(|rules| (printed(rules), named(rules)));
            prop_assert_eq!(settled, restarted);
        }
    }
}

/// Failure story T455: a tenant causes thousands of chains by affinity timeouts, and each change that needs
/// another one renders all of them.
#[test]
fn t455_another_affinity_timeout_renders_no_chains_of_others() {
    let (node, config) = (mk_node(1).build(), mk_config().mode(Mode::Ipvs).build());
    let with_timeouts = |timeouts: std::ops::RangeInclusive<u8>| {
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        for seconds in timeouts {
            let timeout = std::time::Duration::from_secs(seconds.into());
            let service = mk_service(&format!("shop/{seconds}"))
                .cluster_ip(&format!("10.96.0.{seconds}"))
                .port("", 80)
                .client_ip_affinity(timeout);
            let endpoints = mk_endpoints().tcp("").ready("10.0.2.1:80", "node-2");
            let rules = compile(&service.build(), &endpoints.build(), &node, &config);
            dataplane.set(rules.into());
        }
        dataplane
    };
    let render = |timeouts, from: &Rendered<Rules>| {
        let dataplane = with_timeouts(timeouts);
        Rendered {
            rules: Ipvs::detached(Family::Ipv4).render(&dataplane, from),
            dataplane,
        }
    };
    let before = render(1..=10, &Rendered::default());
    let after = render(2..=11, &before);
    let chains = |rules: &Rendered<Rules>, seconds: u8| {
        let names = rules.rules.table.chains.iter();
        let of = [format!("return-{seconds}-"), format!("learn-{seconds}-")];
        let of = names.filter(move |(name, _)| of.iter().any(|start| name.starts_with(start)));
        of.map(|(_, chain)| Arc::clone(chain)).collect::<Vec<_>>()
    };
    for seconds in 2..=10 {
        let ends = [chains(&before, seconds), chains(&after, seconds)];
        assert_eq!(ends[0].len(), 2);
        let mut both = ends[0].iter().zip(&ends[1]);
        assert!(both.all(|(old, new)| Arc::ptr_eq(old, new)), "{seconds}");
    }
    assert_eq!([chains(&after, 1).len(), chains(&after, 11).len()], [0, 2]);
    // It is what an agent that starts renders.
    let anew = render(2..=11, &Rendered::default());
    assert_eq!(*after.rules.table.chains, *anew.rules.table.chains);
}
