//! The interfaces of a real agent on a real kernel for monitoring and load balancers: metrics,
//! health checks, and their addresses according to the profile.

mod causes;
mod defined;
mod logging;
mod manifests;
mod packets;
mod scrape;
mod stage;
mod table;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Arguments;
use tests::deadline::wait_for;
use tests::metric_reference::Reference;
use tests::network::enter_private_namespaces;
use tests::trial::trial;

use causes::{CAUSES, UNMOVED};
use scrape::Scrape;
use stage::{PROMPTLY, Stage};
use table::TABLE;

type Test = fn() -> Result<()>;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let tests: [(&str, Test); 7] = [
        (
            "every_metric_that_is_defined_has_a_cause",
            every_metric_has_a_cause,
        ),
        (
            "every_metric_moves_and_is_named_typed_and_labelled_as_kube_proxys",
            every_metric_moves,
        ),
        (
            "t151_every_counter_is_there_before_its_first_event",
            every_counter_begins,
        ),
        (
            "every_packet_moves_its_counter_and_no_other",
            packets::every_packet_moves_its_counter_and_no_other,
        ),
        (
            "t53_t59_health_checks_are_answered_where_load_balancers_ask",
            causes::health_checks,
        ),
        (
            "a_profile_moves_the_servers_while_the_agent_runs",
            causes::process_settings,
        ),
        (
            "t139_a_profile_changes_what_is_logged_while_the_agent_runs",
            logging::level_and_format,
        ),
    ];
    let trials = tests.map(|(name, test)| trial(name, test));
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}

/// Every defined metric must be listed with an event that changes it.
fn every_metric_has_a_cause() -> Result<()> {
    let defined = defined::observe()?;
    ensure!(defined.len() > 30, "few are found: {defined:?}");
    let caused = CAUSES.iter().flat_map(|cause| cause.moves).copied();
    let unmoved = UNMOVED.iter().map(|metric| metric.name);
    let caused: BTreeSet<&str> = caused.chain(unmoved).collect();
    let without: Vec<&String> = defined
        .iter()
        .filter(|name| !defined::names_of(name).any(|name| caused.contains(&*name)))
        .collect();
    ensure!(without.is_empty(), "nothing is known to move {without:?}");
    let of_kube_proxy: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
    let without: Vec<_> = of_kube_proxy
        .iter()
        .filter(|name| !caused.contains(*name))
        .collect();
    ensure!(without.is_empty(), "nothing is known to move {without:?}");
    Ok(())
}

fn every_metric_moves() -> Result<()> {
    let mut stage = Stage::start()?;
    let mut before = Scrape::default();
    let mut reference = Reference::default();
    for cause in CAUSES {
        (cause.happens)(&mut stage).with_context(|| cause.what)?;
        let mut left: BTreeSet<&str> = cause.moves.iter().copied().collect();
        let mut last = Scrape::default();
        let waited = wait_for("all of them", PROMPTLY, || {
            let text = stage.scrape_text()?;
            reference.add(&text);
            last = Scrape::parse(&text)?;
            for moved in last.moved_since(&before) {
                left.remove(moved);
            }
            Ok(left.is_empty().then_some(()))
        });
        waited.with_context(|| {
            let log = stage.agent.log();
            format!(
                "{}, and what does not move is {left:?}; the agent said:\n{log}",
                cause.what
            )
        })?;
        for row in TABLE.iter().filter(|row| cause.moves.contains(&row.name)) {
            expect_as_in(&last, row)?;
        }
        before = last;
    }
    for metric in UNMOVED {
        reference.declare(metric.name, metric.labels);
    }
    reference.compare("agent")
}

/// `increase()` does not count the first event of a counter that starts with it.
fn every_counter_begins() -> Result<()> {
    let stage = Stage::start()?;
    let scrape = stage.scrape()?;
    // The requests to an API server are not known in advance: this agent has none. IPVS counts in
    // mode ipvs alone.
    let later = [
        "rest_client_requests_total",
        "signpost_ipvs_new_connections_total",
    ];
    let counters = scrape.types.iter().filter(|(_, kind)| *kind == "counter");
    let without: Vec<&String> = counters
        .map(|(name, _)| name)
        .filter(|name| !later.contains(&name.as_str()) && !scrape.has(name))
        .collect();
    ensure!(without.is_empty(), "there are no series of {without:?}");
    let moved = CAUSES.iter().flat_map(|cause| cause.moves).copied();
    let names = moved.chain(UNMOVED.iter().map(|metric| metric.name));
    let undeclared: Vec<&str> = names
        .filter(|name| {
            name.ends_with("_total")
                && !name.contains("_no_local_")
                && !name.contains("_iptables_total")
        })
        .filter(|name| !later.contains(name) && !scrape.types.contains_key(*name))
        .collect();
    ensure!(undeclared.is_empty(), "not declared: {undeclared:?}");
    let outcomes = scrape.values("signpost_syncs_total", "outcome");
    let known = ["committed", "failed", "partial", "unchanged"].into();
    ensure!(outcomes == known, "syncs end {outcomes:?}");
    Ok(())
}

fn expect_as_in(scrape: &Scrape, row: &table::Row) -> Result<()> {
    let name = row.name;
    let kind = scrape.types.get(name);
    ensure!(
        kind.is_some_and(|kind| kind == row.kind),
        "{name} is a {kind:?}"
    );
    let labels: BTreeSet<&str> = row.labels.iter().copied().collect();
    ensure!(
        scrape.labels(name) == labels,
        "{name} has {:?}",
        scrape.labels(name)
    );
    let bounds = scrape.bounds(name)?;
    ensure!(bounds == (row.buckets)(), "{name} has buckets {bounds:?}");
    let families = scrape.values(name, "ip_family");
    let known = ["IPv4", "IPv6"].into();
    ensure!(families.is_subset(&known), "{name} is of {families:?}");
    Ok(())
}
