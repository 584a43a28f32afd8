//! The commands `takeover` and `handback`. They ask the running agent to take this node's Services
//! over from kube-proxy, or to hand them back.
//!
//! ```text
//! signpost-agent takeover --one line of JSON--> agent.sock, in the state directory --> the agent
//!                        <--lines of JSON, as they occur; the last one is the outcome--
//! ```
//!
//! The profile's field `handover` requests the same without a command.
//!
//! The agent does the work, because it is the only writer of Signpost's rules. The client may be
//! killed at any time without affecting the outcome. The agent uses a socket that only root can
//! open, and no route of the metrics server, which may be open to the network.

mod closing;
mod debug_request;
mod desired;
mod handback;
mod host_ports;
mod kube_proxy_rules;
mod local_detection;
mod preflight;
mod server;
mod takeover;

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::arguments::Handover;
pub(crate) use debug_request::inquire;
pub(crate) use desired::is_carried_out;
pub(crate) use server::Server;

/// The socket, within the state directory.
pub(crate) const SOCKET: &str = "agent.sock";
/// How long the client waits for the agent's next line: longer than any wait in the agent.
const SILENCE: Duration = Duration::from_secs(180);

/// What a client requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request {
    pub(crate) what: What,
    pub(crate) effort: WarningPolicy,
}

/// The direction of a handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum What {
    /// From kube-proxy to Signpost.
    Takeover,
    /// From Signpost to kube-proxy.
    Handback,
}

/// How to treat warnings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum WarningPolicy {
    /// Only report what would be done, and any obstacles.
    DryRun,
    /// Proceed unless there is a warning or an obstacle.
    Careful,
    /// Proceed despite warnings, but not despite obstacles.
    Forced,
}

/// One line from the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Reply {
    /// A line for the client to print.
    Line(String),
    /// The handover has ended.
    Ended(Ending),
}

/// The outcome of a handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Ending {
    /// The requested state is reached.
    Done,
    /// Nothing was changed.
    Refused,
    /// The handover is incomplete.
    Failed,
}

/// Sends the request, prints the agent's lines as they arrive, and fails unless the agent did what
/// was requested.
pub(crate) fn ask(what: What, arguments: &Handover) -> anyhow::Result<String> {
    let socket = socket_within(&arguments.state);
    let stream = UnixStream::connect(&socket).with_context(|| {
        let socket = socket.display();
        format!("failed to reach the agent at {socket}: run this where the agent runs, as root")
    })?;
    stream.set_read_timeout(Some(SILENCE))?;
    let request = Request {
        what,
        effort: match (arguments.dry_run, arguments.force) {
            (true, _) => WarningPolicy::DryRun,
            (false, true) => WarningPolicy::Forced,
            (false, false) => WarningPolicy::Careful,
        },
    };
    writeln!(&stream, "{}", serde_json::to_string(&request)?)?;
    for line in BufReader::new(&stream).lines() {
        let line = line.context("the agent's answer is incomplete; run this again")?;
        match serde_json::from_str(&line).context("the agent is of another version")? {
            Reply::Line(text) => println!("{text}"),
            Reply::Ended(Ending::Done) => return Ok(String::new()),
            Reply::Ended(ending) => anyhow::bail!("{ending}"),
        }
    }
    anyhow::bail!("the agent ended before it answered; run this again once it runs")
}

fn socket_within(state: &Path) -> PathBuf {
    state.join(SOCKET)
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ending::Done => "done",
            Ending::Refused => "refused; nothing was changed",
            Ending::Failed => "incomplete; resolve the problem named above, then run this again",
        })
    }
}
