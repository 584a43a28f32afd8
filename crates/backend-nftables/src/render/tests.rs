mod affinity_timeouts;

use std::sync::Arc;
use std::time::Duration;

use backend::{Backend, Rendered};
use dataplane::{
    Dataplane, EndpointPort, Endpoints, Family, MOST_ELEMENTS, Protocol, Service, ServiceKey,
    compile,
};
use proptest::prelude::*;
use testkit::{cases, mk_config, mk_endpoints, mk_node, mk_service};

use crate::chains::ChainId;
use crate::chains::numbered::PARSED;
use crate::layout::{self, Keyed, SetName};
use crate::{Nftables, Table};

/// A dataplane with one Service that has an address of each family, and these endpoints.
fn cluster(ready: &[&str]) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("shop/cart").cluster_ip("10.96.0.10");
    let service = service.cluster_ip("fd00:10:96::a").port("http", 80);
    let endpoints = ready
        .iter()
        .fold(mk_endpoints().tcp("http"), |endpoints, address| {
            endpoints.ready(address, "node-2")
        });
    let rules = compile(&service.build(), &endpoints.build(), &node, &config);
    let mut dataplane = Dataplane::new(node, config);
    dataplane.set(rules.into());
    dataplane
}

fn render(family: Family, steps: &[&[&str]]) -> Vec<Table> {
    let backend = Nftables::detached(family);
    let mut from = Rendered::default();
    let tables = steps.iter().map(|ready| {
        let mut dataplane = cluster(ready);
        if !from.dataplane.services().is_empty() {
            let node = Arc::clone(from.dataplane.node());
            dataplane.set_node(node, Arc::clone(from.dataplane.config()));
        }
        let rules = backend.render(&dataplane, &from);
        from = Rendered { dataplane, rules };
        from.rules.clone()
    });
    tables.collect()
}

/// T116: when one of a thousand endpoints is replaced, the others cost no lookup each: their slots
/// are known without reading the elements.
#[test]
fn t116_endpoints_that_stay_are_not_looked_up() {
    let endpoints = |numbers: std::ops::Range<u16>| {
        let addresses = numbers.map(|n| format!("10.1.{}.{}:8080", n >> 8, n & 255));
        addresses.collect::<Vec<String>>()
    };
    let dataplane = |endpoints: &[String]| {
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        cluster(&endpoints)
    };
    let backend = Nftables::detached(Family::Ipv4);
    let before = dataplane(&endpoints(0..1000));
    let mut rules = backend.render(&before, &Rendered::default());
    let mut keys = before.frontends().iter().map(|(key, _)| *key);
    let key = keys.find(|key| key.family() == Family::Ipv4);
    let key = key.expect("the Service has an IPv4 address");
    let (set, bytes) = (Keyed::Address.endpoints(), layout::frontend(&key));
    for slot in 0..1000 {
        assert!(rules.remove_element(set, &layout::slot(bytes.clone(), slot)));
    }
    let mut after = dataplane(&endpoints(1..1001));
    after.set_node(Arc::clone(before.node()), Arc::clone(before.config()));
    let from = Rendered {
        dataplane: before.clone(),
        rules,
    };
    let rules = backend.render(&after, &from);
    assert_eq!(rules.sets[set.as_str()].elements.len(), 1);
}

/// A change costs only what it changes: there are about fifty chains in each of two families.
#[test]
fn chains_are_rendered_again_only_when_there_are_others() {
    let one = ["10.0.2.7:8080", "[fd00:10:0:2::7]:8080"];
    let another = ["10.0.2.8:8080", "[fd00:10:0:2::7]:8080"];
    let more = ["10.0.2.8:8080", "10.0.2.9:8080", "[fd00:10:0:2::7]:8080"];
    let is_shared = |a: &Table, b: &Table| Arc::ptr_eq(&a.chains, &b.chains);

    let ipv4 = render(Family::Ipv4, &[&one, &another, &more]);
    assert_ne!(ipv4[0], ipv4[1]);
    assert!(is_shared(&ipv4[0], &ipv4[1]), "the same chains, anew");
    assert!(!is_shared(&ipv4[1], &ipv4[2]));
    assert!(ipv4[2].chains.contains_key("lb-2"));

    let ipv6 = render(Family::Ipv6, &[&one, &another, &more]);
    assert_eq!(ipv6[0], ipv6[2]);
    assert!(is_shared(&ipv6[0], &ipv6[2]), "the same chains, anew");
}

/// One Service for each of `timeouts`.
fn sticky(timeouts: impl IntoIterator<Item = u64>) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(node.clone(), config.clone());
    for (number, seconds) in timeouts.into_iter().enumerate() {
        let service = mk_service(&format!("shop/cart-{number}"))
            .cluster_ip(&format!("10.96.1.{number}"))
            .port("http", 80)
            .client_ip_affinity(Duration::from_secs(seconds));
        let endpoints = mk_endpoints().tcp("http").ready("10.0.2.7:8080", "node-2");
        let rules = compile(&service.build(), &endpoints.build(), &node, &config);
        dataplane.set(rules.into());
    }
    dataplane
}

/// Kernels before 6.2 refuse to delete a chain that an element led to a moment ago.
#[test]
fn an_unused_chain_goes_a_change_after_its_number() {
    let backend = Nftables::detached(Family::Ipv4);
    let mut from = Rendered::default();
    let mut left = Vec::new();
    // Fifty timeouts, then eight others, then unrelated changes. The first eight Services have
    // separate affinity maps, with chains for each.
    for timeouts in [1..=50, 51..=58, 51..=57, 51..=56, 51..=55] {
        let dataplane = sticky(timeouts);
        let rules = backend.render(&dataplane, &from);
        let learning = |name: &&Arc<str>| name.starts_with("learn-");
        let numbers = &rules.sets[SetName::LearningChains.as_str()].elements;
        left.push((
            rules.chains.keys().filter(learning).count(),
            numbers.iter().count(),
        ));
        from = Rendered { dataplane, rules };
    }
    assert_eq!(left, [(50, 50), (58, 58), (58, 8), (8, 8), (8, 8)]);
}

/// Another program may remove an affinity map after flushing the chains that use it.
#[test]
fn a_chain_whose_affinity_map_is_gone_gets_it_back() {
    let backend = Nftables::detached(Family::Ipv4);
    let mut found = backend.render(&sticky([600]), &Rendered::default());
    let affinity_map = "clients-1";
    found
        .sets
        .remove(affinity_map)
        .expect("the Service has a room");
    for chain in Arc::make_mut(&mut found.chains).values_mut() {
        if chain.chain.name.ends_with("-room-1") {
            Arc::make_mut(chain).rules.clear();
        }
    }
    let from = Rendered {
        dataplane: Dataplane::default(),
        rules: found.clone(),
    };
    // The Service has been removed meanwhile; its chains stay for a while.
    let desired = backend.render(&cluster(&["10.0.2.7:8080"]), &from);
    for transaction in backend.diff(&found, &desired).transactions() {
        found.replay(transaction).expect("the kernel takes it");
    }
    assert_eq!(found, desired);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(16)))]

    /// Otherwise a user who may write EndpointSlices could fill every node with chains.
    #[test]
    fn chains_do_not_pile_up_whatever_numbers_of_endpoints_there_were(
        counts in proptest::collection::vec((1..200_u8, 1..200_u8), 40..120),
    ) {
        let backend = Nftables::detached(Family::Ipv4);
        let mut from = Rendered::default();
        let mut kernel = Table::default();
        for (one, other) in counts {
            let dataplane = counted([one, other]);
            let rules = backend.render(&dataplane, &from);
            for transaction in backend.diff(&from.rules, &rules).transactions() {
                let taken = kernel.replay(transaction);
                taken.map_err(|refused| TestCaseError::fail(refused.to_string()))?;
            }
            prop_assert_eq!(&kernel, &rules);
            let anew = backend.render(&dataplane, &Rendered::default());
            prop_assert_eq!(rules.canonical(Family::Ipv4), anew.canonical(Family::Ipv4));
            // Used chains twice, the number below which no search is made, and the chains of one
            // change.
            prop_assert!(rules.chains.len() <= 96 + 16, "{} chains", rules.chains.len());
            from = Rendered { dataplane, rules };
        }
    }
}

/// The affinity timeout in seconds and the number of endpoints of a Service, if it has affinity.
type Remembering = Option<(u64, u8)>;

/// More Services than one namespace has affinity maps for, each in any of these states.
fn remembering() -> impl Strategy<Value = Vec<Remembering>> {
    let one = prop_oneof![1 => Just(None), 4 => (1..=86_400_u64, 1..4_u8).prop_map(Some)];
    proptest::collection::vec(one, 12)
}

fn remembered(services: &[Remembering]) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(node.clone(), config.clone());
    for (number, service) in services.iter().enumerate() {
        let Some((seconds, count)) = service else {
            continue;
        };
        let namespace = if number < 10 { "shop" } else { "game" };
        let rules = mk_service(&format!("{namespace}/cart-{number}"))
            .cluster_ip(&format!("10.96.1.{number}"))
            .port("http", 80)
            .node_port(30_080 + u16::try_from(number).expect("there are twelve"))
            .client_ip_affinity(Duration::from_secs(*seconds))
            .build();
        let endpoints = (1..=*count).fold(mk_endpoints().tcp("http"), |endpoints, pod| {
            endpoints.ready(&format!("10.0.2.{pod}:8080"), "node-2")
        });
        let rules = compile(&rules, &endpoints.build(), &node, &config);
        dataplane.set(rules.into());
    }
    dataplane
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(16)))]

    /// The same for timeouts, where a Service has separate chains for its affinity map, and gives
    /// up the map while its chains are about to be removed.
    #[test]
    fn chains_do_not_pile_up_whatever_timeouts_there_were(
        history in proptest::collection::vec(
            (remembering(), proptest::bool::weighted(0.1)), 20..40,
        ),
    ) {
        let backend = Nftables::detached(Family::Ipv4);
        let mut from = Rendered::default();
        let mut kernel = Table::default();
        let (mut most, mut starts) = (0, 0);
        for (services, is_start) in history {
            if is_start {
                from = Rendered { dataplane: Dataplane::default(), rules: kernel.clone() };
            }
            let dataplane = remembered(&services);
            let rules = backend.render(&dataplane, &from);
            for transaction in backend.diff(&from.rules, &rules).transactions() {
                let taken = kernel.replay(transaction);
                taken.map_err(|refused| TestCaseError::fail(refused.to_string()))?;
            }
            prop_assert_eq!(&kernel, &rules);
            for (name, set) in &kernel.sets {
                let name = SetName::parse(name).expect("the set is Signpost's");
                for chain_id in set.elements.iter().filter_map(|(_, data)| ChainId::of(name, data)) {
                    let found = kernel.element(chain_id.map(), &chain_id.key());
                    prop_assert!(found.is_some(), "{} has no chain", chain_id);
                }
            }
            // A start does not know which chains were about to be removed, and searches again.
            starts = if is_start { starts + 1 } else { 0 };
            most = most.max(rules.canonical(Family::Ipv4).chains.len());
            let bound = 96.max(2 * most) + most * (1 + starts);
            prop_assert!(rules.chains.len() <= bound, "{} chains", rules.chains.len());
            from = Rendered { dataplane, rules };
        }
    }
}

/// Two Services with this many endpoints each.
fn counted(counts: [u8; 2]) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(node.clone(), config.clone());
    for (service, count) in counts.into_iter().enumerate() {
        let rules = mk_service(&format!("shop/cart-{service}"))
            .cluster_ip(&format!("10.96.1.{service}"))
            .port("http", 80)
            .node_port(30_080 + u16::try_from(service).expect("there are two"))
            .build();
        let endpoints = (1..=count).fold(mk_endpoints().tcp("http"), |endpoints, pod| {
            endpoints.ready(&format!("10.0.2.{pod}:8080"), "node-2")
        });
        let rules = compile(&rules, &endpoints.build(), &node, &config);
        dataplane.set(rules.into());
    }
    dataplane
}

/// Failure story T455: a tenant causes thousands of chains, and each change that needs another one
/// looks at all of them.
#[test]
fn t455_a_change_that_needs_another_chain_parses_the_names_of_no_others() {
    let backend = Nftables::detached(Family::Ipv4);
    let mut from = Rendered::default();
    for count in 1..=20 {
        let dataplane = counted([count, count]);
        let rules = backend.render(&dataplane, &from);
        from = Rendered { dataplane, rules };
    }
    let chains = from.rules.chains.len();
    let parsed = PARSED.get();
    let dataplane = counted([21, 20]);
    let rules = backend.render(&dataplane, &from);
    assert!(rules.chains.len() > chains, "it needs another one");
    drop(backend.diff(&from.rules, &rules));
    assert_eq!(PARSED.get() - parsed, 0);
}

/// The Service of most chains: for each number of endpoints, a port of which cluster IP and node port
/// remember clients, until there are as many elements as one Service may have.
fn of_most_chains() -> (Service, Endpoints) {
    let (mut ports, mut elements) = (0_u16, 0);
    while elements + 2 * (usize::from(ports) + 2) <= MOST_ELEMENTS {
        ports += 1;
        elements += 2 * (usize::from(ports) + 1);
    }
    let service = mk_service("shop/many").cluster_ip("10.96.1.1");
    let service = (1..=ports).fold(service, |service, number| {
        let service = service.port(&number.to_string(), number);
        service.node_port(30_000 + number)
    });
    let pods = (1..=ports).fold(mk_endpoints().tcp(""), |pods, pod| {
        let [high, low] = pod.to_be_bytes();
        pods.ready(&format!("10.0.{}.{low}:8080", high + 2), "node-2")
    });
    let pods = pods.build().by_port.into_values().next();
    let pods = pods.expect("it has a port");
    let by_port = (1..=ports).map(|number| {
        let port = EndpointPort {
            name: number.to_string().into(),
            protocol: Protocol::Tcp,
        };
        (port, pods[..usize::from(number)].to_vec())
    });
    let endpoints = Endpoints {
        by_port: by_port.collect(),
        ..Endpoints::default()
    };
    let affinity = Duration::from_secs(60);
    (service.client_ip_affinity(affinity).build(), endpoints)
}

/// Failure story T312: the numbers of endpoints of a Service's ports all differ, each needs chains of
/// its own, and every change to any Service has the kernel look at all chains. The elements that a
/// Service may have limit its chains.
#[test]
fn t312_the_elements_of_a_service_limit_its_chains() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let chains = |services: &[(Service, Endpoints)]| {
        let mut dataplane = Dataplane::new(node.clone(), config.clone());
        for (service, endpoints) in services {
            let rules = compile(service, endpoints, &node, &config);
            assert_eq!(rules.rejections, [], "all of it is served");
            dataplane.set(rules.into());
        }
        let backend = Nftables::detached(Family::Ipv4);
        backend
            .render(&dataplane, &Rendered::default())
            .chains
            .len()
    };
    let fixed = chains(&[]);
    let one = of_most_chains();
    let most = chains(std::slice::from_ref(&one)) - fixed;
    assert_eq!(
        most, 3_062,
        "three for each of 1,020 frontends and two for the timeout"
    );
    // Another one like it has its own affinity map, and shares the rest.
    let (mut other, endpoints) = one.clone();
    other.key = ServiceKey::new("shop", "more");
    other.cluster_ipv4 = Some([10, 96, 1, 2].into());
    for port in &mut other.ports {
        port.node_port = None;
    }
    let both = chains(&[one, (other, endpoints)]) - fixed;
    assert_eq!(both, most + 2 * 510 + 1);
}
