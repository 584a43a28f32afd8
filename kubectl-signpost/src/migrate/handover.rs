//! Takeovers and handbacks by the agents: one node first, then several concurrently, until one
//! fails.

use std::error::Error;

use crds::NodeProxy;
use crds::condition::reason::KERNEL_UNSUPPORTED;
use crds::condition::{IPV4_PROGRAMMED, IPV6_PROGRAMMED, READY, Status, status_of};
use futures::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runtime::chain;
use tokio::time::{Instant, sleep, timeout_at};

use super::plan::{NodePlan, Obstacle, Plan, Serving, Step};
use super::text;
use crate::agent::{Agent, AskError};
use crate::arguments::HandoverOptions;
use crate::check::first;
use crate::cluster::{Cluster, ClusterError};
use crate::ending::Ending;
use crate::print_while_read;
use crate::status::POLL;

/// The direction of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Takeover,
    Handback,
}

/// What to do with a node.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NodeAction<'a> {
    /// Nothing: it has already moved.
    Over,
    /// Skip it because of these obstacles.
    Stopped(Vec<Obstacle>),
    /// Query its agent.
    Ask(&'a Agent),
}

/// The nodes of a plan, by what to do with them.
#[derive(Debug, Clone, Default)]
struct Turns<'a> {
    over: Vec<&'a String>,
    /// The obstacles that stop a node, or would without `--dry-run`.
    stopped: Vec<(&'a String, Obstacle)>,
    asked: Vec<&'a Agent>,
}

/// The number of agents queried concurrently after the first one.
const AT_ONCE: usize = 8;

/// Moves the nodes of the plan.
pub(super) async fn run(
    cluster: &Cluster,
    plan: &Plan,
    direction: Direction,
    options: &HandoverOptions,
) -> Ending {
    let Turns {
        over,
        stopped,
        asked,
    } = Turns::of(plan, direction, options);
    if !over.is_empty() {
        let (proxy, names) = (direction.proxy(), first(over.into_iter()));
        print_while_read(&format!("skipped, already served by {proxy}: {names}\n"));
    }
    let mut ending = Ending::Success;
    if !stopped.is_empty() {
        let obstacles = stopped.iter().map(|(name, obstacle)| (*name, obstacle));
        let obstacles = text::obstacles(obstacles);
        let heading = match options.dry_run {
            true => "Nodes that would be skipped and why:",
            false => "Skipped nodes and why:",
        };
        print_while_read(&format!("{heading}\n{obstacles}"));
        ending = Ending::ProblemFound;
    }
    if direction == Direction::Takeover {
        let is_asked = |node: &&NodePlan| asked.iter().any(|agent| agent.node == node.name);
        print_while_read(&text::warnings(plan.nodes.iter().filter(is_asked)));
    }
    let mut ahead = asked.as_slice();
    while let Some((wave, rest)) = next_wave(ahead, asked.len()) {
        ahead = rest;
        let agents = wave.iter();
        let outcomes = agents.map(|agent| hand_over(cluster, agent, direction, options));
        let mut has_failed = false;
        for outcome in join_all(outcomes).await {
            has_failed |= outcome == Ending::ProblemFound;
        }
        if !has_failed {
            continue;
        }
        ending = Ending::ProblemFound;
        // A dry run continues, to find every obstacle.
        if !options.dry_run {
            stop(ahead);
            return ending;
        }
    }
    ending
}

/// Decides what to do with `node`. Pure.
fn turn<'a>(node: &'a NodePlan, direction: Direction, options: &HandoverOptions) -> NodeAction<'a> {
    let is_over = match direction {
        Direction::Takeover => node.step == Step::None,
        Direction::Handback => node.serving == Serving::KubeProxy,
    };
    let is_unserved = direction == Direction::Handback && node.serving == Serving::Neither;
    let stopping = obstacles(node, direction, options);
    match &node.agent {
        _ if is_over => NodeAction::Over,
        _ if is_unserved => NodeAction::Stopped(vec![Obstacle::unserved(&node.name)]),
        _ if !stopping.is_empty() && !options.dry_run => NodeAction::Stopped(stopping),
        Some(agent) => NodeAction::Ask(agent),
        None if !stopping.is_empty() => NodeAction::Stopped(stopping),
        None => {
            let no_agent = Obstacle::no_agent();
            let of_node = node.obstacles.iter().cloned();
            NodeAction::Stopped(of_node.filter(|obstacle| *obstacle == no_agent).collect())
        }
    }
}

/// Returns what stops `node`, or would without `--dry-run`. Pure.
fn obstacles(node: &NodePlan, direction: Direction, options: &HandoverOptions) -> Vec<Obstacle> {
    let stops = |obstacle: &&Obstacle| match direction {
        Direction::Handback => false,
        Direction::Takeover => !(options.force && obstacle.yields_to_force),
    };
    node.obstacles.iter().filter(stops).cloned().collect()
}

/// Splits the next nodes off those ahead; the first of `all` nodes goes alone. Pure.
fn next_wave<T>(ahead: &[T], all: usize) -> Option<(&[T], &[T])> {
    let most = if ahead.len() == all { 1 } else { AT_ONCE };
    (!ahead.is_empty()).then(|| ahead.split_at(most.min(ahead.len())))
}

/// Names the nodes left undone after a failure.
fn stop(ahead: &[&Agent]) {
    if !ahead.is_empty() {
        let names: Vec<String> = ahead.iter().map(|agent| agent.node.clone()).collect();
        let names = first(names.iter());
        print_while_read(&format!(
            "\nstopped after a failure; not started on: {names}\n"
        ));
    }
    print_while_read(
        "  next: resolve what is named above, then run this again; nodes that are done stay as they are\n",
    );
}

/// Runs the agent's command, and waits until the node's NodeProxy reports the result.
async fn hand_over(
    cluster: &Cluster,
    agent: &Agent,
    direction: Direction,
    options: &HandoverOptions,
) -> Ending {
    let node = &agent.node;
    let deadline = Instant::now() + options.timeout;
    let mut arguments = vec![direction.command()];
    arguments.extend(options.dry_run.then_some("--dry-run"));
    arguments.extend(options.force.then_some("--force"));
    print_while_read(&format!("{node}: signpost-agent {}\n", arguments.join(" ")));
    // Without its answer, the state from before may look like the one that is asked for.
    let mut force = options.force;
    match timeout_at(deadline, agent.run(cluster, &arguments)).await {
        Ok(Ok(ran)) => {
            for line in ran.text.lines() {
                print_while_read(&format!("{node}: {line}\n"));
            }
            if ran.code != 0 {
                print_while_read(&format!("{node}: failed: {}\n", ran.error()));
                return Ending::ProblemFound;
            }
        }
        Ok(Err(error)) if goes_on(&error, options) => {
            force = false;
            let text = chain(&error);
            print_while_read(&format!(
                "{node}: {text}; the agent goes on, waiting for its NodeProxy\n"
            ));
        }
        Ok(Err(error)) => {
            print_while_read(&fail(node, &error, error.advice()));
            return Ending::ProblemFound;
        }
        Err(_) => {
            let seconds = options.timeout.as_secs();
            let text = format!(
                "{node}: failed: the agent has not ended within {seconds} s, and goes on without this command\n"
            );
            print_while_read(&text);
            return Ending::ProblemFound;
        }
    }
    if options.dry_run {
        return Ending::Success;
    }
    let reported = report(cluster, node, direction, force, deadline).await;
    let (text, ending) = conclude(node, direction, options, reported);
    print_while_read(&text);
    ending
}

/// Returns what to print of a node whose agent has answered, and whether it is where it should be. Pure.
fn conclude(
    node: &str,
    direction: Direction,
    options: &HandoverOptions,
    reported: Result<Option<&'static str>, ClusterError>,
) -> (String, Ending) {
    match reported {
        Ok(Some(state)) => (format!("{node}: done: {state}\n"), Ending::Success),
        Ok(None) => {
            let text = format!(
                "{node}: failed: NodeProxy {node} did not report {} as the active proxy within {} s; see kubectl signpost nodes\n",
                direction.proxy(),
                options.timeout.as_secs()
            );
            (text, Ending::ProblemFound)
        }
        Err(error) => (fail(node, &error, error.advice()), Ending::ProblemFound),
    }
}

/// Returns whether the agent may do what was asked although its answer was lost. Pure.
fn goes_on(error: &AskError, options: &HandoverOptions) -> bool {
    matches!(error, AskError::Read { .. }) && !options.dry_run
}

/// Returns what to print of a node that failed, with the next step. Pure.
fn fail(node: &str, error: &(dyn Error + 'static), advice: &str) -> String {
    format!("{node}: failed: {}\n  next: {advice}\n", chain(error))
}

/// Waits until the NodeProxy of `node` shows that the direction's final state is reached. Returns
/// that state in words; `None` if it does not show it until the deadline.
async fn report(
    cluster: &Cluster,
    node: &str,
    direction: Direction,
    force: bool,
    deadline: Instant,
) -> Result<Option<&'static str>, ClusterError> {
    loop {
        match cluster.read_one::<NodeProxy>(node).await {
            Ok(proxy) => {
                let status = proxy.status.unwrap_or_default();
                let reached = direction.reached(&status.conditions, force);
                if reached.is_some() {
                    return Ok(reached);
                }
            }
            // The connection to the API server may go through the node that is moving.
            Err(error) if error.is_passing() => {}
            Err(error) => return Err(error),
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        sleep(POLL).await;
    }
}

// === impl Turns ===

impl<'a> Turns<'a> {
    /// Decides about all nodes. Pure.
    fn of(plan: &'a Plan, direction: Direction, options: &HandoverOptions) -> Turns<'a> {
        let mut turns = Turns::default();
        for node in &plan.nodes {
            let stopping = match turn(node, direction, options) {
                NodeAction::Over => {
                    turns.over.push(&node.name);
                    continue;
                }
                NodeAction::Stopped(obstacles) => obstacles,
                NodeAction::Ask(agent) => {
                    turns.asked.push(agent);
                    // A dry run asks the agent as well: its findings are useful even before
                    // kube-proxy is stopped.
                    obstacles(node, direction, options)
                }
            };
            let stopping = stopping.into_iter().map(|obstacle| (&node.name, obstacle));
            turns.stopped.extend(stopping);
        }
        turns
    }
}

// === impl Direction ===

impl Direction {
    /// The agent's command for this direction.
    fn command(self) -> &'static str {
        match self {
            Direction::Takeover => "takeover",
            Direction::Handback => "handback",
        }
    }

    /// The proxy that serves in the end.
    fn proxy(self) -> &'static str {
        match self {
            Direction::Takeover => "Signpost",
            Direction::Handback => "kube-proxy",
        }
    }

    /// The final state in words.
    fn state(self) -> &'static str {
        match self {
            Direction::Takeover => "Signpost serves",
            Direction::Handback => "kube-proxy serves",
        }
    }

    /// Returns the final state in words, if the conditions of a NodeProxy show it. Pure.
    fn reached(self, conditions: &[Condition], force: bool) -> Option<&'static str> {
        let is_ready = status_of(conditions, READY) == Status::True;
        let is_reached = match (self, Serving::of(conditions)) {
            (Direction::Handback, Serving::KubeProxy) => true,
            // --force accepts that kube-proxy has no rules there.
            (Direction::Handback, Serving::Neither) => {
                return force.then_some("handed back, but no proxy serves");
            }
            (Direction::Handback, _) => false,
            // Rules that an agent cannot remove remain, and --force accepts that, as it accepts a node
            // that is not ready. Without programmed rules, Signpost does not serve.
            (Direction::Takeover, Serving::Both) => {
                force && (is_ready || is_programmed(conditions))
            }
            // With --force, the agent has Signpost's rules in each family from which it removed others, and
            // leaves one without rules as it was.
            (Direction::Takeover, Serving::Signpost) => match is_ready {
                false if force && is_programmed(conditions) => true,
                false if force && is_programmed_in_part(conditions) => {
                    return Some("Signpost serves, but not in each address family");
                }
                is_ready => is_ready,
            },
            (Direction::Takeover, _) => false,
        };
        is_reached.then(|| self.state())
    }
}

/// Returns whether Signpost's rules are programmed, in each family that the node's kernel supports.
fn is_programmed(conditions: &[Condition]) -> bool {
    let mut supported = supported(conditions).peekable();
    supported.peek().is_some() && supported.all(|status| status == "True")
}

/// Returns whether Signpost's rules are programmed in one family, and it is known of each.
fn is_programmed_in_part(conditions: &[Condition]) -> bool {
    let is_known = supported(conditions).all(|status| ["True", "False"].contains(&status));
    is_known && supported(conditions).any(|status| status == "True")
}

/// Returns the status of the condition of each family that the node's kernel supports.
fn supported(conditions: &[Condition]) -> impl Iterator<Item = &str> {
    let families = [IPV4_PROGRAMMED, IPV6_PROGRAMMED];
    let of_families = conditions.iter();
    let of_families =
        of_families.filter(move |condition| families.contains(&condition.type_.as_str()));
    of_families
        .filter(|condition| condition.reason != KERNEL_UNSUPPORTED.name)
        .map(|condition| condition.status.as_str())
}

#[cfg(test)]
mod tests;
