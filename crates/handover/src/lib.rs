//! Takeover and handback: the running agent takes this node's Services over from kube-proxy, or hands
//! them back. The commands of the same names ask it to ([`ask`]), and so does the profile's field
//! `handover` ([`Server::follow_profile`]).
//!
//! ```text
//! signpost-agent takeover --one line of JSON--> agent.sock, in the state directory --> the agent
//!                        <--lines of JSON, as they occur; the last one is the outcome--
//! ```
//!
//! The agent does the work, because it is the only writer of Signpost's rules. The client may be
//! killed at any time without affecting the outcome. The agent uses a socket that only root can
//! open, and no route of the metrics server, which may be open to the network. Over the same socket,
//! [`inquire`] gets an answer of `/debug`.
//!
//! This crate checks what a handover would change for clients, changes kube-proxy's rules, and decides
//! when Signpost serves ([`ServingState`]). Signpost's own rules are the reconciler's: a handover posts
//! a state and waits for the report that follows. What it reads and posts of the running agent is the
//! trait [`Agent`].

mod agent;
mod closing;
mod contradiction;
mod debug_request;
mod desired;
mod handback;
mod host_ports;
mod kube_proxy_rules;
mod local_detection;
mod preflight;
mod server;
mod serving_state;
mod takeover;

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

pub use agent::{Agent, NodeView};
pub use debug_request::{Answer, inquire};
pub use desired::is_carried_out;
pub use server::Server;
pub use serving_state::{HANDBACK_FILE, HandbackMark, ServingState};

/// The socket, within the state directory.
pub const SOCKET: &str = "agent.sock";
/// How long the client waits for the agent's next line: longer than any wait in the agent.
const SILENCE: Duration = Duration::from_secs(180);

/// What a client requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    what: Direction,
    effort: WarningPolicy,
}

/// The direction of a handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// From kube-proxy to Signpost.
    Takeover,
    /// From Signpost to kube-proxy.
    Handback,
}

/// How to treat warnings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WarningPolicy {
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

/// Asks the agent with this state directory for a handover, prints its lines as they arrive, and fails
/// unless it did what was requested.
pub fn ask(what: Direction, state: &Path, effort: WarningPolicy) -> anyhow::Result<String> {
    let socket = socket_within(state);
    let stream = UnixStream::connect(&socket).with_context(|| {
        let socket = socket.display();
        format!("failed to reach the agent at {socket}: run this where the agent runs, as root")
    })?;
    stream.set_read_timeout(Some(SILENCE))?;
    let request = Request { what, effort };
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
