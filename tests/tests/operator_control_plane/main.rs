//! The operator as a process with the permissions of its manifests, against a real API server.
//!
//! The tests create the nodes and report in place of their agents, each with the token of its own
//! node.

mod agents;
mod archive;
mod cluster;
mod command_line;
mod faults;
mod leases;
mod migration;
mod objects;
mod operator;
mod profiles;
mod rights;
mod rollouts;
mod terminal;

use std::time::Duration;

use anyhow::Result;
use libtest_mimic::Arguments;
use tests::control_plane::build_programs;
use tests::named;
use tests::pool::Pool;

use cluster::Cluster;

/// Everything happens within a second or two; the rest is a reserve for busy machines.
const DEADLINE: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "signpost-system";

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// The number of concurrent tests, which wait most of their time. Each takes a control plane, with
/// 0.6 GB of memory and 8 s of a processor until it is ready.
const AT_A_TIME: usize = 4;

type Test = fn(&mut Cluster) -> Result<()>;

/// The tests in the order in which they start: those that wait longest first, and last those that
/// leave no control plane for another test.
const TESTS: [(&str, Test); 33] = named![
    faults::t200_a_leader_stopped_in_any_phase_of_a_rollout_writes_nothing_once_it_continues,
    faults::t199_an_operator_killed_in_any_phase_of_a_rollout_is_followed_by_one_that_goes_on,
    faults::t202_kubelets_lost_and_agents_restarted_in_any_phase_of_a_rollout_fail_no_node,
    faults::t202_nodes_lost_together_before_their_turn_are_not_changed_together,
    leases::t6_an_operator_that_comes_back_does_nothing_twice,
    leases::an_operator_that_loses_the_lease_ends,
    rollouts::a_change_the_canary_does_not_survive_goes_back,
    rollouts::t108_a_node_lost_after_its_change_takes_the_change_back,
    rollouts::t109_losing_the_api_server_takes_no_change_back,
    rollouts::t112_what_is_deleted_and_made_again_changes_one_node_at_first,
    rollouts::t307_one_field_takes_a_settled_change_back_node_by_node_and_keeps_it_back,
    command_line::t143_a_rollout_is_followed_held_and_let_go_on_by_the_command_line,
    command_line::t158_a_rollout_is_aborted_tried_again_and_undone_by_the_command_line,
    command_line::t144_errors_of_the_command_line_say_what_to_do_next,
    command_line::t145_kube_proxys_configuration_becomes_a_profile_of_the_cluster,
    migration::t170_no_node_moves_while_kube_proxy_runs_and_the_first_failure_stops_the_others,
    migration::t197_t198_the_plan_names_what_local_detection_daemon_set_and_host_ports_have_against_it,
    profiles::nodes_are_stamped_and_what_their_agents_say_is_summed_up,
    profiles::t186_nodes_without_a_pod_of_the_agents_daemon_set_are_left_out_and_named,
    profiles::t5_of_two_profiles_one_decides_and_both_say_so,
    rights::every_manifest_is_one_the_api_server_takes,
    rights::an_agent_writes_about_its_own_node_alone,
    rights::t196_an_agent_writes_events_in_the_name_of_its_own_node_alone,
    archive::t155_a_sysdump_names_what_it_could_not_read_and_holds_no_secret,
    terminal::t187_kubectl_completes_commands_and_flags_of_the_plugin,
    terminal::a_rollout_is_redrawn_in_place_on_a_terminal_and_is_lines_in_a_pipe,
    terminal::colours_are_for_terminals_unless_the_user_refuses_them,
    faults::t203_definitions_deleted_and_installed_again_change_no_node_out_of_its_turn,
    faults::t201_two_api_servers_that_cut_watches_in_any_phase_of_a_rollout_lose_nothing,
    faults::t201_a_restart_of_the_api_server_in_any_phase_of_a_rollout_gives_nothing_twice,
    profiles::t220_with_an_older_definition_the_rest_of_the_status_is_written,
    profiles::a_profile_stored_without_validation_is_named_and_disturbs_no_other,
    profiles::t186_an_operator_that_may_not_read_daemon_sets_works_without_them,
];

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_A_TIME);
    build_programs()?;
    let pool = Pool::new(Cluster::start, Cluster::restore);
    libtest_mimic::run(&arguments, pool.trials(TESTS)).exit();
}
