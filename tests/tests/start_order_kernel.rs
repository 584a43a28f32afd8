//! On a node that joins a large cluster, the API server and DNS are reachable before everything
//! else is programmed. Failure story T55, kubernetes#133773: nothing on a new node could reach the
//! API server until all of its thousands of Services were.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dataplane::{Dataplane, Family, ServiceRules};
use libtest_mimic::Arguments;
use reconciler::{FamilyReconciler, Reason, SystemClock};
use testkit::address_plan as addresses;
use tests::network::{
    Namespace, Plan, PlannedNode, Server, Topology, enter_private_namespaces, start_server,
};
use tests::trial::trial;

/// The number of Services besides these two.
const OTHERS: u16 = 10_000;
/// The addresses of the API server and of DNS, and the port on which their server listens.
const API_SERVER: (&str, u16) = ("10.96.250.1", 443);
const DNS: (&str, u16) = ("10.96.250.10", 53);
const LISTENS_AT: u16 = 6443;
/// The last of the other Services, by name and by address.
const LAST: (&str, u16) = ("10.96.249.255", 80);
/// The timeout of an attempt; an answer within the machine takes less.
const ATTEMPT: Duration = Duration::from_millis(20);
/// The timeout of the whole wait.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let trial = trial(
        "t55_the_api_server_and_dns_answer_before_ten_thousand_others_do",
        first_connections,
    );
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit();
}

fn first_connections() -> Result<()> {
    let node = PlannedNode {
        number: 1,
        pods: [5].into(),
    };
    let topology = Topology::build(&Plan {
        nodes: vec![node],
        ..Plan::default()
    })?;
    let _server = serve(&topology)?;
    let dataplane = cluster();
    let node = topology.node(1)?;
    let [ipv4, _] = node.enter(backend_nftables::open)??;
    let mut family = FamilyReconciler::new(ipv4);
    let start = Instant::now();
    let [api_server, dns, last, programmed] = thread::scope(|scope| -> Result<_> {
        let clients = [API_SERVER, DNS, LAST].map(|service| {
            let client = move || connect(node, service, start);
            scope.spawn(client)
        });
        let mut sync = family.sync(&dataplane, Reason::Startup, &SystemClock);
        let (mut parts, mut longest) = (1, sync.took);
        while family.is_unfinished() {
            sync = family.sync(&dataplane, Reason::Continued, &SystemClock);
            (parts, longest) = (parts + 1, longest.max(sync.took));
        }
        let programmed = start.elapsed();
        ensure!(sync.succeeded(), "{sync}");
        println!("{parts} parts, the longest took {longest:.1?}; the last is {sync}");
        let [api_server, dns, last] = clients.map(|client| {
            let result = client
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked"));
            result.and_then(|result| result)
        });
        Ok([api_server?, dns?, last?, programmed])
    })?;
    println!(
        "{OTHERS} Services: the API server answers after {api_server:.1?}, DNS after {dns:.1?}, \
         the last Service after {last:.1?}; all are programmed after {programmed:.1?}"
    );
    ensure!(
        api_server < last && dns < last,
        "the last Service answered before them"
    );
    Ok(())
}

/// Starts one server for all Services.
fn serve(topology: &Topology) -> Result<Server> {
    let address = addresses::pod_address(1, 5, Family::Ipv4);
    let endpoint = SocketAddr::new(address, LISTENS_AT);
    start_server(topology.pod(1, 5)?, "server", &[endpoint])
}

/// Returns how long after `start` the first connection from the node to a Service is answered.
fn connect(node: &Namespace, (address, port): (&str, u16), start: Instant) -> Result<Duration> {
    let address: IpAddr = address.parse()?;
    let answered = node.enter(|| {
        while start.elapsed() < PATIENCE {
            // Each attempt is a new connection: later rules do not redirect an existing one.
            if TcpStream::connect_timeout(&(address, port).into(), ATTEMPT).is_ok() {
                return Some(start.elapsed());
            }
        }
        None
    })?;
    answered.with_context(|| format!("{address}:{port} never answered"))
}

fn cluster() -> Dataplane {
    let mut dataplane = Dataplane::new(testkit::mk_node(1).build(), testkit::mk_config().build());
    let server = addresses::pod_address(1, 5, Family::Ipv4);
    let here = (format!("{server}:{LISTENS_AT}"), addresses::NODE);
    dataplane.set(compile(&dataplane, "default/kubernetes", API_SERVER, &here));
    dataplane.set(compile(&dataplane, "kube-system/kube-dns", DNS, &here));
    dataplane.set(compile(&dataplane, "others/the-last", LAST, &here));
    for number in 1..OTHERS {
        let [high, low] = number.to_be_bytes();
        let (name, address) = (format!("others/{number}"), format!("10.96.{high}.{low}"));
        let elsewhere = (format!("10.1.{high}.{low}:80"), "node-2");
        dataplane.set(compile(&dataplane, &name, (&address, 80), &elsewhere));
    }
    dataplane
}

fn compile(
    dataplane: &Dataplane,
    name: &str,
    (address, port): (&str, u16),
    (endpoint, node): &(String, &str),
) -> Arc<ServiceRules> {
    let service = testkit::mk_service(name).cluster_ip(address).port("", port);
    let service = match name.starts_with("others/") {
        true => service,
        false => service.first(),
    };
    let endpoints = testkit::mk_endpoints()
        .tcp("")
        .ready(endpoint, node)
        .build();
    let (node, config) = (dataplane.node(), dataplane.config());
    dataplane::compile(&service.build(), &endpoints, node, config).into()
}
