//! `explain` and `trace`: query the agents of nodes about a Service or a packet.

mod destination;
mod differences;
mod subject;
mod way;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod, Service};

use crate::advice::{Problem, problem};
use crate::agent::{Agent, Agreement, Answer};
use crate::arguments::{Access, AgentOutput, ExplainOptions, TraceOptions};
use crate::cluster::Cluster;
use crate::ending::Ending;
use crate::installation::read_agents;
use crate::{print, program_name};
use destination::Destination;
use subject::{Reference, about};
use way::{Arrival, Departure};

pub(crate) use differences::{Comparison, Differences};

/// The number of agents queried concurrently.
const AT_ONCE: usize = 16;

/// A packet in the syntax of the agent whose rules it traverses.
struct Question {
    agent: Agent,
    packet: String,
    destination: Destination,
}

/// Explains a Service, an address or a node port.
pub(crate) async fn explain(access: &Access, options: &ExplainOptions) -> anyhow::Result<Ending> {
    let cluster = Cluster::open(access).await?;
    if options.all_nodes {
        let found = compare(&cluster, options).await?;
        print(&found.render())?;
        return Ok(found.ending());
    }
    let about = question(&cluster, options)?;
    let agents = read_agents(&cluster).await?;
    let agent = choose(&agents, options.node.as_deref())?;
    let answer = ask(&cluster, agent, &["explain", &about], options.output).await?;
    Ok(answer.agreement.into())
}

/// Traces the path of a packet.
pub(crate) async fn trace(access: &Access, options: &TraceOptions) -> anyhow::Result<Ending> {
    let cluster = Cluster::open(access).await?;
    let Question {
        agent,
        packet,
        destination,
    } = resolve(&cluster, options).await?;
    let answer = ask(&cluster, &agent, &["trace", &packet], options.output).await?;
    let Some(found) = destination.weigh(&answer, &agent.node, &packet) else {
        return Ok(Ending::Success);
    };
    eprintln!("{}: {}", program_name(), found.problem);
    eprintln!("  next: {}", found.problem.next);
    Ok(found.ending)
}

/// Returns the path of a packet as JSON, and the node whose agent answered.
pub(crate) async fn follow(
    cluster: &Cluster,
    options: &TraceOptions,
) -> anyhow::Result<(String, Answer)> {
    let Question { agent, packet, .. } = resolve(cluster, options).await?;
    let arguments = ["trace", &packet, "--output", "json"];
    let answer = agent.ask(cluster, &arguments).await?;
    Ok((agent.node, answer))
}

/// Looks up the objects that the options name, and chooses the agent.
async fn resolve(cluster: &Cluster, options: &TraceOptions) -> anyhow::Result<Question> {
    let namespace = options.namespace.as_deref();
    let namespace = namespace.unwrap_or(cluster.default_namespace());
    let to = Reference::parse(&options.to, namespace)?;
    let destination = Destination::of(&to);
    let arrival = match to {
        Reference::Other(text) => Arrival::Given(text),
        Reference::Pod {
            namespace,
            name,
            port,
        } => {
            let pod: Pod = cluster.read_in(&namespace, &name).await?;
            Arrival::of_pod(&pod, port)?
        }
        Reference::Service {
            namespace,
            name,
            port,
        } => {
            let service: Service = cluster.read_in(&namespace, &name).await?;
            Arrival::of_service(&service, port)?
        }
        Reference::Node { name, port } => Arrival::of_node(&cluster.read_one(&name).await?, port)?,
    };
    let departure = match Reference::parse(&options.from, namespace)? {
        Reference::Other(text) => Departure::given(text),
        Reference::Pod {
            namespace, name, ..
        } => Departure::of_pod(&cluster.read_in(&namespace, &name).await?)?,
        Reference::Node { name, .. } => {
            let node: Node = cluster.read_one(&name).await?;
            Departure::of_node(&node)?
        }
        Reference::Service { .. } => {
            let what = format!("{} sends no packets", options.from);
            let next = "give the Pod or the node that does, as pod/NAME or node/NAME";
            return Err(problem(what, next).into());
        }
    };
    let agents = read_agents(cluster).await?;
    // Other nodes leave a packet to a port of this node as it is.
    let asked = options.node.as_deref().or(destination.node());
    let agent = choose(&agents, asked.or(departure.node.as_deref()))?;
    let packet = way::packet(&departure, &arrival, &agent.node)?;
    Ok(Question {
        agent: agent.clone(),
        packet,
        destination,
    })
}

/// Asks an agent, and prints its answer.
async fn ask(
    cluster: &Cluster,
    agent: &Agent,
    arguments: &[&str],
    output: AgentOutput,
) -> anyhow::Result<Answer> {
    let output = match output {
        AgentOutput::Text => "text",
        AgentOutput::Json => "json",
    };
    let arguments = [arguments, &["--output", output]].concat();
    let answer = agent.ask(cluster, &arguments).await?;
    eprintln!("node {}:", agent.node);
    print(&answer.text)?;
    Ok(answer)
}

/// Returns the subject of `explain` in the agent's syntax.
fn question(cluster: &Cluster, options: &ExplainOptions) -> Result<String, Problem> {
    about(&options.about, cluster.default_namespace())
}

/// Queries all agents for the differences between their kernels and the desired state.
pub(crate) async fn compare(
    cluster: &Cluster,
    options: &ExplainOptions,
) -> anyhow::Result<Differences> {
    let about = question(cluster, options)?;
    let arguments: &[&str] = &["explain", &about, "--output", "json"];
    let agents = read_agents(cluster).await?;
    if agents.is_empty() {
        return Err(no_agent().into());
    }
    // Each future owns its agent, because the compiler cannot prove that one borrowing it is Send.
    let asked = agents.into_iter().map(|agent| async move {
        let answer = agent.ask(cluster, arguments).await;
        (agent.node, answer)
    });
    let answers = futures::stream::iter(asked).buffered(AT_ONCE);
    let mut found = Differences::default();
    for (node, answer) in answers.collect::<Vec<_>>().await {
        match answer {
            Ok(answer) => found.add(node, &answer),
            Err(error) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                found.fail(node, runtime::chain(error).to_string());
            }
        }
    }
    Ok(found)
}

fn no_agent() -> Problem {
    let next = "`kubectl get pods -A -l app.kubernetes.io/name=signpost` shows what is installed";
    problem("no agent runs", next)
}

/// Returns the agent of `node`, or the first agent.
fn choose<'a>(agents: &'a [Agent], node: Option<&str>) -> Result<&'a Agent, Problem> {
    let Some(node) = node else {
        return agents.first().ok_or_else(no_agent);
    };
    let found = agents.iter().find(|agent| agent.node == node);
    found.ok_or_else(|| {
        let next = "`kubectl signpost nodes` lists nodes, --node names one";
        problem(format!("no agent runs on node {node}"), next)
    })
}

impl From<Agreement> for Ending {
    fn from(agreement: Agreement) -> Ending {
        match agreement {
            Agreement::Agrees => Ending::Success,
            Agreement::Differs => Ending::ProblemFound,
        }
    }
}
