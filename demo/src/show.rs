//! `make demo`: demonstrates Signpost on one machine without a cluster.
//!
//! It uses a node, three servers and two clients in separate network namespaces, the real agent
//! with a copy of `examples/demo`, and real connections. Everything that it creates is removed
//! again, also after a failure, and nothing outside these namespaces is changed.

mod agent;
mod agent_report;
mod crowd;
mod interruption;
mod manifests;
mod screen;
mod stage;
mod summary;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use crds::NodeProxyStatus;
use tempfile::TempDir;

pub use interruption::{Interrupted, Interruption};
pub use screen::{Screen, Style};
pub use summary::{Removal, Restart, Spread, Summary};

use agent::{wait_for_status, wait_until_ready};
use agent_report::{interesting_part, is_ready, newest_writes, without_phases};
use crowd::Crowd;
use manifests::Manifests;
use stage::{Path, SERVERS, Stage, drawing};

use crate::lone_agent::{LoneAgent, Source, Sysctls, Workplace};

/// The number of connections from each client to a Service. All of them miss one of three servers
/// with a probability of one in 10^20.
const CONNECTIONS: u32 = 120;
/// The number of consecutive connections of each client that confirm a stable state. All of them
/// miss one of three servers with a probability of one in 10^17.
const LASTING: usize = 100;
/// The pod whose endpoints are removed.
const REMOVED: &str = "web-2";
/// The file with the endpoints.
const ENDPOINTS: &str = "web-endpoints.yaml";
/// The timeout of every wait for the agent.
const PROMPTLY: Duration = Duration::from_secs(10);

/// The resources that the demo has created and not yet removed.
#[derive(Debug)]
struct Scene {
    // Fields are dropped in this order: the agent, the servers and their namespaces, the files.
    agent: LoneAgent,
    stage: Stage,
    manifests: Manifests,
    workplace: Workplace,
    folder: TempDir,
}

/// The resources that must be gone at the end.
#[derive(Debug, Default)]
struct Made {
    processes: Vec<u32>,
    folder: Option<PathBuf>,
}

/// Shows everything on `screen`, and removes everything that it created. Takes a few seconds.
/// Requires [`crate::network::enter_private_namespaces`].
///
/// # Errors
///
/// [`Interrupted`] if the user interrupts, and any error that keeps the demo from continuing.
/// Failed connections are not errors: the summary counts them.
pub fn perform(screen: &mut Screen<'_>) -> Result<Summary> {
    let mut made = Made::default();
    let shown = show(screen, &mut made);
    let left_behind = observe_leftovers(&made)?;
    // Ctrl-C also interrupts the agent and the servers, whose end may be noticed first.
    let shown = match screen.interruption().check() {
        Err(interrupted) => Err(interrupted.into()),
        Ok(()) => shown,
    };
    let shown = match &*left_behind {
        [] => shown,
        left => shown.with_context(|| format!("failed to remove {}", left.join(", "))),
    };
    let summary = Summary {
        left_behind,
        ..shown?
    };
    screen.title("That was all")?;
    match &*summary.left_behind {
        [] => screen.line("The agent, the namespaces and the files of this demo are gone.")?,
        left => screen.failure(format!("Left behind: {}", left.join(", ")))?,
    }
    match summary.failures() {
        0 => screen.success(format!("{} connections, 0 failed.", summary.connections()))?,
        failures => screen.failure(format!(
            "{} connections, {failures} failed.",
            summary.connections()
        ))?,
    }
    screen.line(
        "Next: read examples/demo, docs/ and ARCHITECTURE.md; `make test` proves the rest.",
    )?;
    Ok(summary)
}

fn show(screen: &mut Screen<'_>, made: &mut Made) -> Result<Summary> {
    screen.line(
        "Signpost forwards connections to Services. Here it does so, on this machine alone.",
    )?;
    let scene = set_up(screen, made)?;
    let spread = show_spread(screen, &scene)?;
    let removal = show_removal(screen, &scene)?;
    show_what_is_programmed(screen, &scene)?;
    let restart = show_restart(screen, scene, made)?;
    Ok(Summary {
        spread,
        removal,
        restart,
        left_behind: Vec::new(),
    })
}

fn set_up(screen: &mut Screen<'_>, made: &mut Made) -> Result<Scene> {
    screen.title("1. A network: each name is a network namespace with real links")?;
    let start = Instant::now();
    let stage = Stage::build()?;
    for line in drawing().lines() {
        screen.line(line)?;
    }
    screen.line(format!(
        "Up after {:.1} s, with IPv6 addresses too.",
        start.elapsed().as_secs_f64()
    ))?;

    screen.title(
        "2. The agent, on the node, with a copy of examples/demo in the place of a cluster",
    )?;
    let folder = tempfile::Builder::new().prefix("signpost-demo-").tempdir();
    let folder = folder.context("failed to make a temporary directory")?;
    made.folder = Some(folder.path().to_owned());
    let manifests = Manifests::copy_into(folder.path())?;
    let workplace = Workplace {
        node: stage.node()?.clone(),
        source: Source::Manifests(manifests.directory().to_owned()),
        folder: folder.path().to_owned(),
        sysctls: Sysctls::Writable,
        deadline: PROMPTLY,
    };
    let start = Instant::now();
    let agent = LoneAgent::start(&workplace)?;
    made.processes.push(agent.process_id());
    wait_until_ready(&agent, screen.interruption())?;
    screen.line(format!(
        "Ready after {:.1} s: Services demo/web and demo/dns are programmed.",
        start.elapsed().as_secs_f64()
    ))?;
    Ok(Scene {
        agent,
        stage,
        manifests,
        workplace,
        folder,
    })
}

fn show_spread(screen: &mut Screen<'_>, scene: &Scene) -> Result<Vec<Spread>> {
    screen.title(&format!(
        "3. {CONNECTIONS} connections on each way to a Service, and who answered"
    ))?;
    screen.columns(&SERVERS.map(|(name, _)| name))?;
    let mut spread = Vec::new();
    for path in Path::to_web().iter().chain(&Path::to_dns()) {
        let answered = scene.stage.probe(path, CONNECTIONS)?;
        screen.bars(&path.to_string(), &answered)?;
        let way = Spread {
            path: path.to_string(),
            connections: CONNECTIONS.into(),
            answered,
        };
        if way.failures() > 0 {
            screen.failure(format!("{} of them failed", way.failures()))?;
        }
        spread.push(way);
    }
    Ok(spread)
}

fn show_removal(screen: &mut Screen<'_>, scene: &Scene) -> Result<Removal> {
    screen.title(&format!(
        "4. {REMOVED} is taken out of {ENDPOINTS} while four clients connect all the time"
    ))?;
    let interruption = screen.interruption().clone();
    let what = "a status that is ready";
    let before = wait_for_status(&scene.agent, &interruption, what, is_ready)?;
    let crowd = start_crowd(&scene.stage)?;
    let start = Instant::now();
    crowd.wait_for("connections", start, LASTING, &interruption, |_| true)?;
    let renamed = scene.manifests.commit_without_pod(ENDPOINTS, REMOVED)?;
    screen.line(format!(
        "The file is replaced. {REMOVED} itself keeps running, as a pod does that is drained."
    ))?;
    let what = format!("connections to avoid {REMOVED}");
    crowd.wait_for(&what, renamed, LASTING, &interruption, |connection| {
        !connection.is_answered_by(REMOVED)
    })?;
    let connections = crowd.stop()?;
    let what = "the change in the status";
    let after = wait_for_status(&scene.agent, &interruption, what, |status| {
        status.counts.endpoints < before.counts.endpoints
            && status.sync_latency != before.sync_latency
    })?;

    let removal = Removal::of(&connections, renamed, REMOVED);
    screen.columns(&SERVERS.map(|(name, _)| name))?;
    screen.bars("before", &removal.before)?;
    screen.bars("after", &removal.after)?;
    let verdict = format!("{} connections", removal.connections);
    show_verdict(screen, &verdict, &removal.failures)?;
    match removal.last_to_removed {
        Some(last) => screen.line(format!(
            "The last connection to reach {REMOVED} was opened {last:.1?} after the file was renamed."
        ))?,
        None => screen.line(format!(
            "No connection that was opened after the file was renamed has reached {REMOVED}."
        ))?,
    }
    show_syncs_of_change(screen, &scene.agent)?;
    show_latency(screen, &after)?;
    Ok(removal)
}

/// Shows the number of failed connections and the failures.
fn show_verdict(screen: &mut Screen<'_>, connections: &str, failures: &[String]) -> Result<()> {
    let verdict = format!("{connections}, {} failed.", failures.len());
    if failures.is_empty() {
        return screen.success(verdict);
    }
    screen.failure(verdict)?;
    screen.quote(&failures.join("\n"))
}

fn show_syncs_of_change(screen: &mut Screen<'_>, agent: &LoneAgent) -> Result<()> {
    let syncs = agent.get("/debug/syncs")?;
    screen.line("What the agent did (/debug/syncs):")?;
    screen.quote(&newest_writes(&syncs).join("\n"))
}

fn show_latency(screen: &mut Screen<'_>, status: &NodeProxyStatus) -> Result<()> {
    let Some(latency) = &status.sync_latency else {
        return screen.failure("The status has no syncLatency.");
    };
    let total = latency.total;
    screen.line(format!(
        "Its status (syncLatency), from reading a change to the kernel's acknowledgement: p50 {}, max {}.",
        total.p50_microseconds, total.max_microseconds
    ))
}

fn show_what_is_programmed(screen: &mut Screen<'_>, scene: &Scene) -> Result<()> {
    screen.title("5. What is programmed: `signpost-agent explain demo/web`")?;
    screen.quote(&scene.agent.ask(&["explain", "demo/web"])?)?;
    screen
        .line("and what the node says of itself (--status FILE; in a cluster, its NodeProxy):")?;
    let what = "a status that is ready";
    let status = wait_for_status(&scene.agent, screen.interruption(), what, is_ready)?;
    screen.quote(&interesting_part(&status))
}

fn show_restart(screen: &mut Screen<'_>, scene: Scene, made: &mut Made) -> Result<Restart> {
    screen.title("6. The agent is killed (SIGKILL), and started again, while the clients go on")?;
    let Scene {
        agent,
        stage,
        manifests: _manifests,
        workplace,
        folder: _folder,
    } = scene;
    let crowd = start_crowd(&stage)?;
    let interruption = screen.interruption().clone();
    crowd.wait_for(
        "connections",
        Instant::now(),
        LASTING,
        &interruption,
        |_| true,
    )?;
    agent.kill()?;
    let killed = Instant::now();
    crowd.wait_for(
        "connections without an agent",
        killed,
        LASTING,
        &interruption,
        |_| true,
    )?;
    let agent = LoneAgent::start(&workplace)?;
    let restarted = Instant::now();
    made.processes.push(agent.process_id());
    wait_until_ready(&agent, &interruption)?;
    crowd.wait_for(
        "connections",
        Instant::now(),
        LASTING,
        &interruption,
        |_| true,
    )?;
    let connections = crowd.stop()?;
    let syncs = agent.get("/debug/syncs")?;
    // The namespaces are removed with the stage, so the agent must end first.
    drop(agent);
    drop(stage);

    let restart = Restart::of(&connections, killed, restarted, REMOVED, &syncs);
    let verdict = format!(
        "{} connections, {} of them while no agent ran",
        restart.connections, restart.without_agent
    );
    show_verdict(screen, &verdict, &restart.failures)?;
    if restart.writes.is_empty() {
        screen.success(
            "Back again, the agent read the kernel, found the desired rules, and wrote nothing:",
        )?;
    } else {
        screen.failure("Back again, the agent wrote something:")?;
    }
    screen.quote(&without_phases(&syncs).join("\n"))?;
    Ok(restart)
}

/// Starts a client on each path to `demo/web`.
fn start_crowd(stage: &Stage) -> Result<Crowd> {
    let ways = Path::to_web();
    let clients = ways
        .iter()
        .map(|path| Ok((stage.client(path.client)?, path.destination)));
    Ok(Crowd::start(&clients.collect::<Result<Vec<_>>>()?))
}

fn observe_leftovers(made: &Made) -> Result<Vec<String>> {
    let mut left = crate::network::namespaces_of(std::process::id())?;
    let processes = made.processes.iter().filter(|id| agent::runs(**id));
    left.extend(processes.map(|id| format!("process {id}")));
    let folder = made.folder.as_ref().filter(|folder| folder.exists());
    left.extend(folder.map(|folder| folder.display().to_string()));
    Ok(left)
}
