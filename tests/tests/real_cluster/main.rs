//! A real cluster: Signpost is installed with Helm, and real Pods on real nodes reach Services
//! during upgrades, changes, outages, additions and removals, until it is uninstalled.
//!
//! All tests share one cluster and run in order; each starts from the original state, so that each
//! can also run alone. The cluster is in an enclosure and ends with this program.

mod changes;
mod command_line;
mod first_hour;
mod installed;
mod machines;
mod other_modes;
mod outage;
mod page;
mod plugin;
mod removal;
mod restarts;
mod shop;
mod stage;
mod takeover;
mod upgrade;
mod ways;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use libtest_mimic::{Arguments, Trial};
use tests::browser;
use tests::control_plane::build_programs;
use tests::real_cluster::enclosure::{self, Place};
use tests::real_cluster::{Built, helm, missing_for_signpost};
use tests::shared::Shared;

use crate::stage::Stage;

type Test = fn(&mut Stage) -> Result<()>;

/// The trial that takes a browser.
const PAGE: &str = "t167_the_page_shows_what_agents_have_and_what_others_do_to_it";

fn main() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // The tests depend on their order.
    arguments.test_threads = Some(1);
    if let Some(problem) = missing_for_signpost()? {
        println!("SKIPPED: life on a real cluster: {problem}");
        let skipped = Trial::test("SKIPPED_life_on_a_real_cluster", || Ok(()));
        let skipped = skipped.with_ignored_flag(true);
        return Ok(libtest_mimic::run(&arguments, vec![skipped]).exit_code());
    }
    // There is no network inside the enclosure, so build first.
    build_programs()?;
    Built::cluster()?;
    helm::build()?;
    if let Place::Outside(code) = enclosure::enter()? {
        return Ok(code);
    }
    let tests: [(&str, Test); 15] = [
        (
            "t210_a_new_user_asks_the_command_line_about_agents_that_run",
            command_line::story,
        ),
        (
            "pods_reach_services_by_name_and_the_api_server",
            installed::by_name,
        ),
        ("services_answer_everywhere", installed::everywhere),
        (
            "agents_have_one_capability_and_change_no_file_of_their_own",
            installed::privileges,
        ),
        (
            "an_agents_token_is_good_for_its_own_node_alone",
            installed::token,
        ),
        (
            "an_upgrade_of_every_pod_loses_no_connection",
            upgrade::every_pod,
        ),
        (
            "t01_a_masquerade_setting_reaches_every_node_without_a_restart",
            changes::masquerade,
        ),
        (
            "t01_node_port_addresses_reach_every_node_without_a_restart",
            changes::node_ports,
        ),
        (
            "t01_a_sync_period_reaches_every_node_without_a_restart",
            changes::sync_period,
        ),
        ("a_node_is_added_drained_and_removed", machines::come_and_go),
        (
            "an_agent_pod_is_deleted_while_endpoints_change",
            restarts::agent_pod,
        ),
        (
            "both_operator_pods_are_deleted_while_endpoints_change",
            restarts::operator_pods,
        ),
        (
            "t43_endpoints_change_while_agent_and_kubelet_are_away",
            restarts::kubelet,
        ),
        (
            "t06_t23_the_api_server_is_away_and_comes_back",
            outage::api_server,
        ),
        (
            "t18_an_uninstalled_release_goes_on_forwarding_and_leaves_nothing_once_cleaned_up",
            removal::uninstalled,
        ),
    ];
    let shared = Shared::new("cluster", Stage::start);
    let first = shared.trial(
        "helm_install_on_an_empty_cluster_makes_every_node_ready",
        |stage| run(stage, installed::on_an_empty_cluster),
    );
    let page = match browser::missing() {
        None => shared.trial(PAGE, |stage| {
            stage.settle()?;
            run(stage, page::faults)
        }),
        Some(problem) => {
            println!("SKIPPED: the page of a real cluster in Chromium: {problem}");
            Trial::test(format!("SKIPPED_{PAGE}"), || Ok(())).with_ignored_flag(true)
        }
    };
    let others = tests.map(|(name, test)| {
        shared.trial(name, move |stage| {
            stage
                .settle()
                .context("not as it should be before anything is done")?;
            run(stage, test)
        })
    });
    // They start without Signpost, or after a handback.
    let takeovers: [(&str, Test); 3] = [
        (
            "t17_t18_a_cluster_goes_from_kube_proxy_to_signpost_and_back_without_a_lost_connection",
            takeover::from_kube_proxy_and_back,
        ),
        (
            "t305_a_cluster_goes_from_kube_proxy_in_mode_iptables_to_signpost_and_back_without_a_lost_connection",
            other_modes::nf_tables,
        ),
        (
            "t305_a_cluster_goes_from_kube_proxy_with_legacy_iptables_to_signpost_and_back_without_a_lost_connection",
            other_modes::legacy,
        ),
    ];
    let takeovers = takeovers.map(|(name, test)| shared.trial(name, move |stage| run(stage, test)));
    let trials = [first, page].into_iter().chain(others).chain(takeovers);
    let trials = trials.collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Before the enclosure ends, which kills everything that is left.
    drop(shared);
    Ok(conclusion.exit_code())
}

fn run(stage: &mut Stage, test: Test) -> Result<()> {
    let started = Instant::now();
    let outcome = test(stage).and_then(|()| stage.cluster.ensure_runs());
    println!("    took {:.1?}", started.elapsed());
    outcome.map_err(|error| anyhow!("{}\n{error:#}", stage.describe()))
}
