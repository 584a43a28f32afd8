//! The agent is killed after each write of a takeover. Failure story T363.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::condition::{FOREIGN_PROXY_DETECTED, READY};
use crds::effective::hash::ConfigHash;
use crds::profile::handover::Handover;
use dataplane::{Family, Protocol};
use testkit::address_plan as addresses;
use tests::agent_tracer::{Tracer, Writers};
use tests::extent::is_exhaustive;
use tests::network::{Connections, Kind, Way};
use tests::questions::{Client, Questions};

use crate::handovers::{is_gone, list_everything};
use crate::stage::{CLIENT, Mode, NODE_PORT, SERVING, Stage};

/// The interval between two requests of a connection that is kept.
const EVERY: Duration = Duration::from_millis(100);

/// The write after which the agent is killed if not after each one. From iptables, there are a dozen, and after this
/// one some chains of the first family are gone.
const ONE_OF_THEM: usize = 4;

/// A takeover that the profile has asked for.
struct Takeover {
    hash: ConfigHash,
    questions: Questions,
    connections: Connections,
    tracer: Tracer,
}

/// After whichever write of a takeover the agent is killed, every client is served and every connection goes on,
/// and the next agent completes it: nothing of kube-proxy is left, and nothing is missing of Signpost.
pub(crate) fn is_completed(stage: &mut Stage, mode: Mode) -> Result<()> {
    let writes: Vec<usize> = match is_exhaustive() {
        true => (1..=count_writes(stage, mode)?).collect(),
        false => vec![ONE_OF_THEM],
    };
    for write in &writes {
        stage.clear()?;
        let killed = kill(stage, mode, *write);
        killed.with_context(|| format!("killed after write {write} of {writes:?}"))?;
    }
    println!("    killed after writes {writes:?}");
    Ok(())
}

/// Takes over, and asks after each write. Returns their number.
fn count_writes(stage: &mut Stage, mode: Mode) -> Result<usize> {
    let mut takeover = begin(stage, mode)?;
    let mut writes = 0;
    let look = |write| {
        writes = write;
        takeover.questions.ask(&format!("after write {write}"))
    };
    let is_done = || is_applied(stage, &takeover.hash);
    takeover.tracer.reach(usize::MAX, is_done, look)?;
    ensure!(writes > 1, "{writes} writes tell little");
    takeover.tracer.kill()?;
    stage.agent = None;
    finish(stage, mode, takeover.questions, takeover.connections)?;
    Ok(writes)
}

/// Takes over with an agent that is killed after this write, and with another one.
fn kill(stage: &mut Stage, mode: Mode, write: usize) -> Result<()> {
    let mut takeover = begin(stage, mode)?;
    let is_done = || is_applied(stage, &takeover.hash);
    let reached = takeover.tracer.reach(write, is_done, |_| Ok(()))?;
    ensure!(reached, "there was no such write");
    takeover.tracer.kill()?;
    stage.agent = None;
    takeover.questions.ask("after its end")?;
    stage.launch_agent()?;
    takeover.questions.ask("while the next one starts")?;
    stage.wait_for_applied(&takeover.hash)?;
    finish(stage, mode, takeover.questions, takeover.connections)
}

/// Asks an agent beside the rules of kube-proxy to take over, and traces it.
fn begin(stage: &mut Stage, mode: Mode) -> Result<Takeover> {
    stage.start_kube_proxy(mode)?;
    stage.start_agent()?;
    stage.wait_for_condition(FOREIGN_PROXY_DETECTED, |found| found.status == "True")?;
    stage.stop_kube_proxy();
    let ways = ways(stage)?;
    let connections = Connections::start(&ways, &[Kind::Kept], EVERY)?;
    let clients = ways.into_iter().map(|way| Client {
        way,
        servers: SERVING.map(|pod| format!("web-{pod}")).into(),
        at_first: None,
        is_served: true,
    });
    let questions = Questions::begin(clients.collect())?;
    let trace = stage.state().with_file_name("trace");
    let tracer = Tracer::of_stopped(stage.agent()?, Writers::All, &trace)?;
    let hash = stage.configure(Handover::Takeover)?;
    tracer.go_on()?;
    Ok(Takeover {
        hash,
        questions,
        connections,
        tracer,
    })
}

fn is_applied(stage: &Stage, hash: &ConfigHash) -> Result<bool> {
    let status = stage.agent()?.status()?.unwrap_or_default();
    Ok(status.applied_hash.as_ref() == Some(hash))
}

/// All are served, nothing of kube-proxy is left, and another agent has nothing to write.
fn finish(
    stage: &mut Stage,
    mode: Mode,
    questions: Questions,
    connections: Connections,
) -> Result<()> {
    questions.finish()?;
    stage.agent = None;
    stage.start_agent()?;
    stage.wait_for_condition(READY, |ready| ready.status == "True")?;
    let written = stage.agent()?.metric("signpost_elements_written_total")?;
    ensure!(written == 0.0, "{written} were missing or left over");
    // Virtual servers end with their connections.
    let rules = match mode {
        Mode::Ipvs => Mode::Iptables,
        _ => mode,
    };
    ensure!(
        is_gone(stage, rules)?,
        "some of kube-proxy is left:\n{}",
        list_everything(stage)?
    );
    stage.wait_for_condition(FOREIGN_PROXY_DETECTED, |found| found.status == "False")?;
    ensure!(stage.has_signpost_tables()?);
    connections.finish_unharmed()
}

fn ways(stage: &Stage) -> Result<Vec<Way>> {
    let topology = stage.topology();
    let mut ways = Vec::new();
    for family in Family::ALL {
        let cluster_ip = SocketAddr::new(addresses::cluster_ip(10, family), 80);
        let node_port = SocketAddr::new(addresses::node_address(1, family), NODE_PORT);
        for (from, inside, destination) in [
            ("a pod", topology.pod(1, CLIENT)?, cluster_ip),
            ("the node", topology.node(1)?, cluster_ip),
            ("a client outside", topology.outside()?, node_port),
        ] {
            ways.push(Way {
                from: from.to_owned(),
                inside: inside.clone(),
                protocol: Protocol::Tcp,
                destination,
            });
        }
    }
    Ok(ways)
}
