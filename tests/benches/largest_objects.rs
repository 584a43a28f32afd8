//! The maximum cost of one object: `cargo bench --package tests --bench largest_objects`.
//!
//! Each object is about as large as an API server accepts. All are measured in one run, from the
//! decoded object to the elements to write, without a kernel. The ratios matter: how much more time
//! than an ordinary Service an object takes, compared with how much more it requests. "Again" is
//! the replacement of one endpoint next to it.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use backend::{Backend, Rendered};
use backend_iptables::{Iptables, Rules};
use backend_nftables::{Nftables, Table};
use catalog::object::{EndpointSlice, Service};
use catalog::{Catalog, Event};
use dataplane::{Config, Dataplane, Family, Node, ServiceKey, compile};
use serde_json::{Value, json};
use xtables::Variant;

/// The number of measurements of an ordinary Service; the shortest counts.
const ROUNDS: u32 = 20;

/// An extreme object, named after what it has in large numbers.
struct Case {
    name: &'static str,
    spec: Value,
    slice: Value,
    replaced: Value,
    rounds: u32,
}

/// The durations for one object.
struct Figures {
    parse: Duration,
    compile: Duration,
    nftables: Duration,
    iptables: Duration,
    diff: Duration,
    again: Duration,
    elements: usize,
    rejections: usize,
}

fn main() -> Result<()> {
    println!(
        "| one Service with | parse | compile | nftables | iptables | difference of both | again | elements | rejections | time, ordinary = 1 | elements, ordinary = 1 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut ordinary = None;
    for case in cases() {
        let figures = measure(&case)?;
        let all = figures.total().as_secs_f64();
        let elements = f64::from(u32::try_from(figures.elements)?);
        let (time, size) = *ordinary.get_or_insert((all, elements));
        println!(
            "| {} | {:.1?} | {:.1?} | {:.1?} | {:.1?} | {:.1?} | {:.1?} | {} | {} | {:.0} | {:.0} |",
            case.name,
            figures.parse,
            figures.compile,
            figures.nftables,
            figures.iptables,
            figures.diff,
            figures.again,
            figures.elements,
            figures.rejections,
            all / time,
            elements / size,
        );
    }
    Ok(())
}

fn cases() -> Vec<Case> {
    let port = json!([{"name": "p0", "port": 80}]);
    let few = slice(1, 5, 0);
    let addresses = |count: u32| -> Vec<String> {
        let address = |n: u32| format!("198.{}.{}.{}", 18 + (n >> 16), (n >> 8) & 255, n & 255);
        (0..count).map(address).collect()
    };
    let ports = |count: u32, number: fn(u32) -> u32| -> Vec<Value> {
        let port = |n| json!({"name": format!("p{n}"), "port": number(n)});
        (0..count).map(port).collect()
    };
    let case = |name, spec, slice, replaced| Case {
        name,
        spec,
        slice,
        replaced,
        rounds: 1,
    };
    let ranges: Vec<String> = (0..20_000u32)
        .map(|n| format!("10.{}.{}.0/25", n >> 8, n & 255))
        .collect();
    vec![
        Case {
            rounds: ROUNDS,
            ..case(
                "1 port, 5 endpoints",
                json!({"ports": port}),
                few.clone(),
                slice(1, 5, 1),
            )
        },
        case(
            "100,000 external IPs",
            json!({"ports": port, "externalIPs": addresses(100_000)}),
            few.clone(),
            slice(1, 5, 1),
        ),
        case(
            "20,000 ports",
            json!({"ports": ports(20_000, |n| n + 1)}),
            slice(20_000, 5, 0),
            slice(20_000, 5, 1),
        ),
        case(
            "20,000 ports of one number, 100,000 external IPs",
            json!({"ports": ports(20_000, |_| 80), "externalIPs": addresses(100_000)}),
            few.clone(),
            slice(1, 5, 1),
        ),
        case(
            "20 ports, 20,000 source ranges",
            json!({
                "type": "LoadBalancer", "ports": ports(20, |n| n + 1),
                "loadBalancerSourceRanges": ranges,
            }),
            slice(20, 5, 0),
            slice(20, 5, 1),
        ),
        case(
            "1 port, a slice of 20,000 ports and 1,000 endpoints",
            json!({"ports": port}),
            slice(20_000, 1_000, 0),
            slice(20_000, 1_000, 1),
        ),
        case(
            "20,000 ports, a slice of as many and 1,000 endpoints",
            json!({"ports": ports(20_000, |n| n + 1)}),
            slice(20_000, 1_000, 0),
            slice(20_000, 1_000, 1),
        ),
    ]
}

/// Returns a slice whose first endpoint differs in each generation.
fn slice(ports: u32, endpoints: u32, generation: u32) -> Value {
    let port = |n| json!({"name": format!("p{n}"), "port": 8080});
    let endpoint = |n: u32| {
        let n = if n == 0 { 60_000 + generation } else { n };
        json!({"addresses": [format!("10.200.{}.{}", n >> 8, n & 255)]})
    };
    json!({
        "metadata": {
            "namespace": "bench", "name": "web-1",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": (0..ports).map(port).collect::<Vec<Value>>(),
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<Value>>(),
    })
}

fn measure(case: &Case) -> Result<Figures> {
    let mut best: Option<Figures> = None;
    for _ in 0..case.rounds {
        let figures = measure_once(case)?;
        if best
            .as_ref()
            .is_none_or(|best| figures.total() < best.total())
        {
            best = Some(figures);
        }
    }
    best.context("there is at least one round")
}

fn measure_once(case: &Case) -> Result<Figures> {
    let mut spec = case.spec.clone();
    spec["clusterIP"] = json!("10.96.0.10");
    let service: Service = serde_json::from_value(json!({
        "metadata": {"namespace": "bench", "name": "web"},
        "spec": spec,
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
    }))?;
    let slice: EndpointSlice = serde_json::from_value(case.slice.clone())?;
    let replaced: EndpointSlice = serde_json::from_value(case.replaced.clone())?;
    let mut catalog = Catalog::new("node-1");
    let key = ServiceKey::new("bench", "web");
    let mut dataplane = Dataplane::default();
    let started = Instant::now();
    catalog.apply(Event::Apply(service));
    catalog.apply(Event::Apply(slice));
    let parse = started.elapsed();
    let started = Instant::now();
    add(&catalog, &key, &mut dataplane)?;
    let compile = started.elapsed();
    let (nftables, iptables) = (
        Nftables::detached(Family::Ipv4),
        Iptables::detached(Family::Ipv4, Variant::NfTables),
    );
    let started = Instant::now();
    let rules = nftables.render(&dataplane, &Rendered::default());
    let nftables_took = started.elapsed();
    let started = Instant::now();
    let chains = iptables.render(&dataplane, &Rendered::default());
    let iptables_took = started.elapsed();
    let started = Instant::now();
    black_box(nftables.diff(&Table::default(), &rules));
    black_box(iptables.diff(&Rules::default(), &chains));
    let diff = started.elapsed();
    let elements = rules.elements();
    let rejections = catalog.rejections().count()
        + dataplane
            .services()
            .get(&key)
            .map_or(0, |rules| rules.rejections.len());
    let from = Rendered {
        dataplane: dataplane.clone(),
        rules,
    };
    let started = Instant::now();
    catalog.apply(Event::Apply(replaced));
    add(&catalog, &key, &mut dataplane)?;
    let rules = nftables.render(&dataplane, &from);
    black_box(nftables.diff(&from.rules, &rules));
    Ok(Figures {
        parse,
        compile,
        nftables: nftables_took,
        iptables: iptables_took,
        diff,
        again: started.elapsed(),
        elements,
        rejections,
    })
}

fn add(catalog: &Catalog, key: &ServiceKey, dataplane: &mut Dataplane) -> Result<()> {
    let view = catalog.service(key).context("it is served")?;
    let (node, config) = (Node::default(), Config::default());
    let rules = compile(&view.service, &view.endpoints, &node, &config);
    dataplane.set(Arc::new(rules));
    Ok(())
}

// === impl Figures ===

impl Figures {
    fn total(&self) -> Duration {
        self.parse + self.compile + self.nftables + self.iptables + self.diff
    }
}
