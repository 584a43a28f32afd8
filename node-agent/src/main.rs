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

mod arguments;
mod board;
mod conntrack;
mod debug;
mod engine;
mod explain;
mod last_good;
mod latency;
mod metrics;
mod node_config;
mod offline;
mod reporter;
mod running;
mod source;
mod status;

use std::process::ExitCode;

use anyhow::Context;
use backend::Backend;
use clap::Parser;
use runtime::{GRACE, chain};

use crate::arguments::{Arguments, Command, Explain};
use crate::explain::Question;

fn main() -> ExitCode {
    let Arguments { log, command } = Arguments::parse();
    let printed = match command {
        Command::Run(run) => {
            return runtime::run(&log, GRACE, |supervisor| running::start(supervisor, *run));
        }
        Command::Render(render) => offline::render(&render.manifests, &render.node),
        Command::Explain(explain) => explain_service(&explain),
        Command::Cleanup => cleanup(),
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

fn explain_service(arguments: &Explain) -> anyhow::Result<String> {
    let question: Question = arguments.service.parse()?;
    if let (Some(manifests), Some(node)) = (&arguments.manifests, &arguments.node) {
        return offline::explain_service(manifests, node, &question);
    }
    let url = format!(
        "http://{}/debug/services/{}",
        arguments.metrics_address, arguments.service
    );
    let mut response = ureq::get(&url)
        .config()
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .call()
        .with_context(|| format!("failed to ask the agent at {}", arguments.metrics_address))?;
    let text = response.body_mut().read_to_string()?;
    anyhow::ensure!(response.status().is_success(), "{}", text.trim_end());
    Ok(text)
}

fn cleanup() -> anyhow::Result<String> {
    for mut family in backend_nftables::open()? {
        family.commit_removal().map(drop)?;
    }
    Ok("nothing of Signpost is left in this network namespace\n".to_owned())
}
