//! Tests a backend's rules in a kernel with real connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use backend::{Backend, Change as _, Rendered, Size};
use dataplane::{Choice, Dataplane, Family, Origin, Packet, Port, Protocol, Target, Verdict};
use socket2::Domain;
use testkit::address_plan as addresses;

use super::simulated::{Form, empty, print_families, sum};
use super::{Action, Depth, Dump, Judgement, Script};
use crate::network::{
    Namespace, Outcome, Plan, PlannedNode, Probe, Server, Topology, probe, sctp_socket,
    start_server,
};

/// The timeout of an answer: far longer than needed, so that a busy machine causes no failures.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before no answer counts as a drop.
const SILENCE: Duration = Duration::from_millis(300);
/// The number of concurrent connections, and the maximum number of batches until every expected
/// endpoint has answered: with 8 endpoints, all of 300 connections miss a given one once in 10^17.
const BATCH: u32 = 12;
const BATCHES: u32 = 25;

/// A backend in the namespace of node 1, with servers for all endpoints of the scenario.
#[derive(Debug)]
pub struct RealKernel<B: Backend> {
    families: [(B, Rendered<B::Rules>); 2],
    form: Form<B::Rules>,
    desired: Dataplane,
    #[expect(dead_code, reason = "held for the sake of their end")]
    servers: Vec<Server>,
    topology: Topology,
}

// === impl RealKernel ===

impl<B: Backend + Send> RealKernel<B> {
    /// Builds the network of `script`. `open` creates the backend and is called inside the node's
    /// namespace.
    pub fn build<E>(
        script: &Script,
        open: impl FnOnce() -> Result<[B; 2], E> + Send,
        form: Form<B::Rules>,
    ) -> Result<RealKernel<B>>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let endpoints = endpoints_of(script)?;
        let topology = Topology::build(&plan_of(script, &endpoints)?)?;
        for family in Family::ALL {
            let address = addresses::shared_cluster_ip(family);
            // The kernel does not use an address with this scope as a masquerade address.
            topology
                .node(1)?
                .configure(&format!("address add {address} dev lo scope host"))?;
        }
        let link_local = addresses::link_local_address();
        let here = format!("address add {link_local}/32 dev lo scope host");
        topology.node(1)?.configure(&here)?;
        let via = addresses::node_address(1, Family::of(link_local));
        let route = format!("route add {link_local} via {via} dev node1 onlink");
        topology.world().configure(&route)?;
        let mut by_address: BTreeMap<IpAddr, Vec<SocketAddr>> = BTreeMap::new();
        for endpoint in &endpoints {
            by_address.entry(endpoint.ip()).or_default().push(*endpoint);
        }
        let mut servers = Vec::new();
        for (address, endpoints) in &by_address {
            let home = home_of(&topology, *address)?;
            servers.push(start_server(home, &address.to_string(), endpoints)?);
        }
        let backends = topology.node(1)?.enter(open)??;
        Ok(RealKernel {
            families: backends.map(|backend| (backend, empty())),
            form,
            desired: Dataplane::default(),
            servers,
            topology,
        })
    }
}

impl<B: Backend + Send> RealKernel<B> {
    fn program(&mut self, desired: &Dataplane) -> Result<Size> {
        self.desired = desired.clone();
        let mut size = Size::default();
        let node = self.topology.node(1)?;
        for (backend, observed) in &mut self.families {
            let expected = backend.render(desired, observed);
            let change = backend.diff(&observed.rules, &expected);
            size = sum(size, change.size());
            if !change.size().is_empty() {
                // Sysctls apply to the namespace of the thread that writes them.
                let _receipt = node.enter(|| backend.commit(change))??;
            }
            *observed = Rendered {
                dataplane: desired.clone(),
                rules: expected,
            };
        }
        Ok(size)
    }
}

impl<B: Backend> RealKernel<B> {
    /// Returns the namespace of the node under test.
    pub fn node(&self) -> Result<&Namespace> {
        self.topology.node(1)
    }

    /// Returns the last programmed dataplane.
    pub fn desired(&self) -> &Dataplane {
        &self.desired
    }

    /// Returns the namespace of a pod.
    pub fn pod(&self, node: u8, number: u8) -> Result<&Namespace> {
        self.topology.pod(node, number)
    }

    fn ask(&self, packet: &Packet, deadline: Duration, count: u32) -> Result<Vec<Outcome>> {
        let inside = self.sender_of(packet)?;
        let connection = Probe {
            protocol: packet.protocol,
            source: Some(packet.source),
            destination: SocketAddr::new(packet.destination, packet.port.get()),
            deadline,
        };
        probe(inside, &connection, count)
    }

    fn sender_of(&self, packet: &Packet) -> Result<&Namespace> {
        match &packet.origin {
            Origin::Pod { .. } | Origin::PodElsewhere { .. } => {
                home_of(&self.topology, packet.source)
            }
            Origin::Node | Origin::Loopback => self.topology.node(1),
            Origin::Outside { .. } => self.topology.outside(),
        }
    }

    /// Checks that one of `expected` answers every connection, and that all of them answer.
    fn judge_delivery(&self, packet: &Packet, expected: &[Choice]) -> Result<Judgement> {
        let mut missing: BTreeSet<Choice> = expected.iter().copied().collect();
        for _ in 0..BATCHES {
            for outcome in self.ask(packet, PATIENCE, BATCH)? {
                match expected.iter().find(|c| self.shows(packet, c, &outcome)) {
                    Some(choice) => missing.remove(choice),
                    None => return Ok(Judgement::Otherwise(outcome.to_string())),
                };
            }
            if missing.is_empty() {
                return Ok(Judgement::AsExpected);
            }
        }
        let silent: Vec<String> = missing.iter().map(Choice::to_string).collect();
        let text = format!("never answered by {}", silent.join(", "));
        Ok(Judgement::Otherwise(text))
    }

    /// Whether `outcome` is the one for a client whose packet was sent to `choice`.
    fn shows(&self, packet: &Packet, choice: &Choice, outcome: &Outcome) -> bool {
        let Outcome::Answered { at, saw, .. } = outcome else {
            return false;
        };
        let Target { address, port } = choice.target;
        let source_as_chosen = if choice.masquerade {
            self.is_masqueraded(saw)
        } else {
            saw.ip() == packet.source
        };
        *at == SocketAddr::new(address, port.get()) && source_as_chosen
    }

    /// Whether the source is a masquerade address of the node. Cluster IPs that the node has as
    /// well do not count.
    fn is_masqueraded(&self, saw: &SocketAddr) -> bool {
        self.desired.node().local_addresses.contains(&saw.ip())
            && saw.ip() != addresses::shared_cluster_ip(Family::of(saw.ip()))
    }

    /// Checks that every connection ends as `expected`.
    fn judge_all(
        &self,
        packet: &Packet,
        deadline: Duration,
        expected: impl Fn(&Outcome) -> bool,
    ) -> Result<Judgement> {
        let outcomes = self.ask(packet, deadline, 2)?;
        let other = outcomes.iter().find(|outcome| !expected(outcome));
        Ok(other.map_or(Judgement::AsExpected, |outcome| {
            Judgement::Otherwise(outcome.to_string())
        }))
    }

    /// Checks for silence. An unmatched packet to an unused address is lost just like a dropped
    /// one, so a client can only observe whether an answer arrives.
    fn judge_silence(&self, packet: &Packet) -> Result<Judgement> {
        let outcomes = self.ask(packet, SILENCE, 1)?;
        let answer = outcomes
            .iter()
            .find(|o| matches!(o, Outcome::Answered { .. } | Outcome::Refused));
        Ok(match answer {
            Some(answer) => Judgement::Otherwise(answer.to_string()),
            None => {
                Judgement::NotAsked("no interface has this address, and silence may be a drop too")
            }
        })
    }

    /// Whether `outcome` is that of a packet that no rule redirects: the destination itself answers
    /// the sender, or it is an address of the node without a server.
    fn is_untouched(&self, packet: &Packet, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Answered { at, saw, .. } => {
                at.ip() == packet.destination && saw.ip() == packet.source
            }
            Outcome::Refused => self
                .desired
                .node()
                .local_addresses
                .contains(&packet.destination),
            Outcome::TimedOut | Outcome::Failed(_) => false,
        }
    }
}

impl<B: Backend + Send> Depth for RealKernel<B> {
    fn apply(&mut self, desired: &Dataplane) -> Result<Size> {
        self.program(desired)
    }

    fn restart(&mut self, desired: &Dataplane) -> Result<Size> {
        for (backend, observed) in &mut self.families {
            *observed = Rendered {
                dataplane: Dataplane::default(),
                rules: backend.observe()?,
            };
        }
        self.program(desired)
    }

    fn judge(&mut self, packet: &Packet, expected: &Verdict) -> Result<Judgement> {
        if packet.protocol == Protocol::Sctp && sctp_socket(Domain::IPV4)?.is_none() {
            return Ok(Judgement::NotAsked("this kernel has no SCTP sockets"));
        }
        if packet.origin == Origin::Loopback {
            // ip_route_output rejects a loopback source on any other interface.
            return Ok(Judgement::NotAsked(
                "no kernel sends from loopback to elsewhere",
            ));
        }
        match expected {
            Verdict::Deliver(choices) => self.judge_delivery(packet, choices),
            Verdict::Reject => self.judge_all(packet, PATIENCE, |o| *o == Outcome::Refused),
            Verdict::Drop => self.judge_all(packet, SILENCE, |o| *o == Outcome::TimedOut),
            Verdict::Untouched if home_of(&self.topology, packet.destination).is_err() => {
                self.judge_silence(packet)
            }
            Verdict::Untouched => {
                self.judge_all(packet, PATIENCE, |o| self.is_untouched(packet, o))
            }
        }
    }

    fn connect(&mut self, packet: &Packet, times: u32) -> Result<Option<Vec<Verdict>>> {
        let outcomes = self.ask(packet, PATIENCE, times)?;
        let verdicts = outcomes.iter().map(|outcome| match outcome {
            Outcome::Answered { at, saw, .. } => {
                let port = Port::new(at.port()).context("port 0 has answered")?;
                Ok(Verdict::Deliver(vec![Choice {
                    target: Target {
                        address: at.ip(),
                        port,
                    },
                    weight: 1,
                    masquerade: self.is_masqueraded(saw),
                }]))
            }
            Outcome::Refused => Ok(Verdict::Reject),
            Outcome::TimedOut => Ok(Verdict::Drop),
            Outcome::Failed(why) => bail!("a connection failed: {why}"),
        });
        verdicts.collect::<Result<_>>().map(Some)
    }

    fn dump(&mut self, dump: Dump) -> Result<Option<String>> {
        if dump != self.form.dump {
            return Ok(None);
        }
        let [(ipv4, _), (ipv6, _)] = &mut self.families;
        let (ipv4, ipv6) = (ipv4.observe()?, ipv6.observe()?);
        Ok(Some(print_families(&[&ipv4, &ipv6], self.form.print)))
    }
}

/// Returns all endpoints in the sections of `script`, each with its port there.
fn endpoints_of(script: &Script) -> Result<BTreeSet<SocketAddr>> {
    let mut endpoints = BTreeSet::new();
    let applied = script.steps.iter().filter_map(|step| match &step.action {
        Action::Apply(names) => Some(names),
        _ => None,
    });
    let names: BTreeSet<&String> = applied.flatten().collect();
    for name in names {
        let Some(section) = script.sections.get(name) else {
            continue;
        };
        let documents: Vec<serde_json::Value> =
            serde_saphyr::from_multiple(&section.text).with_context(|| name.clone())?;
        for slice in documents.iter().filter(|d| d["kind"] == "EndpointSlice") {
            let list = |field: &str| slice[field].as_array().cloned().unwrap_or_default();
            for endpoint in list("endpoints") {
                let Some(address) = endpoint["addresses"][0].as_str() else {
                    continue;
                };
                let Ok(address) = address.parse::<IpAddr>() else {
                    continue;
                };
                let ports = list("ports");
                let ports = ports.iter().filter_map(|port| port["port"].as_u64());
                let ports = ports.filter_map(|port| u16::try_from(port).ok());
                endpoints.extend(ports.map(|port| SocketAddr::new(address, port)));
            }
        }
    }
    Ok(endpoints)
}

/// Plans pods for all endpoints and sending pods, and clients for all outside senders.
fn plan_of(script: &Script, endpoints: &BTreeSet<SocketAddr>) -> Result<Plan> {
    let mut nodes: BTreeMap<u8, PlannedNode> = BTreeMap::new();
    for number in [1, 2] {
        let pods = BTreeSet::new();
        nodes.insert(number, PlannedNode { number, pods });
    }
    let mut clients = BTreeSet::new();
    let mut add_pod = |address: IpAddr| {
        if let Some((number, pod)) = pod_at(address) {
            let pods = BTreeSet::new();
            let node = nodes.entry(number).or_insert(PlannedNode { number, pods });
            node.pods.insert(pod);
        }
    };
    for endpoint in endpoints {
        add_pod(endpoint.ip());
    }
    for step in &script.steps {
        let (Action::Packet { packet, .. } | Action::Keeps { packet, .. }) = &step.action else {
            continue;
        };
        add_pod(packet.source);
        if matches!(packet.origin, Origin::Outside { .. }) {
            let family = Family::of(packet.source);
            let client = (1..=253)
                .find(|n| addresses::outside_client(*n, family) == packet.source)
                .with_context(|| format!("{} is not a client outside", packet.source))?;
            clients.insert(client);
        }
    }
    Ok(Plan {
        nodes: nodes.into_values().collect(),
        clients,
        others: Vec::new(),
    })
}

/// Returns the numbers of the node and of the pod with `address` in the plan.
fn pod_at(address: IpAddr) -> Option<(u8, u8)> {
    let family = Family::of(address);
    let node = (1..=9).find(|node| addresses::pod_cidr(*node, family).contains(&address))?;
    let pod = (2..=254).find(|pod| addresses::pod_address(node, *pod, family) == address)?;
    Some((node, pod))
}

/// Returns the namespace with `address` in the plan: a pod, or a node with its own server.
fn home_of(topology: &Topology, address: IpAddr) -> Result<&Namespace> {
    if let Some((node, pod)) = pod_at(address) {
        return topology.pod(node, pod);
    }
    let family = Family::of(address);
    if [
        addresses::shared_cluster_ip(family),
        addresses::link_local_address(),
    ]
    .contains(&address)
    {
        return topology.node(1);
    }
    let node = (1..=9).find(|node| {
        [
            addresses::node_address,
            addresses::second_address,
            addresses::bridge_address,
        ]
        .iter()
        .any(|of_node| of_node(*node, family) == address)
    });
    match node {
        Some(node) => topology.node(node),
        None => bail!("{address} is neither a pod's nor a node's in the address plan"),
    }
}
