//! Faults in every phase of a rollout.
//!
//! Several rollouts wait in different phases when a fault happens. Whatever it is, each node is
//! given a configuration once and in its turn, and each rollout ends as it would have without it.

mod agents;
mod pools;
mod record;
mod stage;

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::deadline::wait_for;
use tests::load_balancer::LoadBalancer;

use self::pools::{BETWEEN, FIRST, POOLS, Pool, SECOND, SETTLED, STAMPING};
use self::record::Record;
use self::stage::{PhaseOver, Stage, in_turn, second_wave};
use crate::DEADLINE;
use crate::cluster::Cluster;
use crate::operator::Operator;

/// Only these rollouts go on while the definitions are deleted.
const POOLS_TO_DELETE: &[Pool] = &[BETWEEN, SETTLED];

/// Only this rollout goes on while half of its nodes are lost.
const POOL_OF_LOST: &[Pool] = &[BETWEEN];

/// How many times a test is tried on a busy machine, where a phase may be over before the fault acts.
const ATTEMPTS: usize = 3;

/// How often API servers cut their watches while rollouts go on.
const CUTS: usize = 3;

/// How long a leader is stopped and leads afterwards: less than its term of 10 s, more than the two
/// seconds between two renewals.
const SHORT_STOP: Duration = Duration::from_secs(3);

/// The renewals of a Lease within which a standby reads it.
const RENEWALS: usize = 2;

/// Runs `test`; on a new control plane again if a phase was over before the fault acted.
fn in_every_phase(cluster: &mut Cluster, test: fn(&mut Cluster) -> Result<()>) -> Result<()> {
    for _ in 1..ATTEMPTS {
        let Err(error) = test(cluster) else {
            return Ok(());
        };
        let over = error.downcast::<PhaseOver>()?;
        println!(
            "    once more: the fault came too late for phase {}",
            over.phase
        );
        *cluster = Cluster::start()?;
    }
    test(cluster)
}

pub(crate) fn t199_an_operator_killed_in_any_phase_of_a_rollout_is_followed_by_one_that_goes_on(
    cluster: &mut Cluster,
) -> Result<()> {
    in_every_phase(cluster, kill_operator)
}

fn kill_operator(cluster: &mut Cluster) -> Result<()> {
    let stage = Stage::start(cluster, POOLS)?;
    let operator = Operator::start(stage.cluster, "operator-1")?;
    stage.cluster.wait_for_holder("operator-1")?;
    let standby = Operator::start(stage.cluster, "operator-2")?;
    stage.settle()?;
    // Failure story T321: the record of the Lease that the standby knows is older than a term when it
    // continues.
    standby.suspend()?;
    stage.reach_every_phase()?;
    operator.crash()?;
    stage.expect_every_phase()?;
    // A container that is started again has the same identity, and takes over at once.
    let _operator = Operator::start(stage.cluster, "operator-1")?;
    stage.expect_ends(&[])?;
    standby.resume()?;
    stage.cluster.wait_for_renewals("operator-1", RENEWALS)?;
    stage.expect_given(&[])
}

pub(crate) fn t200_a_leader_stopped_in_any_phase_of_a_rollout_writes_nothing_once_it_continues(
    cluster: &mut Cluster,
) -> Result<()> {
    in_every_phase(cluster, stop_leader)
}

fn stop_leader(cluster: &mut Cluster) -> Result<()> {
    let stage = Stage::start(cluster, POOLS)?;
    let mut leader = Operator::start(stage.cluster, "operator-1")?;
    stage.cluster.wait_for_holder("operator-1")?;
    let _standby = Operator::start(stage.cluster, "operator-2")?;
    stage.settle()?;
    stage.reach_every_phase()?;
    leader.suspend()?;
    stage.expect_every_phase()?;
    // The user returns to the configuration before, in the middle of the stamps.
    stage.edit(&STAMPING, FIRST)?;
    stage.cluster.wait_for_holder("operator-2")?;
    stage.expect_ends(&[STAMPING.name])?;

    // A request that the leader had composed but not sent when it was stopped leaves it with the
    // first instruction. The API server refuses it if the object has changed since, as it does with
    // each report of an agent.
    stage.agents.restart()?;
    stage.wait_for_a_plan()?;
    let before = stage.cluster.versions()?;
    leader.resume()?;
    leader.wait_for_end(1)?;
    assert_eq!(before, stage.cluster.versions()?);
    assert_eq!(stage.cluster.holder()?, "operator-2");
    stage.wait_for_a_plan()?;
    stage.expect_given(&[STAMPING.name])
}

pub(crate) fn t201_a_restart_of_the_api_server_in_any_phase_of_a_rollout_gives_nothing_twice(
    cluster: &mut Cluster,
) -> Result<()> {
    in_every_phase(cluster, restart_api_server)
}

fn restart_api_server(cluster: &mut Cluster) -> Result<()> {
    let stage = Stage::start(cluster, POOLS)?;
    let _operator = Operator::start(stage.cluster, "operator-1")?;
    stage.settle()?;
    stage.reach_every_phase()?;
    stage.cluster.control_plane.stop_api_server();
    stage.expect_every_phase()?;
    stage.cluster.control_plane.start_api_server()?;
    // If the first one could not renew its lease in time, it has ended.
    let _another = Operator::start(stage.cluster, "operator-2")?;
    stage.expect_ends(&[])
}

pub(crate) fn t201_two_api_servers_that_cut_watches_in_any_phase_of_a_rollout_lose_nothing(
    cluster: &mut Cluster,
) -> Result<()> {
    in_every_phase(cluster, cut_watches)
}

fn cut_watches(cluster: &mut Cluster) -> Result<()> {
    let stage = Stage::start(cluster, POOLS)?;
    let control_plane = &mut stage.cluster.control_plane;
    let servers = [
        control_plane.address(),
        control_plane.start_second_api_server()?,
    ];
    let load_balancer = LoadBalancer::start(&servers)?;
    let _operator = Operator::start_at(load_balancer.address(), stage.cluster, "operator-1")?;
    stage.settle()?;
    stage.reach_every_phase()?;
    // Failure story T337: the agents lose their watches as well, and say so another way.
    stage.agents.lose_api_server();
    stage.expect_every_phase()?;
    cut_and_connect(&load_balancer, LoadBalancer::cut_one_server)?;
    stage.agents.wait_until_said()?;
    stage.wait_for_a_plan()?;
    let without = stage.rollouts_on_hold()?;
    stage.agents.find_api_server();
    cut_and_connect(&load_balancer, LoadBalancer::cut)?;
    stage.agents.wait_until_said()?;
    let with = stage.rollouts_on_hold()?;
    ensure!(
        without == with,
        "agents without watches count: {without:#?}\nwith them: {with:#?}"
    );
    stage.agents.lose_api_server();
    stage.release();
    for cut in [LoadBalancer::cut, LoadBalancer::cut_one_server].repeat(CUTS) {
        cut(&load_balancer);
        stage.wait_for_a_plan()?;
    }
    stage.agents.find_api_server();
    stage.expect_ends(&[])
}

/// Cuts connections and returns once the operator has another one.
fn cut_and_connect(load_balancer: &LoadBalancer, cut: fn(&LoadBalancer)) -> Result<()> {
    let before = load_balancer.accepted();
    cut(load_balancer);
    wait_for("the operator to connect again", DEADLINE, || {
        Ok((load_balancer.accepted() > before).then_some(()))
    })
}

pub(crate) fn t202_kubelets_lost_and_agents_restarted_in_any_phase_of_a_rollout_fail_no_node(
    cluster: &mut Cluster,
) -> Result<()> {
    in_every_phase(cluster, lose_kubelets)
}

fn lose_kubelets(cluster: &mut Cluster) -> Result<()> {
    let stage = Stage::start(cluster, POOLS)?;
    let operator = Operator::start(stage.cluster, "operator-1")?;
    stage.settle()?;
    stage.reach_every_phase()?;
    // Failure story T321: the leader is stopped meanwhile, for less than its term.
    operator.suspend()?;
    stage.expect_every_phase()?;
    // The first node has the change in nearly every pool, and in most of them the last does not.
    let lost = POOLS
        .iter()
        .flat_map(|pool| [pool.node(1), pool.node(pool.size)]);
    let lost: Vec<String> = lost.collect();
    stage.agents.lose_kubelets(&lost)?;
    sleep(SHORT_STOP);
    operator.resume()?;
    stage.agents.restart()?;
    stage.wait_for_a_plan()?;
    stage.agents.restart()?;
    stage.wait_for_a_plan()?;
    stage.agents.find_kubelets(&lost)?;
    stage.expect_ends(&[])?;
    ensure!(stage.cluster.holder()? == "operator-1");
    Ok(())
}

/// Nodes that were lost before their turn do not report, so that nothing but their number can hold
/// the next one back.
pub(crate) fn t202_nodes_lost_together_before_their_turn_are_not_changed_together(
    cluster: &mut Cluster,
) -> Result<()> {
    let stage = Stage::start(cluster, POOL_OF_LOST)?;
    let _operator = Operator::start(stage.cluster, "operator-1")?;
    stage.settle()?;
    stage.reach_second_wave()?;
    let lost: Vec<String> = BETWEEN.nodes().skip(3).collect();
    stage.agents.lose_kubelets(&lost)?;
    stage.agents.release(second_wave());
    stage.wait_for_wave(&BETWEEN, 3)?;
    stage.wait_for_a_plan()?;
    stage.wait_for_a_plan()?;
    stage.expect_no_excess()?;
    stage.agents.find_kubelets(&lost)?;
    stage.expect_ends(&[])
}

pub(crate) fn t203_definitions_deleted_and_installed_again_change_no_node_out_of_its_turn(
    cluster: &mut Cluster,
) -> Result<()> {
    let stage = Stage::start(cluster, POOLS_TO_DELETE)?;
    let _operator = Operator::start(stage.cluster, "operator-1")?;
    stage.settle()?;
    stage.reach_second_wave()?;
    // In the middle of one rollout, and after another.
    delete_and_install(&stage, [(&BETWEEN, SECOND), (&SETTLED, FIRST)])?;
    // At rest; one profile then asks for another configuration than before.
    delete_and_install(&stage, [(&BETWEEN, SECOND), (&SETTLED, SECOND)])
}

/// Deletes the definitions, and with them all profiles and NodeProxies, and installs them again;
/// these profiles then ask for these configurations. Asserts that each node has what it had, apart
/// from one canary in each pool, until agents report; and that each node is then given once what it
/// lacks.
fn delete_and_install(stage: &Stage, profiles: [(&Pool, &str); 2]) -> Result<()> {
    let agents = &stage.agents;
    agents.hold(POOLS_TO_DELETE.iter().flat_map(Pool::nodes));
    let (uids, had) = agents.look(|record| (record.uids(), record.configurations()));
    let control_plane = &stage.cluster.control_plane;
    control_plane.kubectl(&[
        "delete",
        "crd",
        "proxyprofiles.signpost.dev",
        "nodeproxies.signpost.dev",
    ])?;
    control_plane.apply_operator_manifests()?;
    for (pool, period) in profiles {
        wait_for("the API server to serve profiles", DEADLINE, || {
            Ok(stage.edit(pool, period).ok())
        })?;
    }
    let count: usize = POOLS_TO_DELETE.iter().map(|pool| pool.size).sum();
    agents.wait_for("each node to be given something", |record| {
        let now = record.uids();
        now.len() == count && now.is_disjoint(&uids)
    })?;
    let before = |node: &str| had.get(node).map_or("", String::as_str);
    for _ in 0..2 {
        stage.wait_for_a_plan()?;
        for (pool, period) in profiles {
            let given = agents.look(|record| {
                let given = pool.nodes().map(|node| {
                    let is_before = record.given(&node) == in_turn(&[before(&node)]);
                    let is_changed = record.given(&node) == in_turn(&[before(&node), period]);
                    (is_before, is_changed)
                });
                given.collect::<Vec<_>>()
            });
            let canaries = given.iter().filter(|(_, is_changed)| *is_changed).count();
            let others = given.iter().filter(|(is_before, _)| *is_before).count();
            ensure!(
                canaries <= 1 && canaries + others == pool.size,
                "{} had {had:?}, now:\n{}",
                pool.name,
                agents.look(Record::describe)
            );
        }
    }

    stage.release();
    for (pool, period) in profiles {
        stage.wait_for_phase(pool, "Settled")?;
        agents.wait_for("each node to be given once what it lacked", |record| {
            let is_once = |node: String| match before(&node) {
                before if before == period => record.given(&node) == in_turn(&[period]),
                before => record.given(&node) == in_turn(&[before, period]),
            };
            pool.nodes().all(is_once)
        })?;
    }
    stage.expect_no_excess()
}
