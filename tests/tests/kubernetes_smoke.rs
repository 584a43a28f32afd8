//! Ten of Kubernetes' own conformance tests, on two nodes with Signpost installed by its chart.
//! `make e2e` runs all tests about Services, with the results in `docs/conformance.md`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use libtest_mimic::{Arguments, Trial};
use tests::conformance::ginkgo::Report;
use tests::conformance::selection::Selection;
use tests::conformance::suite::{Order, Suite};
use tests::conformance::{Group, Outcome, Proxy, proxies};
use tests::control_plane::build_programs;
use tests::real_cluster::enclosure::{self, Place};
use tests::real_cluster::images::{self, OwnImages};
use tests::real_cluster::{Built, Plan, RealCluster, helm, missing_for_signpost};
use tests::shared::Shared;

/// The number of concurrent tests: they mostly wait.
const PROCESSES: u8 = 5;

/// The groups and names of the tests. Each takes seconds.
const TESTS: [(&str, &str); 10] = [
    (
        "[sig-network] API Server",
        "should provide secure master service [Conformance]",
    ),
    (
        "[sig-network] EndpointSlice",
        "should support a Service with multiple endpoint IPs specified in multiple EndpointSlices [Conformance]",
    ),
    (
        "[sig-network] EndpointSlice",
        "should support a Service with multiple ports specified in multiple EndpointSlices [Conformance]",
    ),
    (
        "[sig-network] Services",
        "should be able to change the type from ExternalName to ClusterIP [Conformance]",
    ),
    (
        "[sig-network] Services",
        "should be able to create a functioning NodePort service [Conformance]",
    ),
    (
        "[sig-network] Services",
        "should have session affinity work for NodePort service [LinuxOnly] [Conformance]",
    ),
    (
        "[sig-network] Services",
        "should have session affinity work for service with type clusterIP [LinuxOnly] [Conformance]",
    ),
    (
        "[sig-network] Services",
        "should serve a basic endpoint from pods [Conformance]",
    ),
    (
        "[sig-network] Services",
        "should serve endpoints on same port and different protocols [Conformance]",
    ),
    (
        "[sig-network] Services",
        "should serve multiport endpoints from pods [Conformance]",
    ),
];

fn main() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // The first test waits for all others.
    arguments.test_threads = Some(1);
    if let Some(problem) = missing_for_signpost()? {
        println!("SKIPPED: Kubernetes' own tests: {problem}");
        let skipped = Trial::test("SKIPPED_ten_tests_of_Kubernetes", || Ok(()));
        let skipped = skipped.with_ignored_flag(true);
        return Ok(libtest_mimic::run(&arguments, vec![skipped]).exit_code());
    }
    build_programs()?;
    Built::cluster()?;
    helm::build()?;
    Suite::build()?;
    if let Place::Outside(code) = enclosure::enter()? {
        return Ok(code);
    }
    let shared = Shared::new("real cluster", run_all);
    let trials = TESTS.map(|(group, name)| {
        shared.trial(&format!("{group} {name}"), move |report| {
            expect_passed(report, group, name)
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.into());
    // Before the enclosure ends, which kills everything that is left.
    drop(shared);
    Ok(conclusion.exit_code())
}

/// Runs all tests concurrently, on a cluster that has ended when this returns.
fn run_all() -> Result<Report> {
    let Place::Inside(enclosure) = enclosure::enter()? else {
        bail!("a cluster starts in an enclosure");
    };
    let OwnImages::Made(own) = images::observe()? else {
        bail!("there are no images: make image");
    };
    let say = |event: &str| println!("    {event}");
    let suite = Suite::build()?;
    let images = suite.images().into_iter().chain(own).collect();
    let cluster = RealCluster::start(&Plan { nodes: 2, images }, &enclosure, &say)?;
    proxies::install(Proxy::Signpost, &cluster)?;
    say("Signpost serves");
    let names = TESTS.map(|(group, name)| format!("{group} {name}"));
    let selection = Selection::named(names.iter().map(String::as_str));
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubernetes-smoke");
    let order = Order {
        selection: &selection,
        processes: PROCESSES,
        folder: &kept,
        name: "smoke",
    };
    suite.run(&cluster, order, &say)
}

fn expect_passed(report: &Report, group: &str, name: &str) -> Result<()> {
    let tests = report.tests.get(&Group(group.to_owned()));
    let outcome = tests.and_then(|tests| tests.get(name));
    match outcome.context("Kubernetes has no test of this name")? {
        Outcome::Passed => Ok(()),
        Outcome::Failed { message } => bail!("{message}"),
        Outcome::Skipped { reason } => bail!("it was skipped: {reason}"),
    }
}
