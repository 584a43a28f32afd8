//! The cost of a large change before it reaches the kernel:
//! `cargo bench --package tests --bench large_change`.
//!
//! 2,000 ordinary Services are programmed. Then 100 Services of 200 ports and one of 100 ports with
//! 1,000 endpoints at each are added, as in `bench --row large-objects`, from the decoded objects
//! to the differences of each part, without a kernel. Another change waits at least for the longest
//! of these steps.
//!
//! After that, a tenant adds more than a million frontends, in three forms, and removes them: how long it takes
//! to choose one part, which each change of another Service waits for, too.
//!
//! Before all that, one endpoint of a Service changes that has as many endpoints as a Service may have, and
//! of one that has as many ports as etcd stores: the longest that the engine works without a break.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use backend::{Backend, Change as _, Rendered};
use backend_iptables::Iptables;
use backend_nftables::Nftables;
use catalog::object::{EndpointSlice, Service};
use catalog::{Catalog, Event};
use dataplane::{
    Config, Dataplane, Family, NextPart, Node, PartContents, PartSize, ServiceKey, compile,
};
use serde_json::{Value, json};
use xtables::Variant;

/// The number of ordinary Services.
const ORDINARY: u32 = 2_000;
/// The number of Services with [`PORTS`] ports.
const WIDE: u32 = 100;
/// The number of ports of a wide Service; the deep one has half as many.
const PORTS: u32 = 200;
/// The number of endpoints of the deep Service.
const ENDPOINTS: u32 = 1_000;

/// The most ports that a Service may have with [`ENDPOINTS`] endpoints at each.
const MOST_PORTS: u32 = 260;

/// How many parts are chosen of a change of a million frontends.
const PARTS: u32 = 10;

/// The total and the longest duration of a repeated step.
#[derive(Default)]
struct Times {
    all: Duration,
    longest: Duration,
}

/// The state of the sources.
struct Known {
    catalog: Catalog,
    dataplane: Dataplane,
    node: Node,
    config: Config,
}

fn main() -> Result<()> {
    let mut known = Known {
        catalog: Catalog::new("node-1"),
        dataplane: Dataplane::default(),
        node: Node::default(),
        config: Config::default(),
    };
    for number in 0..ORDINARY {
        known.apply(
            service(&format!("web-{number}"), number, 1)?,
            slice(&format!("web-{number}"), number * 8, 1, 5)?,
        );
        known.compile(&format!("web-{number}"))?;
    }
    for size in [
        Size {
            ports: MOST_PORTS,
            slice_ports: MOST_PORTS,
            endpoints: ENDPOINTS,
        },
        Size {
            ports: 8_000,
            slice_ports: 20_000,
            endpoints: 1,
        },
    ] {
        flip(&mut known, &size)?;
    }
    let before = known.dataplane.clone();
    let (service, slice) = (
        service("deep", ORDINARY, PORTS / 2)?,
        slice("deep", 1 << 20, PORTS / 2, ENDPOINTS)?,
    );
    let began = Instant::now();
    known.apply(service, slice);
    let parse = began.elapsed();
    let began = Instant::now();
    known.compile("deep")?;
    let compile = began.elapsed();
    println!("one Service of 100,000 endpoints: parse {parse:.1?}, compile {compile:.1?}");
    let mut wide = Times::default();
    for number in 0..WIDE {
        let name = format!("wide-{number}");
        known.apply(
            self::service(&name, ORDINARY + 1 + number, PORTS)?,
            self::slice(&name, (1 << 21) + number, PORTS, 1)?,
        );
        wide.measure(|| known.compile(&name))?;
    }
    println!("{WIDE} Services of {PORTS} ports: compile {wide}");
    println!("| mode | parts | next part | render | diff | elements |");
    println!("|---|---|---|---|---|---|");
    measure(
        "nftables",
        &Nftables::detached(Family::Ipv4),
        &before,
        &known.dataplane,
    );
    let iptables = Iptables::detached(Family::Ipv4, Variant::NfTables);
    measure("iptables", &iptables, &before, &known.dataplane);
    println!(
        "| Services of a tenant | addresses of each | ports | frontends | a part that adds | a part that removes |"
    );
    println!("|---|---|---|---|---|---|");
    for form in [[130, 1_000, 10], [1_500, 1_000, 1], [15_000, 10, 10]] {
        choose(&before, form)?;
    }
    Ok(())
}

/// Chooses the first parts of the change to `before` with this many Services of a tenant, and those of the
/// way back. Each Service has as many external IPs and ports.
fn choose(before: &Dataplane, [services, addresses, ports]: [u32; 3]) -> Result<()> {
    let mut known = Known {
        catalog: Catalog::new("node-1"),
        dataplane: before.clone(),
        node: Node::default(),
        config: Config::default(),
    };
    for number in 0..services {
        let name = format!("tenant-{number}");
        let address = |n: u32| Ipv4Addr::from((100 << 24) + number * addresses + n);
        let external: Vec<Ipv4Addr> = (0..addresses).map(address).collect();
        known.apply(
            service_at(&name, ORDINARY + 1_000 + number, ports, &external)?,
            slice(&name, (4 << 20) + number, ports, 1)?,
        );
        known.compile(&name)?;
    }
    let ways = [(before, &known.dataplane), (&known.dataplane, before)];
    let times = ways.map(|(from, to)| {
        let (mut at, mut times) = (from.clone(), Times::default());
        for _ in 0..PARTS {
            let size = PartSize::new(2_500).by_endpoint();
            let next = || NextPart::next(Family::Ipv4, &at, to, size, PartContents::Large);
            if let NextPart::Part(next) | NextPart::Small(next) = times.measure(next) {
                at = next;
            }
        }
        format!("{:.1?}, longest {:.1?}", times.all / PARTS, times.longest)
    });
    let frontends = known.dataplane.frontends().len() - before.frontends().len();
    let [added, removed] = times;
    println!("| {services} | {addresses} | {ports} | {frontends} | {added} | {removed} |");
    Ok(())
}

/// The numbers of ports and endpoints of a Service and its slice.
struct Size {
    ports: u32,
    slice_ports: u32,
    endpoints: u32,
}

/// One endpoint after another is replaced in a Service of this size.
fn flip(known: &mut Known, size: &Size) -> Result<()> {
    let name = "largest";
    let at = |first| slice(name, first, size.slice_ports, size.endpoints);
    let service = service(name, ORDINARY + WIDE + 1, size.ports)?;
    known.apply(service, at(3 << 20)?);
    known.compile(name)?;
    let key = ServiceKey::new("bench", name);
    let [mut parse, mut merge, mut compiled, mut set] = [(); 4].map(|()| Times::default());
    for number in 1..=10 {
        let slice = at((3 << 20) + number)?;
        parse.measure(|| known.catalog.apply(Event::Apply(slice)));
        let view = merge.measure(|| known.catalog.service(&key));
        let view = view.context("it is served")?;
        let rules = compiled
            .measure(|| compile(&view.service, &view.endpoints, &known.node, &known.config));
        set.measure(|| known.dataplane.set(Arc::new(rules)));
    }
    let Size {
        ports,
        slice_ports,
        endpoints,
    } = size;
    println!(
        "10 endpoints of a Service of {ports} ports, a slice of {slice_ports} ports and {endpoints} \
         endpoints: parse {parse}; merge {merge}; compile {compiled}; claims {set}"
    );
    known.dataplane.remove(&key);
    Ok(())
}

/// Changes from one dataplane to another, part by part.
fn measure<B: Backend>(name: &str, backend: &B, before: &Dataplane, desired: &Dataplane) {
    let mut observed = Rendered {
        dataplane: before.clone(),
        rules: backend.render(before, &Rendered::default()),
    };
    let size = backend.part_size(desired.config());
    let [mut divisions, mut renders, mut diffs] = [(); 3].map(|()| Times::default());
    let (mut parts, mut elements, mut is_over) = (0, 0, false);
    while !is_over {
        let part = divisions.measure(|| {
            NextPart::next(
                Family::Ipv4,
                &observed.dataplane,
                desired,
                size,
                PartContents::Small,
            )
        });
        is_over = matches!(part, NextPart::Last);
        let next = match part {
            NextPart::Last => desired.clone(),
            NextPart::Part(next) | NextPart::Small(next) => next,
        };
        let rules = renders.measure(|| backend.render(&next, &observed));
        let change = diffs.measure(|| backend.diff(&observed.rules, &rules));
        elements += change.size().elements;
        parts += 1;
        black_box(change);
        observed = Rendered {
            dataplane: next,
            rules,
        };
    }
    println!("| {name} | {parts} | {divisions} | {renders} | {diffs} | {elements} |");
}

fn service(name: &str, number: u32, ports: u32) -> Result<Service> {
    service_at(name, number, ports, &[])
}

/// Returns a Service with these external IPs.
fn service_at(name: &str, number: u32, ports: u32, external_ips: &[Ipv4Addr]) -> Result<Service> {
    let port = |n: u32| json!({"name": format!("p{n}"), "port": 1000 + n, "targetPort": 2000 + n});
    Ok(serde_json::from_value(json!({
        "metadata": {"namespace": "bench", "name": name},
        "spec": {
            "clusterIP": format!("10.96.{}.{}", number >> 8, number & 255),
            "externalIPs": external_ips,
            "ports": (0..ports).map(port).collect::<Vec<Value>>(),
        },
    }))?)
}

/// Returns a slice of the Service with endpoints from number `first` on.
fn slice(service: &str, first: u32, ports: u32, endpoints: u32) -> Result<EndpointSlice> {
    let port = |n: u32| json!({"name": format!("p{n}"), "port": 2000 + n});
    let endpoint = |n: u32| {
        let address = Ipv4Addr::from((10 << 24) + first + n);
        json!({"addresses": [address], "conditions": {"ready": true}})
    };
    Ok(serde_json::from_value(json!({
        "metadata": {
            "namespace": "bench", "name": format!("{service}-1"),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "ports": (0..ports).map(port).collect::<Vec<Value>>(),
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<Value>>(),
    }))?)
}

// === impl Known ===

impl Known {
    fn apply(&mut self, service: Service, slice: EndpointSlice) {
        self.catalog.apply(Event::Apply(slice));
        self.catalog.apply(Event::Apply(service));
    }

    fn compile(&mut self, name: &str) -> Result<()> {
        let key = ServiceKey::new("bench", name);
        let view = self.catalog.service(&key).context("it is served")?;
        let rules = compile(&view.service, &view.endpoints, &self.node, &self.config);
        self.dataplane.set(Arc::new(rules));
        Ok(())
    }
}

// === impl Times ===

impl Times {
    fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        let took = began.elapsed();
        self.all += took;
        self.longest = self.longest.max(took);
        done
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Times { all, longest } = self;
        write!(f, "{all:.1?}, longest {longest:.1?}")
    }
}
