//! `signpost-agent`: the node agent of Signpost.
//!
//! ```text
//! source (API server | directory) --Delivery--> Engine --Desired--> reconciler thread --> kernel
//!                                                 |                      |
//!                                               View                  Report
//!                                                 '----------.-----------'
//!                                                            v
//!                                       status, /readyz, /metrics, /debug
//! ```

mod affinity;
mod api_service;
mod cleanup;
mod configz;
mod debug;
mod drift;
mod engine;
mod engine_query;
mod foreign_proxies;
mod foreign_proxy_watch;
mod handover_agent;
mod heartbeat;
mod kube_proxy_routes;
mod latest;
mod node_config;
mod node_facts;
mod node_lock;
mod offline;
mod process_settings;
mod programmed;
mod relay;
mod reporter;
mod running;
mod servers;
mod snapshot;
mod status;
mod variant_scan;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use handover::{Direction, WarningPolicy};
use http::HeaderValue;
use inspect::{Agreement, PacketSpec, Question};
use node_agent::arguments;
use runtime::{GRACE, chain, jitter};

use crate::arguments::{Arguments, Command, Explain, Handover, Show, Target, Trace};
use crate::node_lock::NodeLock;

/// The exit code when the kernel differs from the desired state. 1 means that there is no answer, 2
/// that the command line is invalid.
const DIFFERS: u8 = 3;

/// The largest answer that is read, in bytes: enough for a Service with tens of thousands of
/// endpoints.
const LONGEST_ANSWER: u64 = 64 << 20;

fn main() -> ExitCode {
    let Arguments { log, command } = Arguments::parse();
    let printed = match command {
        Command::Run(run) => {
            // Declared here so that the lock outlives every task: see `NodeLock`.
            let lock = NodeLock::default();
            let taken = lock.clone();
            return runtime::run(&log, GRACE, |supervisor, log| {
                running::start(supervisor, *run, taken, log)
            });
        }
        Command::Render(render) => offline::print(&render.manifests, &render.node).map(plain),
        Command::Explain(arguments) => explain(&arguments),
        Command::Trace(arguments) => trace(&arguments),
        Command::Show(arguments) => show(&arguments).map(plain),
        Command::Takeover(handover) => ask_for(Direction::Takeover, &handover).map(plain),
        Command::Handback(handover) => ask_for(Direction::Handback, &handover).map(plain),
        Command::Cleanup(cleanup) => cleanup::commit_removal(&cleanup).map(plain),
    };
    match printed {
        Ok((text, agreement)) => {
            print!("{text}");
            match agreement {
                Agreement::Agrees => ExitCode::SUCCESS,
                Agreement::Differs => ExitCode::from(DIFFERS),
            }
        }
        Err(error) => {
            eprintln!("signpost-agent: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Wraps text that involves no comparison with the kernel.
fn plain(text: String) -> (String, Agreement) {
    (text, Agreement::Agrees)
}

fn explain(arguments: &Explain) -> anyhow::Result<(String, Agreement)> {
    let question: Question = arguments.about.parse()?;
    let target = &arguments.target;
    if let (Some(manifests), Some(node)) = (&target.manifests, &target.node) {
        let (explanation, remark) = offline::explain_question(manifests, node, &question)?;
        remark.iter().for_each(|remark| eprintln!("# {remark}"));
        return Ok((target.output.print(&explanation)?, explanation.agreement()));
    }
    ask_agent(target, "/debug/explain", "about", &question.to_string())
}

fn trace(arguments: &Trace) -> anyhow::Result<(String, Agreement)> {
    let packet_spec: PacketSpec = arguments.packet.parse()?;
    let target = &arguments.target;
    if let (Some(manifests), Some(node)) = (&target.manifests, &target.node) {
        let (trace, remark) = offline::trace_packet(manifests, node, &packet_spec)?;
        remark.iter().for_each(|remark| eprintln!("# {remark}"));
        return Ok((target.output.print(&trace)?, trace.agree.into()));
    }
    ask_agent(target, "/debug/trace", "packet", &arguments.packet)
}

/// Asks the running agent for a handover.
fn ask_for(what: Direction, arguments: &Handover) -> anyhow::Result<String> {
    let effort = match (arguments.dry_run, arguments.force) {
        (true, _) => WarningPolicy::DryRun,
        (false, true) => WarningPolicy::Forced,
        (false, false) => WarningPolicy::Careful,
    };
    handover::ask(what, &arguments.state, effort)
}

/// Prints a part of the running agent's state. Asks over the agent's socket only: another program
/// may listen on the port, and its metrics would look alike.
fn show(arguments: &Show) -> anyhow::Result<String> {
    let path = arguments.part.path().to_owned();
    let answer = handover::inquire(&arguments.state, path, LONGEST_ANSWER);
    let answer = answer.with_context(|| {
        let state = arguments.state.display();
        format!("no agent answers in {state}: run this where the agent runs, as root")
    })?;
    anyhow::ensure!(answer.is_success(), "{}", answer.text.trim_end());
    Ok(answer.text)
}

/// Asks the running agent over its socket or, if that does not answer, over its metrics port.
fn ask_agent(
    target: &Target,
    path: &str,
    parameter: &str,
    value: &str,
) -> anyhow::Result<(String, Agreement)> {
    let output = target.output.to_string();
    let debug_request = format!("{path}?{parameter}={}&output={output}", escape(value));
    if let Some(answer) = handover::inquire(&target.state, debug_request, LONGEST_ANSWER) {
        anyhow::ensure!(answer.is_success(), "{}", answer.text.trim_end());
        return Ok((answer.text, answer.agreement));
    }
    let address = target.metrics_address;
    let mut response = ureq::get(format!("http://{address}{path}"))
        .query(parameter, value)
        .query("output", output)
        .config()
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .call()
        .with_context(|| {
            format!("no agent answers at {address}: run this in the Pod of the node's agent")
        })?;
    anyhow::ensure!(
        response.headers().contains_key(foreign_proxy::ANSWERED_BY),
        "another program, such as kube-proxy, answers at {address}: give the agent's --state directory, or its --metrics-address"
    );
    let agreement = response.headers().get(Agreement::HEADER);
    let agreement = Agreement::of_header(agreement.map(HeaderValue::as_bytes));
    let text = response
        .body_mut()
        .with_config()
        .limit(LONGEST_ANSWER)
        .read_to_string()?;
    anyhow::ensure!(response.status().is_success(), "{}", text.trim_end());
    Ok((text, agreement))
}

/// Percent-encodes `text` as a query value.
fn escape(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.bytes().map(escape).collect()
}
