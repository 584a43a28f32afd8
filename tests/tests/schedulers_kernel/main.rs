//! Tests schedulers with real connections: the turns of one Service and of several, and the
//! assignment of clients to endpoints.

mod promise;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend::{Backend, Rendered};
use backend_iptables::Lock;
use backend_ipvs::Ipvs;
use backend_nftables::{Memory, Nftables, simulate_next};
use dataplane::{Family, Origin, Packet, Protocol, Target, Verdict};
use libtest_mimic::{Arguments, Trial};
use testkit::{address_plan, port};
use tests::ipvs_support::find_ipvs;
use tests::network::enter_private_namespaces;
use tests::scenario::{
    Depth, Goldens, RealKernel, Script, Update, iptables_form, ipvs_form, nftables_form, run,
};
use tests::trial::trial;
use xtables::Variant;

/// The host numbers of the outside clients.
const CLIENTS: RangeInclusive<u8> = 2..=41;
/// Those of tests that start more than one node.
const FEW_CLIENTS: RangeInclusive<u8> = 2..=13;
/// The number of connections of a client.
const TIMES: u32 = 3;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let locks = tempfile::tempdir()?;
    let mut trials: Vec<Trial> = vec![trial(
        "nftables/t105_each_service_takes_its_own_turns",
        || turns(|script| RealKernel::build(script, backend_nftables::open, nftables_form())),
    )];
    trials.push(trial(
        "nftables/t381_all_addresses_of_a_service_take_turns_together",
        || {
            let open = backend_nftables::open;
            turns_of_addresses(|script| RealKernel::build(script, open, nftables_form()))
        },
    ));
    for variant in [Variant::NfTables, Variant::Legacy] {
        let lock = Lock {
            path: locks.path().join(variant.to_string()),
            patience: Duration::from_secs(10),
        };
        let build = move |script: &Script| {
            let open = || backend_iptables::open(variant, &lock);
            RealKernel::build(script, open, iptables_form())
        };
        let build_first = build.clone();
        let name = format!("{variant}/t105_each_service_takes_its_own_turns");
        trials.push(trial(&name, move || turns(build_first)));
        let name = format!("{variant}/t381_all_addresses_of_a_service_take_turns_together");
        trials.push(trial(&name, move || turns_of_addresses(build)));
    }
    for scheduler in ["sourceHash", "maglev"] {
        let name = format!("nftables/t67_t106_clients_are_placed_as_on_every_node::{scheduler}");
        trials.push(trial(&name, move || clients(scheduler)));
    }
    let missing = find_ipvs(&["rr", "sh", "mh", "dh"])?;
    let turns_of_ipvs = trial("ipvs/t105_each_service_takes_its_own_turns", || {
        turns(build_ipvs)
    });
    let turns_of_addresses = trial(
        "ipvs/t381_all_addresses_of_a_service_take_turns_together",
        || turns_of_addresses(build_ipvs),
    );
    let mut of_ipvs: Vec<Trial> = [turns_of_ipvs, turns_of_addresses]
        .map(|trial| trial.with_ignored_flag(missing.is_some()))
        .into();
    for scheduler in ["sourceHash", "maglev", "dh"] {
        let name =
            format!("ipvs/t67_t106_clients_are_placed_alike_whatever_came_before::{scheduler}");
        let trial_of_all = trial(&name, move || clients_of_ipvs(scheduler));
        of_ipvs.push(trial_of_all.with_ignored_flag(missing.is_some()));
    }
    for scheduler in ["sourceHash", "maglev", "dh"] {
        for affinity in [SessionAffinity::None, SessionAffinity::ClientIp] {
            let name = format!(
                "t279_new_nodes_of_mode_ipvs_place_clients_alike::{scheduler}::{affinity:?}"
            );
            let trial = trial(&name, move || new_nodes(scheduler, affinity));
            of_ipvs.push(trial.with_ignored_flag(missing.is_some()));
        }
    }
    for promise in promise::OF_IPVS {
        let scheduler = promise.scheduler;
        let name = format!("ipvs/t183_every_scheduler_of_the_kernel_serves::{scheduler}");
        let trial = trial(&name, move || promise.is_kept());
        let lacks = find_ipvs(&[scheduler])?;
        if let (None, Some(why)) = (&missing, &lacks) {
            println!("SKIPPED: scheduler {scheduler} of mode ipvs: {why}");
        }
        of_ipvs.push(trial.with_ignored_flag(lacks.is_some()));
    }
    if let Some(why) = &missing {
        println!("SKIPPED: every test of mode ipvs: {why}");
    }
    trials.extend(of_ipvs);
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    drop(locks);
    conclusion.exit();
}

/// How the Services choose endpoints.
#[derive(Debug, Clone, Copy)]
struct Policy<'a> {
    scheduler: &'a str,
    affinity: SessionAffinity,
}

#[derive(Debug, Clone, Copy)]
enum SessionAffinity {
    None,
    ClientIp,
}

// === impl Policy ===

impl<'a> From<&'a str> for Policy<'a> {
    fn from(scheduler: &'a str) -> Policy<'a> {
        Policy {
            scheduler,
            affinity: SessionAffinity::None,
        }
    }
}

fn build_ipvs(script: &Script) -> Result<RealKernel<Ipvs>> {
    let open = || backend_ipvs::open(Path::new("/proc/sys"));
    RealKernel::build(script, open, ipvs_form())
}

/// Returns two Services of both families and protocols with the same number of endpoints.
fn sections(policy: Policy<'_>) -> String {
    let scheduler = policy.scheduler;
    let affinity = match policy.affinity {
        SessionAffinity::None => "None",
        SessionAffinity::ClientIp => "ClientIP",
    };
    let mut text = String::new();
    for (name, last) in [("a", 10), ("b", 11)] {
        text += &format!(
            "-- {name} --
kind: Service
metadata: {{namespace: shop, name: {name}, annotations: {{signpost.dev/scheduler: {scheduler}}}}}
spec:
  type: LoadBalancer
  externalIPs: [198.51.100.{last}, \"2001:db8:51::{last}\"]
  clusterIP: 10.96.0.{last}
  clusterIPs: [10.96.0.{last}, \"fd00:10:96::{last}\"]
  ipFamilies: [IPv4, IPv6]
  sessionAffinity: {affinity}
  ports: [{{name: tcp, port: 80, protocol: TCP}}, {{name: udp, port: 80, protocol: UDP}}]
status: {{loadBalancer: {{ingress: [{{ip: 192.0.2.{last}}}, {{ip: \"2001:db8:2::{last}\"}}]}}}}
"
        );
        for (section, numbers) in [("all", &[5, 6, 7, 8][..]), ("fewer", &[5, 6, 8])] {
            text += &format!("-- {name}-{section} --\n");
            for (kind, prefix) in [("IPv4", "10.0.2."), ("IPv6", "fd00:10:0:2::")] {
                let endpoints: Vec<String> = numbers
                    .iter()
                    .map(|number| {
                        format!("{{addresses: [\"{prefix}{number}\"], nodeName: node-2}}")
                    })
                    .collect();
                text += &format!(
                    "kind: EndpointSlice
metadata: {{namespace: shop, name: {name}-{}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: {kind}
ports: [{{name: tcp, port: 8080, protocol: TCP}}, {{name: udp, port: 5353, protocol: UDP}}]
endpoints: [{}]
---
",
                    kind.to_lowercase(),
                    endpoints.join(", "),
                );
            }
        }
    }
    text
}

/// Returns a script of `steps` that includes every client.
fn script<'a>(steps: &str, policy: impl Into<Policy<'a>>) -> Result<Script> {
    script_with(CLIENTS, steps, policy)
}

/// The same with these clients.
fn script_with<'a>(
    clients: RangeInclusive<u8>,
    steps: &str,
    policy: impl Into<Policy<'a>>,
) -> Result<Script> {
    let mut text = format!("{steps}\n");
    for client in clients {
        // Only declares the client; the test checks its connections itself.
        let [ipv4, ipv6] = Family::ALL.map(|family| address_plan::outside_client(client, family));
        text += &format!(
            "packet outside {ipv4} -> 10.96.0.99:80/tcp = untouched
packet outside {ipv6} -> [fd00:10:96::99]:80/tcp = untouched
"
        );
    }
    Ok(Script::parse(&(text + &sections(policy.into())))?)
}

fn tell<'a, B: Backend + Send>(
    kernel: &mut RealKernel<B>,
    steps: &str,
    policy: impl Into<Policy<'a>>,
) -> Result<()> {
    let script = Script::parse(&format!("{steps}\n{}", sections(policy.into())))?;
    let mut goldens = Goldens::new(Path::new("schedulers.txt"), Update::Never);
    let failures = run(&script, kernel, &mut goldens)?;
    ensure!(failures.is_empty(), "{failures:#?}");
    Ok(())
}

fn packet(family: Family, protocol: Protocol, client: u8, last: u8) -> Packet {
    Packet {
        origin: Origin::Outside {
            interface: "eth0".into(),
        },
        source: address_plan::outside_client(client, family),
        destination: match family {
            Family::Ipv4 => [10, 96, 0, last].into(),
            Family::Ipv6 => format!("fd00:10:96::{last}").parse().expect("an address"),
        },
        protocol,
        port: port(80),
    }
}

fn connect<B: Backend + Send>(
    kernel: &mut RealKernel<B>,
    packet: &Packet,
    times: u32,
) -> Result<Vec<Target>> {
    let verdicts = kernel.connect(packet, times)?.context("it remembers")?;
    let targets = verdicts.iter().map(|verdict| match verdict {
        Verdict::Deliver(choices) => Ok(choices.first().context("an endpoint")?.target),
        other => anyhow::bail!("{packet}: {other}"),
    });
    targets.collect()
}

/// Failure story T105. Connections alternate between two Services: with a shared counter, each
/// Service would use only every other endpoint.
fn turns<B: Backend + Send>(build: impl FnOnce(&Script) -> Result<RealKernel<B>>) -> Result<()> {
    let scheduler = "roundRobin";
    let mut kernel = build(&script("apply a a-all b b-all", scheduler)?)?;
    tell(&mut kernel, "apply a a-all b b-all", scheduler)?;
    for family in Family::ALL {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let mut order: BTreeMap<u8, Vec<Target>> = BTreeMap::new();
            for turn in 0..8_u8 {
                for last in [10, 11] {
                    let packet = packet(family, protocol, 2 + turn, last);
                    order
                        .entry(last)
                        .or_default()
                        .extend(connect(&mut kernel, &packet, 1)?);
                }
            }
            for (last, targets) in order {
                let (first, second) = targets.split_at(4);
                let each: BTreeSet<_> = first.iter().collect();
                ensure!(
                    each.len() == 4 && first == second,
                    "{family} {protocol} .{last}: {targets:?}"
                );
            }
        }
    }
    Ok(())
}

/// Failure story T381. Connections go in turns to the cluster IP, an external IP and a load-balancer
/// IP of one Service, and to another Service in between: all of the former reach one endpoint after
/// the other, as if they had gone to one address.
fn turns_of_addresses<B: Backend + Send>(
    build: impl FnOnce(&Script) -> Result<RealKernel<B>>,
) -> Result<()> {
    let scheduler = "roundRobin";
    let mut kernel = build(&script("apply a a-all b b-all", scheduler)?)?;
    for (steps, endpoints) in [
        ("apply a a-all b b-all", 4),
        ("apply a a-fewer b b-all", 3),
        ("apply a a-all b b-all", 4),
    ] {
        tell(&mut kernel, steps, scheduler)?;
        for family in Family::ALL {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let addresses = [
                    address_plan::cluster_ip(10, family),
                    address_plan::external_ip(10, family),
                    address_plan::load_balancer_ip(10, family),
                ];
                let mut targets = Vec::new();
                for (client, destination) in (2..).zip(addresses.repeat(endpoints)) {
                    let packet = Packet {
                        destination,
                        ..packet(family, protocol, client, 10)
                    };
                    targets.extend(connect(&mut kernel, &packet, 1)?);
                    connect(&mut kernel, &self::packet(family, protocol, client, 11), 1)?;
                }
                let mut rounds = targets.chunks(endpoints);
                let first = rounds.next().unwrap_or_default();
                let each: BTreeSet<_> = first.iter().collect();
                ensure!(
                    each.len() == endpoints && rounds.all(|round| round == first),
                    "{family} {protocol}: {targets:?}"
                );
            }
        }
    }
    Ok(())
}

/// Failure stories T67 and T106. Every client always reaches the endpoint that the rules of another
/// node would choose for the same endpoints; when one endpoint leaves, Maglev moves its clients and
/// hardly any other.
fn clients(scheduler: &'static str) -> Result<()> {
    let mut kernel = RealKernel::build(
        &script("apply a a-all b b-all", scheduler)?,
        backend_nftables::open,
        nftables_form(),
    )?;
    let mut before = BTreeMap::new();
    for steps in ["apply a a-all b b-all", "apply a a-fewer b b-all"] {
        tell(&mut kernel, steps, scheduler)?;
        let mut placed = BTreeMap::new();
        for family in Family::ALL {
            let desired = kernel.desired().clone();
            let elsewhere = Nftables::detached(family).render(&desired, &Rendered::default());
            for (protocol, client) in [Protocol::Tcp, Protocol::Udp]
                .into_iter()
                .flat_map(|protocol| CLIENTS.map(move |client| (protocol, client)))
            {
                let packet = packet(family, protocol, client, 10);
                let mut memory = Memory::default();
                let node = desired.node();
                let expected = simulate_next(&elsewhere, node, &packet, &mut memory, 0);
                for target in connect(&mut kernel, &packet, TIMES)? {
                    let met = matches!(&expected, Verdict::Deliver(choices) if choices[0].target == target);
                    ensure!(met, "{packet}: {target}, not {expected}");
                    placed.insert((family, protocol, client), target);
                }
            }
        }
        let mut shares: BTreeMap<Target, usize> = BTreeMap::new();
        for target in placed.values() {
            *shares.entry(*target).or_default() += 1;
        }
        // Of forty clients, ten reach each of four endpoints on average.
        ensure!(shares.values().all(|share| *share >= 3), "{shares:?}");
        if scheduler == "maglev" {
            let moved = before
                .iter()
                .filter(|(client, target)| {
                    let now = placed.get(*client);
                    now != Some(*target) && shares.contains_key(*target)
                })
                .count();
            ensure!(
                moved * 100 <= before.len() * 12,
                "{moved} of {}",
                before.len()
            );
        }
        before = placed;
    }
    Ok(())
}

/// The clients of shop/a by family, protocol and number, each with its endpoint.
type Placed = BTreeMap<(Family, Protocol, u8), Target>;

/// Failure stories T67 and T106 in mode ipvs, whose hash tables depend on the order in which
/// endpoints were added. A node that has seen an endpoint leave and come back places every client
/// like one that starts with all endpoints; a client stays with its endpoint, and Maglev moves
/// hardly any when an endpoint leaves. For TCP: with UDP the order remains that of the node.
fn clients_of_ipvs(scheduler: &'static str) -> Result<()> {
    // Mode nftables, whose schedulers scripts have otherwise, has no `dh`.
    let all = "configure mode-ipvs\napply a a-all b b-all";
    let mut kernel = build_ipvs(&script(all, scheduler)?)?;
    tell(&mut kernel, all, scheduler)?;
    let tcp = [Protocol::Tcp];
    let fresh = place(&mut kernel, CLIENTS, &tcp)?;
    tell(
        &mut kernel,
        "configure mode-ipvs\napply a a-fewer b b-all",
        scheduler,
    )?;
    let fewer = place(&mut kernel, CLIENTS, &tcp)?;
    tell(&mut kernel, all, scheduler)?;
    let again = place(&mut kernel, CLIENTS, &tcp)?;
    ensure!(again == fresh, "{again:?} and not {fresh:?}");
    let endpoints: BTreeSet<&Target> = fresh.values().collect();
    // `dh` hashes the address of the Service, which all clients share.
    let expected = if scheduler == "dh" { 2 } else { 8 };
    ensure!(
        endpoints.len() == expected,
        "of four in each family: {endpoints:?}"
    );
    if scheduler == "maglev" {
        let left = |target: &Target| !fewer.values().any(|other| other == target);
        let stayed = fresh.iter().filter(|(_, target)| !left(target));
        let moved = stayed.filter(|(client, target)| fewer.get(client) != Some(target));
        let moved = moved.count();
        ensure!(
            moved * 100 <= fresh.len() * 12,
            "{moved} of {}",
            fresh.len()
        );
        // One that comes takes its share, a fourth, with a margin for forty clients.
        let taken = again.values().filter(|target| left(target)).count();
        ensure!(
            taken * 100 <= again.len() * 40,
            "{taken} of {}",
            again.len()
        );
    }
    Ok(())
}

/// Failure story T279: the law of hashes was tested for TCP without affinity alone. Two nodes that have
/// not seen an endpoint leave place every client alike, whatever other Services they knew before, over TCP
/// and UDP, in both families, with and without session affinity.
fn new_nodes(scheduler: &'static str, affinity: SessionAffinity) -> Result<()> {
    let policy = Policy {
        scheduler,
        affinity,
    };
    // Mode nftables, whose schedulers scripts have otherwise, has no `dh`.
    let all = "configure mode-ipvs\napply a a-all b b-all";
    let mut nodes = Vec::new();
    for before in [None, Some("configure mode-ipvs\napply b b-all")] {
        let mut kernel = build_ipvs(&script_with(FEW_CLIENTS, all, policy)?)?;
        for steps in before.into_iter().chain([all]) {
            tell(&mut kernel, steps, policy)?;
        }
        let protocols = [Protocol::Tcp, Protocol::Udp];
        nodes.push(place(&mut kernel, FEW_CLIENTS, &protocols)?);
    }
    ensure!(nodes[0] == nodes[1], "{nodes:?}");
    let mut endpoints: BTreeMap<(Family, Protocol), BTreeSet<&Target>> = BTreeMap::new();
    for ((family, protocol, _), target) in &nodes[0] {
        endpoints
            .entry((*family, *protocol))
            .or_default()
            .insert(target);
    }
    // `dh` hashes the address of the Service, which all clients share.
    let is_spread = endpoints.values().all(|targets| targets.len() > 1);
    ensure!(is_spread || scheduler == "dh", "of four: {endpoints:?}");
    Ok(())
}

/// Lets every client connect several times. Each must reach one endpoint.
fn place(
    kernel: &mut RealKernel<Ipvs>,
    clients: RangeInclusive<u8>,
    protocols: &[Protocol],
) -> Result<Placed> {
    let mut placed = Placed::new();
    let each = protocols
        .iter()
        .flat_map(|protocol| clients.clone().map(move |client| (*protocol, client)));
    for family in Family::ALL {
        for (protocol, client) in each.clone() {
            let packet = packet(family, protocol, client, 10);
            let targets: BTreeSet<Target> = connect(kernel, &packet, TIMES)?.into_iter().collect();
            let [target] = targets.iter().collect::<Vec<_>>()[..] else {
                anyhow::bail!("{packet}: {targets:?}");
            };
            placed.insert((family, protocol, client), *target);
        }
    }
    Ok(placed)
}
