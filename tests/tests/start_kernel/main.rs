//! Starts in a real kernel whose state another process or an earlier agent has left unfavourable.

mod another_form;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use backend::{Backend, Change as _, Rendered};
use backend_nftables::Nftables;
use dataplane::Dataplane;
use libtest_mimic::{Arguments, Trial};
use netlink::OpenError;
use tests::deadline::wait_for;
use tests::ipvs_support::find_ipvs;
use tests::network::{BusyWriter, Namespace, Network, enter_private_namespaces};
use tests::programmed::program;
use tests::trial::trial;

/// So many that a dump takes several datagrams.
const SERVICES: u16 = 2_000;

/// Far longer than a read takes.
const PROMPTLY: Duration = Duration::from_secs(30);

/// More chains than an agent leaves when it does not know that they are used, including those of
/// one change.
const MANY_CHAINS: usize = 96 + 8;

type Test = fn() -> Result<()>;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let tests: [(&str, Test); 6] = [
        (
            "t86_a_start_beside_a_process_that_commits_all_the_time_comes_to_its_end",
            || start_beside_the_restless(backend_nftables::open),
        ),
        (
            "t87_a_table_of_another_form_is_replaced_and_no_connection_notices",
            another_form::replaced,
        ),
        (
            "t87_t92_nat_moves_ahead_of_that_of_other_programs_and_no_connection_notices",
            another_form::moved_to_another_priority,
        ),
        (
            "t87_agents_that_are_killed_after_each_transaction_replace_it_all_the_same",
            another_form::replaced_by_many_that_are_killed,
        ),
        (
            "unused_chains_go_and_no_transaction_is_refused",
            stepping_through_numbers,
        ),
        (
            "what_is_half_built_is_cleaned_up",
            another_form::what_is_half_built_is_cleaned_up,
        ),
    ];
    let mut trials: Vec<Trial> = tests
        .into_iter()
        .map(|(name, test)| trial(name, test))
        .collect();
    let lacks_ipvs = find_ipvs(&["rr"])?;
    if let Some(why) = &lacks_ipvs {
        println!("SKIPPED: mode ipvs: {why}");
    }
    let with_ipvs = trial(
        "t86_a_start_beside_a_process_that_commits_all_the_time_comes_to_its_end::ipvs",
        || start_beside_the_restless(|| backend_ipvs::open(Path::new("/proc/sys"))),
    );
    trials.push(with_ipvs.with_ignored_flag(lacks_ipvs.is_some()));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn open(namespace: &Namespace) -> Result<Nftables> {
    let [ipv4, _] = namespace.enter(backend_nftables::open)??;
    Ok(ipv4)
}

/// Returns Services of four endpoints each.
pub(crate) fn many() -> Dataplane {
    let mut dataplane = Dataplane::default();
    for number in 0..SERVICES {
        let [high, low] = number.to_be_bytes();
        let service = testkit::mk_service(&format!("many/service-{number}"))
            .cluster_ip(&format!("10.96.{high}.{low}"))
            .port("http", 80)
            .build();
        let endpoints = (0..4).fold(testkit::mk_endpoints().tcp("http"), |endpoints, subnet| {
            endpoints.ready(&format!("10.{subnet}.{high}.{low}:8080"), "node-2")
        });
        let endpoints = endpoints.build();
        let rules = dataplane::compile(&service, &endpoints, dataplane.node(), dataplane.config());
        dataplane.set(rules.into());
    }
    dataplane
}

/// A transaction of any process interrupts every dump of more than one datagram, so with continuous
/// transactions no consistent dump of a whole ruleset is possible.
fn start_beside_the_restless<B: Backend + Send>(
    open: impl Fn() -> Result<[B; 2], OpenError> + Sync,
) -> Result<()> {
    let mut network = Network::new()?;
    let [namespace] = &network.add_namespaces(["kernel"])?;
    let dataplane = many();
    let [mut first, _] = namespace.enter(&open)??;
    // Mode ipvs makes settings of the network namespace.
    let programmed =
        namespace.enter(|| program(&mut first, &dataplane, &Rendered::default()))??;
    let rules = programmed.rules;
    let others = BusyWriter::start(namespace)?;
    // On a busy machine a read may fall into a moment in which the others do not run.
    let (backend, found) = wait_for("the others to commit during a read", PROMPTLY, || {
        let [mut backend, _] = namespace.enter(&open)??;
        let before = generation(namespace)?;
        let found = backend.observe()?;
        let meanwhile = generation(namespace)?.wrapping_sub(before);
        ensure!(found == rules, "it read something else than there is");
        Ok((meanwhile > 1).then_some((backend, found)))
    })?;
    let from = Rendered {
        dataplane: Dataplane::default(),
        rules: found,
    };
    let expected = backend.render(&dataplane, &from);
    let change = backend.diff(&from.rules, &expected);
    ensure!(change.size().is_empty(), "it would write:\n{change}");
    others.finish()
}

fn generation(namespace: &Namespace) -> Result<u32> {
    let mut socket = namespace.enter(netlink::Socket::open)??;
    Ok(socket.observe_generation()?)
}

/// An API client that may write EndpointSlices may give one Service every possible number of
/// endpoints, in immediate succession.
fn stepping_through_numbers() -> Result<()> {
    let mut network = Network::new()?;
    let [namespace] = &network.add_namespaces(["kernel"])?;
    let mut backend = open(namespace)?;
    let mut observed = Rendered::default();
    let mut dataplane = Dataplane::default();
    let service = testkit::mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .port("http", 80)
        .node_port(30_080)
        .build();
    for count in 1..=200_u8 {
        let endpoints = (1..=count).fold(testkit::mk_endpoints().tcp("http"), |endpoints, pod| {
            endpoints.ready(&format!("10.0.2.{pod}:8080"), "node-2")
        });
        let (node, config) = (dataplane.node(), dataplane.config());
        let rules = dataplane::compile(&service, &endpoints.build(), node, config);
        dataplane.set(rules.into());
        observed = program(&mut backend, &dataplane, &observed)?;
    }
    ensure!(
        backend.observe()? == observed.rules,
        "the kernel holds something else"
    );
    let listed = namespace.nft(&["list", "chains", "ip"])?;
    let chains = listed
        .lines()
        .filter(|line| line.trim_start().starts_with("chain "));
    let chains = chains.count();
    ensure!(chains <= MANY_CHAINS, "{chains} chains");
    Ok(())
}
