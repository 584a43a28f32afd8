//! Two nodes with servers, an agent on the first, and clients of localhost on it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use crds::condition::FEATURES_HONOURED;
use dataplane::{Family, Protocol};
use tempfile::TempDir;
use testkit::address_plan as addresses;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{
    Namespace, Outcome, Plan, PlannedNode, Probe, Server, Topology, probe, start_server,
};

use crate::manifests::Manifests;

/// The servers: their names, nodes and pod numbers.
pub(crate) const SERVERS: [(&str, u8, u8); 3] = [("web-1", 1, 5), ("web-2", 1, 6), ("web-3", 2, 7)];
/// The port on which servers listen with both protocols.
pub(crate) const SERVER_PORT: u16 = 8080;
/// The node port of both ports of the Service.
pub(crate) const NODE_PORT: u16 = 30080;

/// The deadline of waits.
const PROMPTLY: Duration = Duration::from_secs(30);
/// The timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The number of connections: all of them miss a given one of three endpoints once in 10^7 times.
const CONNECTIONS: u32 = 40;

/// The environment of a test; everything ends on drop.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) manifests: Manifests,
    agent: Option<LoneAgent>,
    folder: TempDir,
    #[expect(
        dead_code,
        reason = "servers stop when they are dropped, before their namespaces go"
    )]
    servers: Vec<Server>,
    topology: Topology,
}

// === impl Stage ===

impl Stage {
    /// Builds everything but the agent, which needs a profile first.
    pub(crate) fn build() -> Result<Stage> {
        let planned = |number| PlannedNode {
            number,
            pods: SERVERS
                .iter()
                .filter(|(_, node, _)| *node == number)
                .map(|(_, _, pod)| *pod)
                .collect(),
        };
        let topology = Topology::build(&Plan {
            nodes: vec![planned(1), planned(2)],
            ..Plan::default()
        })?;
        let mut servers = Vec::new();
        for (name, node, pod) in SERVERS {
            let listens = Family::ALL.map(|family| {
                SocketAddr::new(addresses::pod_address(node, pod, family), SERVER_PORT)
            });
            servers.push(start_server(topology.pod(node, pod)?, name, &listens)?);
        }
        let folder = tempfile::tempdir()?;
        Ok(Stage {
            manifests: Manifests::create_in(folder.path())?,
            agent: None,
            folder,
            servers,
            topology,
        })
    }

    pub(crate) fn node(&self) -> Result<&Namespace> {
        self.topology.node(1)
    }

    pub(crate) fn start_agent(&mut self) -> Result<()> {
        let agent = LoneAgent::start(&Workplace {
            node: self.node()?.clone(),
            source: Source::Manifests(self.manifests.directory().to_owned()),
            folder: self.folder.path().to_owned(),
            sysctls: Sysctls::Writable,
            deadline: PROMPTLY,
        })?;
        self.agent = Some(agent);
        Ok(())
    }

    pub(crate) fn agent(&self) -> Result<&LoneAgent> {
        self.agent.as_ref().context("the agent was not started")
    }

    /// Returns the node port on loopback.
    pub(crate) fn localhost(&self, family: Family) -> SocketAddr {
        SocketAddr::new(addresses::loopback(family), NODE_PORT)
    }

    /// Connects `count` times to the node port on loopback, on the node.
    pub(crate) fn probe(
        &self,
        protocol: Protocol,
        family: Family,
        count: u32,
    ) -> Result<Vec<Outcome>> {
        let asking = Probe {
            protocol,
            source: None,
            destination: self.localhost(family),
            deadline: PATIENCE,
        };
        probe(self.node()?, &asking, count)
    }

    /// Waits until all of `servers`, and no others, answer the connections.
    pub(crate) fn wait_for_answers_of(
        &self,
        protocol: Protocol,
        family: Family,
        servers: &BTreeSet<&str>,
    ) -> Result<()> {
        let mut last = Vec::new();
        let what = format!("answers of {servers:?} over {family} and {protocol}");
        let waited = self.agent()?.wait_for(&what, |_| {
            if !is_answered(&self.probe(protocol, family, 1)?) {
                return Ok(None);
            }
            last = self.probe(protocol, family, CONNECTIONS)?;
            let names = last.iter().filter_map(|outcome| match outcome {
                Outcome::Answered { server, .. } => Some(server.as_str()),
                _ => None,
            });
            let as_wanted = is_answered(&last) && names.collect::<BTreeSet<_>>() == *servers;
            Ok(as_wanted.then_some(()))
        });
        waited.with_context(|| format!("the last connections: {last:?}"))
    }

    /// Waits until connections are refused.
    pub(crate) fn wait_for_refusal(&self, protocol: Protocol, family: Family) -> Result<()> {
        let what = format!("a refusal over {family} and {protocol}");
        self.agent()?.wait_for(&what, |_| {
            let outcomes = self.probe(protocol, family, 1)?;
            Ok((outcomes == [Outcome::Refused]).then_some(()))
        })
    }

    /// Waits until `expected` accepts the value of a metric.
    pub(crate) fn wait_for_metric(&self, name: &str, expected: impl Fn(f64) -> bool) -> Result<()> {
        self.agent()?.wait_for(name, |agent| {
            let value = agent.metric(name)?;
            Ok(expected(value).then_some(()))
        })
    }

    /// Waits until `expected` accepts the status and the message of the condition.
    pub(crate) fn wait_for_features_honoured(
        &self,
        expected: impl Fn(&(String, String)) -> bool,
    ) -> Result<()> {
        let mut last = None;
        let waited = self
            .agent()?
            .wait_for("what is honoured to be said", |agent| {
                let said = agent.condition(FEATURES_HONOURED)?;
                last = said.map(|condition| (condition.status, condition.message));
                Ok(last.as_ref().filter(|last| expected(last)).map(drop))
            });
        waited.with_context(|| format!("it was last {last:?}"))
    }
}

fn is_answered(outcomes: &[Outcome]) -> bool {
    let mut outcomes = outcomes.iter();
    outcomes.all(|outcome| matches!(outcome, Outcome::Answered { .. }))
}
