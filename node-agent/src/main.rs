//! `signpost-agent`: one node's side of Signpost.
//!
//! ```text
//! source (API server | directory) --Delivery--> Engine --Desired--> reconciler thread --> kernel
//!                                                 |                      |
//!                                               View                  Report
//!                                                 '------> Board <-------'
//!                                                            |
//!                                       status, /readyz, /metrics, /debug
//! ```

mod affinity;
mod arguments;
mod board;
mod cleanup;
mod configz;
mod conntrack;
mod debug;
mod drift;
mod duty;
mod engine;
mod events;
mod explain;
mod foreign_proxy;
mod handover;
mod health_answer;
mod health_proxy;
mod inquiry;
mod kept_file;
mod kube_proxy_routes;
mod last_good;
mod latency;
mod mechanism;
mod metrics;
mod node_config;
mod node_lock;
mod offline;
mod port_holder;
mod process;
mod process_settings;
mod relay;
mod reporter;
mod running;
mod servers;
mod service_health;
mod status;
mod support;
mod trace;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use runtime::{GRACE, chain};

use crate::arguments::{Arguments, Command, Explain, Target, Trace};
use crate::explain::Question;
use crate::handover::What;
use crate::node_lock::NodeLock;
use crate::trace::Wording;

/// The most that an answer may be, in bytes: a Service with tens of thousands of endpoints.
const LONGEST_ANSWER: u64 = 64 << 20;

fn main() -> ExitCode {
    let Arguments { log, command } = Arguments::parse();
    let printed = match command {
        Command::Run(run) => {
            // Outlasts every task: see there.
            let lock = NodeLock::default();
            let taken = lock.clone();
            return runtime::run(&log, GRACE, |supervisor| {
                running::start(supervisor, *run, taken)
            });
        }
        Command::Render(render) => offline::print(&render.manifests, &render.node),
        Command::Explain(arguments) => explain(&arguments),
        Command::Trace(arguments) => trace(&arguments),
        Command::Takeover(handover) => handover::ask(What::Takeover, &handover),
        Command::Handback(handover) => handover::ask(What::Handback, &handover),
        Command::Cleanup(cleanup) => cleanup::commit_removal(&cleanup),
    };
    match printed {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("signpost-agent: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn explain(arguments: &Explain) -> anyhow::Result<String> {
    let question: Question = arguments.about.parse()?;
    let target = &arguments.target;
    if let (Some(manifests), Some(node)) = (&target.manifests, &target.node) {
        let explanation = offline::explain_question(manifests, node, &question)?;
        return target.output.print(&explanation);
    }
    ask_agent(target, "/debug/explain", "about", &question.to_string())
}

fn trace(arguments: &Trace) -> anyhow::Result<String> {
    let wording: Wording = arguments.packet.parse()?;
    let target = &arguments.target;
    if let (Some(manifests), Some(node)) = (&target.manifests, &target.node) {
        let trace = offline::trace_packet(manifests, node, &wording)?;
        return target.output.print(&trace);
    }
    ask_agent(target, "/debug/trace", "packet", &arguments.packet)
}

/// What the running agent answers.
fn ask_agent(target: &Target, path: &str, parameter: &str, value: &str) -> anyhow::Result<String> {
    let address = target.metrics_address;
    let mut response = ureq::get(format!("http://{address}{path}"))
        .query(parameter, value)
        .query("output", target.output.to_string())
        .config()
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .call()
        .with_context(|| format!("failed to ask the agent at {address}"))?;
    anyhow::ensure!(
        response.headers().contains_key(debug::ANSWERED_BY),
        "{address} is answered by something else, such as kube-proxy: give the agent's --metrics-address"
    );
    let text = response
        .body_mut()
        .with_config()
        .limit(LONGEST_ANSWER)
        .read_to_string()?;
    anyhow::ensure!(response.status().is_success(), "{}", text.trim_end());
    Ok(text)
}
