//! The texts for users, compared with the files in `goldens/`. `UPDATE=1` writes those that differ.

mod addresses;
mod any_mode;
mod iptables;
mod kernel;
mod services;

use super::*;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use backend::{AnyRules, Backend};
use backend_nftables::{Nftables, Table};
use catalog::View;
use dataplane::{Config, Endpoints, Service, compile};
use netlink::nf_tables::{Operation, Transaction};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::render;

/// Services, and the rules in the kernel.
struct World {
    dataplane: Dataplane,
    reported: QueryResult,
    rejections: Vec<Rejection>,
    observed: BTreeMap<Family, RulesByMode>,
    kernel: Kernel,
    modes: DetachedModes,
}

// === impl World ===

impl World {
    fn new(services: &[(Service, Endpoints)]) -> World {
        World::in_mode(Mode::Nftables, services)
    }

    fn in_mode(mode: Mode, services: &[(Service, Endpoints)]) -> World {
        let node = mk_node(1).zone("a").build();
        let config = Config {
            mode,
            ..Config::clone(&mk_config().build())
        };
        let mut world = World {
            dataplane: Dataplane::new(node, config.into()),
            reported: QueryResult::default(),
            rejections: Vec::new(),
            observed: BTreeMap::new(),
            kernel: Kernel::NotAsked,
            modes: DetachedModes::default(),
        };
        for (service, endpoints) in services {
            let (node, config) = (world.dataplane.node(), world.dataplane.config());
            let rules = compile(service, endpoints, node, config);
            world.dataplane.set(rules.into());
            let view = View {
                service: Arc::new(service.clone()),
                endpoints: endpoints.clone(),
            };
            let state = ServiceState::Served {
                view,
                slices: vec!["cart-x7".into()],
            };
            world.reported.services.insert(service.key.clone(), state);
        }
        world.observed = rendered(&world.dataplane);
        world.kernel = observed(&world.observed);
        world
    }

    /// Applies an external change to the IPv4 table.
    fn repaired_drift(&mut self, operation: impl FnOnce(&Table) -> Operation) {
        let mut held = self.observed[&Family::Ipv4].clone();
        let mut table: Table = held.of(Mode::Nftables).typed();
        let mut transaction = Transaction::new(netlink::nf_tables::Family::Ipv4, "signpost".into());
        transaction.operations.push(operation(&table));
        let replayed = table.replay(&transaction);
        replayed.expect("the kernel takes it");
        held.set(Mode::Nftables, AnyRules::of(table));
        self.find(held);
    }

    /// Sets the rules that the kernel has for IPv4.
    fn find(&mut self, held: RulesByMode) {
        let mut both = self.observed.clone();
        both.insert(Family::Ipv4, held);
        self.kernel = observed(&both);
    }

    fn ask(&self, question: &str) -> Result<Explanation, Unknown> {
        let evidence = Evidence {
            dataplane: &self.dataplane,
            reported: &self.reported,
            rejections: &self.rejections,
            observed: &self.observed,
            kernel: &self.kernel,
            families: &[],
            variant: Variant::NfTables,
            modes: &self.modes,
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

fn rendered(dataplane: &Dataplane) -> BTreeMap<Family, RulesByMode> {
    Family::ALL
        .map(|family| (family, render(family, dataplane)))
        .into()
}

fn observed(held: &BTreeMap<Family, RulesByMode>) -> Kernel {
    let held = held
        .iter()
        .map(|(family, held)| (*family, Ok(held.clone())));
    Kernel::Observed(held.collect())
}

/// Returns the operation that deletes the element whose text begins with `desired`.
fn without(table: &Table, desired: &str) -> Operation {
    let change = Nftables::detached(Family::Ipv4).diff(&Table::default(), table);
    let operations = change.transactions().iter().flat_map(|t| &t.operations);
    for operation in operations {
        if let Operation::AddElements { set, elements } = operation {
            for (key, data) in elements {
                let text = format!("{} {{ {} }}", set.name, set.element(key, data));
                if text.starts_with(desired) {
                    return Operation::DeleteElements {
                        set: Arc::clone(set),
                        keys: vec![key.clone()],
                    };
                }
            }
        }
    }
    panic!("no element {desired}");
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

/// A load balancer that uses every feature an explanation shows.
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
