//! What people read, as whole texts in `goldens/`: `UPDATE=1` writes those that differ.

use super::*;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use answer::PieceStanding;
use backend::Backend;
use backend_nftables::{Nftables, Table};
use catalog::{Unserved, View};
use dataplane::{Config, Endpoints, ObjectKind, ObjectName, Service, compile};
use netlink::nf_tables::{Operation, Transaction};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};
use xtables::{BuiltIn, Rule, TableChange, TableName};

use crate::offline::render;

/// Services, a kernel and whoever asks.
struct World {
    dataplane: Dataplane,
    told: Told,
    rejections: Vec<Rejection>,
    believed: BTreeMap<Family, Held>,
    kernel: Kernel,
}

// === impl World ===

impl World {
    fn new(services: &[(Service, Endpoints)]) -> World {
        World::carried_by(Mechanism::Nftables, services)
    }

    fn carried_by(mechanism: Mechanism, services: &[(Service, Endpoints)]) -> World {
        let node = mk_node(1).zone("a").build();
        let config = Config {
            mechanism,
            ..Config::clone(&mk_config().build())
        };
        let mut world = World {
            dataplane: Dataplane::new(node, config.into()),
            told: Told::default(),
            rejections: Vec::new(),
            believed: BTreeMap::new(),
            kernel: Kernel::NotAsked,
        };
        for (service, endpoints) in services {
            let (node, config) = (world.dataplane.node(), world.dataplane.config());
            let rules = compile(service, endpoints, node, config);
            world.dataplane.set(rules.into());
            let view = View {
                service: Arc::new(service.clone()),
                endpoints: endpoints.clone(),
            };
            let standing = Standing::Served {
                view,
                slices: vec!["cart-x7".into()],
            };
            world.told.services.insert(service.key.clone(), standing);
        }
        world.believed = rendered(&world.dataplane);
        world.kernel = observed(&world.believed);
        world
    }

    /// Somebody does something to the IPv4 table.
    fn damage(&mut self, operation: impl FnOnce(&Table) -> Operation) {
        let mut held = self.believed[&Family::Ipv4].clone();
        let mut transaction = Transaction::new(netlink::nf_tables::Family::Ip, "signpost".into());
        transaction.operations.push(operation(&held.nftables));
        let replayed = held.nftables.replay(&transaction);
        replayed.expect("the kernel takes it");
        self.find(held);
    }

    /// Somebody does something to the IPv4 rules of iptables.
    fn damage_rules(&mut self, change: &TableChange) {
        let mut held = self.believed[&Family::Ipv4].clone();
        held.iptables.replay(change).expect("the kernel takes it");
        self.find(held);
    }

    /// That is what the kernel has for IPv4.
    fn find(&mut self, held: Held) {
        let mut both = self.believed.clone();
        both.insert(Family::Ipv4, held);
        self.kernel = observed(&both);
    }

    fn ask(&self, question: &str) -> Result<Explanation, Unknown> {
        let evidence = Evidence {
            dataplane: &self.dataplane,
            told: &self.told,
            rejections: &self.rejections,
            believed: &self.believed,
            kernel: &self.kernel,
            families: &[],
            variant: Variant::NfTables,
        };
        let question: Question = question.parse().expect("a question");
        explain(&question, &evidence)
    }

    fn answer(&self, question: &str) -> String {
        let explanation = self.ask(question).expect("it is known");
        let text = explanation.to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "too wide: {line}");
        }
        text
    }
}

fn rendered(dataplane: &Dataplane) -> BTreeMap<Family, Held> {
    Family::ALL
        .map(|family| (family, render(family, dataplane)))
        .into()
}

fn observed(held: &BTreeMap<Family, Held>) -> Kernel {
    let held = held
        .iter()
        .map(|(family, held)| (*family, Ok(held.clone())));
    Kernel::Observed(held.collect())
}

/// The operation that takes out the element that begins like this.
fn without(table: &Table, wanted: &str) -> Operation {
    let change = Nftables::detached(Family::Ipv4).diff(&Table::default(), table);
    let operations = change.transactions().iter().flat_map(|t| &t.operations);
    for operation in operations {
        if let Operation::AddElements { set, elements } = operation {
            for (key, data) in elements {
                let text = format!("{} {{ {} }}", set.name, set.element(key, data));
                if text.starts_with(wanted) {
                    return Operation::DeleteElements {
                        set: Arc::clone(set),
                        keys: vec![key.clone()],
                    };
                }
            }
        }
    }
    panic!("no element {wanted}");
}

fn compare_with_golden(name: &str, text: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/explain/goldens");
    let file = folder.join(format!("{name}.txt"));
    let golden = std::fs::read_to_string(&file).unwrap_or_default();
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if golden != text && is_set("UPDATE") && !is_set("CI") {
        std::fs::write(&file, text).expect("goldens can be written");
    } else {
        assert_eq!(text, golden, "UPDATE=1 writes {name}.txt");
    }
}

/// A load balancer with everything that there is to say of a Service.
fn cart() -> (Service, Endpoints) {
    let service = mk_service("shop/cart")
        .cluster_ip("10.96.0.10")
        .load_balancer_ip("192.0.2.1")
        .source_range("198.51.100.0/24")
        .port("http", 80)
        .node_port(30080)
        .external_local()
        .client_ip_affinity(Duration::from_secs(10_800))
        .health_check_node_port(32_000)
        .build();
    let endpoints = mk_endpoints()
        .tcp("http")
        .ready("10.0.1.5:8080", "node-1")
        .ready("10.0.2.7:8080", "node-2")
        .unready("10.0.2.8:8080", "node-2")
        .draining("10.0.1.6:8080", "node-1")
        .ready("[fd00:10:0:1::5]:8080", "node-1")
        .build();
    (service, endpoints)
}

fn till(endpoints: &[&str]) -> (Service, Endpoints) {
    let service = mk_service("shop/till")
        .cluster_ip("10.96.0.11")
        .udp("", 53)
        .build();
    let mut list = mk_endpoints().udp("");
    for endpoint in endpoints {
        list = list.ready(endpoint, "node-1");
    }
    (service, list.build())
}

#[test]
fn a_service_is_told_from_its_fields_to_its_elements() {
    let world = World::new(&[cart(), till(&["10.0.1.5:53"])]);
    compare_with_golden("whole", &world.answer("shop/cart"));
    let by_name = world.answer("shop/till");
    assert!(!by_name.contains('!'), "nothing is wrong:\n{by_name}");
}

#[test]
fn a_port_is_meant_by_its_name_its_number_and_its_node_port_and_by_nothing_else() {
    let world = World::new(&[cart(), till(&["10.0.1.5:53"])]);
    let whole = world.answer("shop/cart");
    for port in ["http", "80", "30080"] {
        assert_eq!(world.answer(&format!("shop/cart:{port}")), whole, "{port}");
    }
    for port in ["8080", "32000", "htt"] {
        let error = world.ask(&format!("shop/cart:{port}")).expect_err(port);
        assert_eq!(
            error.to_string(),
            format!(
                "Service shop/cart has no port {port:?}: it has http (80/tcp, node port 30080)"
            )
        );
    }
}

#[test]
fn without_a_kernel_it_is_told_what_would_be_there() {
    let mut world = World::new(&[till(&["10.0.1.5:53"])]);
    world.kernel = Kernel::NotAsked;
    let explanation = world.ask("shop/till").expect("it is known");
    let elements = &explanation.services[0].frontends[0].elements;
    assert!(
        elements
            .iter()
            .all(|e| e.standing == PieceStanding::Unverified)
    );
    compare_with_golden("without-kernel", &explanation.to_string());
}

#[test]
fn where_the_kernel_differs_is_marked() {
    let mut world = World::new(&[till(&["10.0.1.5:53", "10.0.1.6:53"])]);
    world.damage(|table| without(table, "endpoints { 10.96.0.11 . udp . 53 . 0x00000001"));
    compare_with_golden("missing", &world.answer("shop/till"));

    world.damage(|_| Operation::FlushChain("lb-2".into()));
    let text = world.answer("shop/till");
    assert!(
        text.contains("! differs: chain lb-2\n      in the kernel it is empty\n"),
        "{text}"
    );

    world.damage(|_| Operation::FlushChain("dispatch".into()));
    let text = world.answer("shop/till");
    assert!(text.contains("  ! differs: chain dispatch\n"), "{text}");

    world.damage(|_| Operation::DeleteTable);
    let text = world.answer("shop/till");
    assert!(
        text.contains("IPv4: ! the table is missing in the kernel\n"),
        "{text}"
    );
    assert!(
        text.contains("! missing in the kernel: services {"),
        "{text}"
    );
}

#[test]
fn what_leads_elsewhere_and_what_nobody_wants_is_marked() {
    let mut world = World::new(&[till(&["10.0.1.5:53"])]);
    let other = World::new(&[till(&["10.0.1.5:53", "10.0.1.9:53"])]);
    world.kernel = observed(&other.believed);
    let text = world.answer("shop/till");
    for line in [
        "! differs: services { 10.96.0.11 . udp . 53 : goto cluster-1 }",
        "in the kernel: services { 10.96.0.11 . udp . 53 : goto cluster-2 }",
        "! not wanted: endpoints { 10.96.0.11 . udp . 53 . 0x00000001 : 10.0.1.9 . 53 }",
    ] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
}

#[test]
fn an_address_among_the_cluster_ips_that_no_service_has_is_marked() {
    let mut world = World::new(&[cart(), till(&["10.0.1.5:53"])]);
    let text = world.answer("shop/till");
    assert!(!text.contains("! not wanted"), "{text}");

    let surplus = mk_service("shop/gone")
        .cluster_ip("10.96.0.99")
        .port("", 80);
    let surplus = (surplus.build(), mk_endpoints().build());
    let other = World::new(&[cart(), till(&["10.0.1.5:53"]), surplus]);
    world.kernel = observed(&other.believed);
    let text = world.answer("shop/till");
    let line = "! not wanted: cluster-ips { 10.96.0.99 }\n";
    assert!(text.contains(line), "no {line:?} in:\n{text}");
}

#[test]
fn a_kernel_that_cannot_be_read_is_said_to_be_unread() {
    let mut world = World::new(&[till(&["10.0.1.5:53"])]);
    let refused = Err("the kernel refused: permission denied".to_owned());
    world.kernel = Kernel::Observed(BTreeMap::from([(Family::Ipv4, refused)]));
    let text = world.answer("shop/till");
    assert!(
        text.contains("IPv4: ! the table could not be read: the kernel refused"),
        "{text}"
    );
    assert!(!text.contains("missing"), "{text}");
}

#[test]
fn an_address_leads_back_to_whom_it_belongs() {
    let world = World::new(&[cart(), till(&["10.0.1.5:53", "10.0.1.5:54"])]);
    compare_with_golden("endpoint", &world.answer("10.0.1.5"));
    let text = world.answer("10.0.2.8:8080");
    let line = "10.0.2.8:8080 on node-2, not ready: not used\n";
    assert!(text.contains(line), "{text}");

    let frontend = world.answer("10.96.0.10:80/tcp");
    assert!(frontend.starts_with("Service shop/cart\n"), "{frontend}");
    assert!(!frontend.contains("192.0.2.1:80/tcp ("), "{frontend}");
    for node_port in ["node:30080/tcp", "192.168.0.1:30080"] {
        let text = world.answer(node_port);
        assert!(text.contains("  node IPv4:30080/tcp (node port"), "{text}");
    }
}

#[test]
fn an_address_of_one_family_is_told_without_the_other() {
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.12")
        .cluster_ip("fd00:10:96::12")
        .port("", 80)
        .build();
    let endpoints = mk_endpoints()
        .tcp("")
        .ready("10.0.1.5:80", "node-1")
        .ready("[fd00:10:0:1::5]:80", "node-1")
        .build();
    let world = World::new(&[(service, endpoints)]);
    let text = world.answer("10.96.0.12");
    assert!(text.contains("hairpins { 10.0.1.5"), "{text}");
    assert!(!text.contains("fd00:"), "{text}");
    assert!(!text.contains("IPv6"), "{text}");
    let both = world.answer("shop/web");
    assert!(both.contains("hairpins { fd00:10:0:1::5"), "{both}");
    assert!(
        both.contains("[fd00:10:0:1::5]:80 on node-1 (here), ready: used"),
        "{both}"
    );
}

#[test]
fn an_address_of_the_node_says_what_it_takes() {
    let world = World::new(&[cart()]);
    for (question, words) in [
        (
            "192.168.0.1",
            "192.168.0.1 is this node's, which takes node ports there: node:PORT asks for one",
        ),
        (
            "192.168.0.1:30081",
            "takes node ports there, and no Service has node port 30081",
        ),
        (
            "172.20.0.1:30080",
            "nodePorts.addresses leaves it out; Service shop/cart has node port 30080",
        ),
        (
            "127.0.0.1:30080",
            "a node port of Service shop/cart on localhost, where no rule of the kernel applies",
        ),
        (
            "node:30081/tcp",
            "no Service has node:30081/tcp as a node port",
        ),
    ] {
        let text = world.answer(question).replace("\n    ", " ");
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
}

#[test]
fn an_address_that_nobody_has_says_what_becomes_of_it() {
    let world = World::new(&[cart()]);
    for (question, words) in [
        (
            "10.96.0.10:81/tcp",
            "is a cluster IP of Service shop/cart, which has nothing at",
        ),
        (
            "10.96.0.99:80",
            "is inside the Service range 10.96.0.0/16, and no Service has it",
        ),
        (
            "203.0.113.9:80",
            "no Service has 203.0.113.9:80, as an address or as an endpoint",
        ),
    ] {
        let text = world.answer(question);
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
}

#[test]
fn what_is_left_of_a_service_that_is_gone_is_not_wanted() {
    let mut world = World::new(&[cart()]);
    world.kernel = observed(&World::new(&[till(&["10.0.1.5:53"])]).believed);
    let text = world.answer("10.96.0.11:53/udp");
    let line = "! not wanted: services { 10.96.0.11 . udp . 53 : goto cluster-1 }";
    assert!(text.contains(line), "{text}");
}

#[test]
fn endpoints_that_are_not_chosen_say_why() {
    let (service, _) = till(&[]);
    let hinted = mk_endpoints()
        .udp("")
        .ready("10.0.1.5:53", "node-1")
        .for_zones(&["a"])
        .ready("10.0.2.7:53", "node-2")
        .for_zones(&["b"])
        .build();
    let text = World::new(&[(service.clone(), hinted)]).answer("shop/till");
    for line in [
        "10.0.1.5:53 on node-1 (here), ready, hinted for zone a: used\n",
        "10.0.2.7:53 on node-2, ready, hinted for zone b: not used, because it is not hinted for",
    ] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
    let draining = mk_endpoints()
        .udp("")
        .draining("10.0.1.5:53", "node-1")
        .build();
    let text = World::new(&[(service, draining)]).answer("shop/till");
    let line = "not ready, serving, terminating: used, because it still serves,\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn what_is_not_served_says_why() {
    let mut world = World::new(&[till(&["10.0.1.5:53"])]);
    let name = |name| ServiceKey::new("shop", name);
    let unserved = Standing::Unserved(Unserved::Headless);
    world.told.services.insert(name("headless"), unserved);
    world
        .told
        .services
        .insert(name("nobody"), Standing::Unknown);
    world
        .told
        .services
        .insert(name("broken"), Standing::Unknown);
    world.rejections.push(Rejection {
        object: ObjectName {
            kind: ObjectKind::Service,
            namespace: "shop".into(),
            name: "broken".into(),
        },
        field: "spec.clusterIP".to_owned(),
        message: "there is no address; the Service is not served".to_owned(),
    });
    let text = world.answer("shop/headless");
    assert!(
        text.starts_with("Service shop/headless is not programmed: it is headless"),
        "{text}"
    );
    let text = world.answer("shop/broken");
    assert!(
        text.contains("spec.clusterIP: there is no address"),
        "{text}"
    );
    let error = world.ask("shop/nobody").expect_err("nobody told of it");
    assert_eq!(error, Unknown::Service(name("nobody")));
    let error = world.ask("shop/till:http").expect_err("no such port");
    let text = "Service shop/till has no port \"http\": it has 53/udp";
    assert_eq!(error.to_string(), text);
}

#[test]
fn an_address_that_another_service_has_is_not_served_for_this_one() {
    let service = |name, cluster_ip| {
        let service = mk_service(name)
            .cluster_ip(cluster_ip)
            .external_ip("198.51.100.1")
            .port("", 80);
        let endpoints = mk_endpoints()
            .tcp("")
            .ready("10.0.1.5:80", "node-1")
            .build();
        (service.build(), endpoints)
    };
    let world = World::new(&[
        service("shop/a", "10.96.0.1"),
        service("shop/b", "10.96.0.2"),
    ]);
    let text = world.answer("shop/b");
    let line = "! not served for this Service: shop/a has it too, and comes first";
    assert!(text.contains(line), "{text}");
    assert!(!world.answer("shop/a").contains('!'));
}

#[test]
fn machines_are_told_the_same() {
    let mut world = World::new(&[till(&["10.0.1.5:53"])]);
    world.damage(|table| without(table, "endpoints {"));
    let explanation = world.ask("shop/till").expect("it is known");
    let json = serde_json::to_value(&explanation).expect("it can be written");
    let service = &json["services"][0];
    assert_eq!(service["type"], "ClusterIP");
    assert_eq!(service["ports"][0]["endpoints"][0]["usage"], "used");
    let elements = &service["frontends"][0]["elements"];
    assert_eq!(elements[0]["standing"], "present");
    assert_eq!(elements[1]["standing"], "missing");
}

/// A change of table nat that writes these chains.
fn nat(chains: &[(&str, &[Rule])]) -> TableChange {
    let chains = chains
        .iter()
        .map(|(name, rules)| ((*name).into(), (*rules).into()));
    TableChange {
        chains: chains.collect(),
        ..TableChange::new(TableName::Nat)
    }
}

#[test]
fn in_mode_iptables_a_service_is_told_from_its_fields_to_its_rules() {
    let services = [cart(), till(&["10.0.1.5:53"])];
    let mut world = World::carried_by(Mechanism::Iptables, &services);
    compare_with_golden("whole-iptables", &world.answer("shop/cart"));
    let other = world.answer("shop/till");
    assert!(!other.contains("! missing"), "nothing is wrong:\n{other}");

    world.kernel = Kernel::NotAsked;
    let explanation = world.ask("shop/till").expect("it is known");
    let frontend = &explanation.services[0].frontends[0];
    let mut pieces = frontend.elements.iter().chain(&frontend.chains);
    assert!(pieces.all(|piece| piece.standing == PieceStanding::Unverified));
    assert_eq!((frontend.elements.len(), frontend.chains.len()), (3, 2));
}

#[test]
fn in_mode_iptables_where_the_kernel_differs_is_marked() {
    let services = [till(&["10.0.1.5:53", "10.0.1.6:53"])];
    let mut world = World::carried_by(Mechanism::Iptables, &services);
    let believed = world.believed[&Family::Ipv4].iptables.to_string();
    let of_service = |line: &&str| line.starts_with("-A SIGNPOST-SVC-");
    let chain = believed
        .lines()
        .find(of_service)
        .and_then(|line| line.split(' ').nth(1));
    let chain = chain.expect("the Service has a chain");

    world.damage_rules(&nat(&[(chain, &[])]));
    compare_with_golden("missing-iptables", &world.answer("shop/till"));

    world.damage_rules(&nat(&[("SIGNPOST-POSTROUTING", &[])]));
    let text = world.answer("shop/till");
    for line in [
        "IPv4: ! the kernel differs from what was programmed: 1 chain to mend\n",
        "  ! differs: nat chain SIGNPOST-POSTROUTING\n    in the kernel it is empty\n",
    ] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }

    let without_entry = TableChange {
        entries: vec![(BuiltIn::Output, Vec::new())],
        ..TableChange::new(TableName::Nat)
    };
    world.damage_rules(&without_entry);
    let text = world.answer("shop/till");
    assert!(
        text.contains("  ! missing in the kernel: nat OUTPUT\n"),
        "{text}"
    );

    world.find(Held::default());
    let text = world.answer("shop/till");
    assert!(
        text.contains("IPv4: ! our rules are missing in the kernel\n"),
        "{text}"
    );
    assert!(
        text.contains("! missing in the kernel: iptables -t nat -A SIGNPOST-SERVICES"),
        "{text}"
    );
}

#[test]
fn in_mode_iptables_what_nobody_wants_is_marked() {
    let mut world = World::carried_by(Mechanism::Iptables, &[till(&["10.0.1.5:53"])]);
    let other = World::carried_by(
        Mechanism::Iptables,
        &[till(&["10.0.1.5:53", "10.0.1.9:53"])],
    );
    world.kernel = observed(&other.believed);
    let text = world.answer("shop/till").replace("\n        ", " ");
    let line = "-j DNAT --to-destination 10.0.1.9:53\n";
    let unwanted = text.lines().find(|line| line.contains("10.0.1.9:53"));
    let unwanted = unwanted.expect("it is named");
    assert!(
        unwanted.starts_with("    ! not wanted: iptables -t nat -A SIGNPOST-SVC-"),
        "{unwanted}"
    );
    assert!(text.contains(line), "{text}");

    let gone = World::carried_by(Mechanism::Iptables, &[cart()]);
    world.dataplane = gone.dataplane;
    let text = world.answer("10.96.0.11:53/udp");
    let line = "! not wanted: iptables -t nat -A SIGNPOST-SERVICES -d 10.96.0.11/32 -p udp";
    assert!(text.contains(line), "{text}");
}
