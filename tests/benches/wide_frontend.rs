//! What a Service with many endpoints costs others in mode iptables, by the number of its endpoints:
//! `cargo bench --package tests --bench wide_frontend`.
//!
//! In a separate network namespace whose tables have 2,000 Services of five endpoints, IPv4. Times are
//! from start to end, since others wait for as long; other activity on the machine counts.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use backend::{Backend, Rendered};
use backend_iptables::{Iptables, Lock, Rules};
use dataplane::{Config, Dataplane, Mode, compile};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};
use tests::network::{Network, enter_private_namespaces};
use xtables::Variant;

/// The numbers of endpoints.
const SIZES: [u32; 6] = [1_000, 5_000, 20_000, 50_000, 100_000, 262_000];
/// The other Services.
const SERVICES: u16 = 2_000;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    println!("| variant | endpoints | come | one is replaced | another Service's is | go |");
    println!("|---|---|---|---|---|---|");
    for variant in [Variant::NfTables, Variant::Legacy] {
        for size in SIZES {
            let mut network = Network::new()?;
            let [namespace] = network.add_namespaces(["bench"])?;
            let lock = Lock {
                path: PathBuf::from("/run/xtables.lock"),
                patience: Duration::ZERO,
            };
            let [mut backend, _] = namespace.enter(|| backend_iptables::open(variant, &lock))??;
            namespace.enter(|| measure(variant, size, &mut backend))??;
        }
    }
    Ok(())
}

fn measure(variant: Variant, size: u32, backend: &mut Iptables) -> Result<()> {
    let config = Config {
        mode: Mode::Iptables,
        ..Config::clone(&mk_config().build())
    };
    let mut dataplane = Dataplane::new(mk_node(1).build(), config.into());
    for number in 0..SERVICES {
        set(&mut dataplane, number, 5, 0);
    }
    let mut observed = Rendered::default();
    commit(backend, &mut observed, &dataplane)?;
    let mut took = Vec::new();
    for (service, endpoints, shift) in
        [(9_999, size, 0), (9_999, size, 1), (7, 5, 1), (9_999, 0, 0)]
    {
        set(&mut dataplane, service, endpoints, shift);
        took.push(commit(backend, &mut observed, &dataplane)?);
    }
    let took = took.iter().map(|took| format!("{took:.0?}"));
    let took: Vec<_> = took.collect();
    println!("| {variant} | {size} | {} |", took.join(" | "));
    Ok(())
}

/// Gives a Service this many endpoints, the first of which depends on `shift`.
fn set(dataplane: &mut Dataplane, number: u16, endpoints: u32, shift: u32) {
    let [high, low] = number.to_be_bytes();
    let service = mk_service(&format!("bench/service-{number}"));
    let service = service
        .cluster_ip(&format!("10.96.{high}.{low}"))
        .port("", 80);
    let mut list = mk_endpoints().tcp("");
    for endpoint in 0..endpoints {
        let address = match endpoint {
            0 => 16_000_000 + shift,
            _ => endpoint,
        };
        let [_, a, b, c] = address.to_be_bytes();
        list = list.ready(&format!("100.{a}.{b}.{c}:8080"), "node-2");
    }
    let (service, list) = (service.build(), list.build());
    let rules = compile(&service, &list, dataplane.node(), dataplane.config());
    dataplane.set(rules.into());
}

fn commit(
    backend: &mut Iptables,
    observed: &mut Rendered<Rules>,
    desired: &Dataplane,
) -> Result<Duration> {
    let began = Instant::now();
    let rules = backend.render(desired, observed);
    let change = backend.diff(&observed.rules, &rules);
    let _ = backend.commit(change)?;
    let took = began.elapsed();
    *observed = Rendered {
        dataplane: desired.clone(),
        rules,
    };
    Ok(took)
}
