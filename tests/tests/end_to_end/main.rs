//! End to end: a user applies a ProxyProfile, and connections reach Pods on every node while
//! components stop, start, join or leave.
//!
//! All tests share one cluster and run in order; each starts from the original state, so that each
//! can also run alone.

mod changes;
mod foreign_rules;
mod nodes;
mod outages;
mod page;
mod profiles;
mod restarts;
mod simulated_agents;
mod traffic;

use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use libtest_mimic::{Arguments, Trial};
use tests::browser;
use tests::cluster::Cluster;
use tests::control_plane::build_programs;
use tests::network::enter_private_namespaces;
use tests::shared::Shared;

type Test = fn(&mut Cluster) -> Result<()>;

/// The trial that takes a browser.
const PAGE: &str =
    "t232_the_page_shows_a_rollout_that_agents_fail_and_the_command_that_takes_it_back";

fn main() -> Result<()> {
    build_programs()?;
    enter_private_namespaces()?;
    let mut arguments = Arguments::from_args();
    // The tests depend on their order.
    arguments.test_threads = Some(1);
    let tests: [(&str, Test); 24] = [
        (
            "a_profile_is_applied_and_every_node_is_ready",
            profiles::applied,
        ),
        (
            "services_answer_everywhere_with_every_endpoint",
            traffic::everywhere,
        ),
        (
            "t22_an_endpoint_in_two_slices_is_one_and_may_move",
            changes::slices,
        ),
        (
            "endpoints_come_and_go_and_no_connection_fails",
            changes::endpoints_come_and_go,
        ),
        (
            "t01_an_edited_profile_reaches_every_node_without_a_restart",
            profiles::edited,
        ),
        (
            "t03_bad_profiles_are_refused_with_signposts_messages",
            profiles::refused,
        ),
        (
            "t04_every_node_takes_on_another_mode_and_serving_goes_on",
            profiles::mode_of_every_node,
        ),
        (
            "t04_a_mode_that_is_not_there_is_answered_and_serving_goes_on",
            profiles::another_mode,
        ),
        (
            "t05_of_two_profiles_one_wins_and_the_other_says_so",
            profiles::rivals,
        ),
        (
            "t42_a_killed_agent_starts_again_and_writes_nothing",
            restarts::agent,
        ),
        (
            "t136_t263_a_killed_agent_is_noticed_within_two_minutes_and_idle_ones_write_nothing",
            restarts::silent_agent,
        ),
        (
            "t184_programmed_rules_that_forward_nothing_degrade_their_node",
            foreign_rules::drop_all,
        ),
        (
            "an_agent_that_is_stopped_leaves_its_rules",
            restarts::stopped_agent,
        ),
        (
            "an_agent_that_starts_without_the_api_server_changes_nothing",
            restarts::agent_without_api_server,
        ),
        (
            "an_operator_stopped_and_started_changes_nothing",
            restarts::operator,
        ),
        (
            "t06_a_rollout_survives_the_operators_death",
            restarts::rollout,
        ),
        (
            "t23_a_change_made_while_a_node_was_cut_off_arrives",
            outages::cut_off,
        ),
        (
            "t06_t23_traffic_flows_while_the_api_server_is_away",
            outages::api_server,
        ),
        (
            "an_agent_writes_its_own_object_and_no_other",
            nodes::own_object,
        ),
        ("an_agent_that_starts_is_an_event", nodes::events),
        (
            "an_agents_status_has_the_fields_that_make_fleet_simulates",
            simulated_agents::status,
        ),
        (
            "agents_and_operator_hold_one_connection_each_to_the_api_server",
            nodes::connections,
        ),
        (
            "t56_an_agent_that_never_read_the_cluster_is_not_ready",
            nodes::never_synced,
        ),
        ("a_node_joins_and_leaves", nodes::join_and_leave),
    ];
    let shared = Shared::new("cluster", Cluster::start);
    let trials =
        tests.map(|(name, test)| shared.trial(name, move |cluster| run_settled(cluster, test)));
    let page = match browser::missing() {
        None => shared.trial(PAGE, |cluster| run_settled(cluster, page::failed_rollout)),
        Some(problem) => {
            println!("SKIPPED: a rollout that agents fail, on the page in Chromium: {problem}");
            Trial::test(format!("SKIPPED_{PAGE}"), || Ok(())).with_ignored_flag(true)
        }
    };
    let trials = trials.into_iter().chain([page]).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    // `exit` drops nothing.
    drop(shared);
    conclusion.exit();
}

/// Runs a test on the cluster in its idle state. Every test restores that state first, so a test
/// that panicked may leave anything behind.
fn run_settled(cluster: &mut Cluster, test: Test) -> Result<()> {
    let started = Instant::now();
    let outcome = cluster
        .settle()
        .context("not as it should be before anything is done");
    let settled = started.elapsed();
    let outcome = outcome.and_then(|()| test(cluster));
    let outcome = outcome.and_then(|()| cluster.ensure_agents_run());
    println!(
        "    took {:.1?}, and {settled:.1?} before it to put everything right",
        started.elapsed() - settled
    );
    outcome.map_err(|error| anyhow!("{error:#}\n{}", cluster.describe_logs()))
}
