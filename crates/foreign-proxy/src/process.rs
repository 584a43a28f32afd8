//! Whether a kube-proxy runs on the node. The agent asks at kube-proxy's default addresses, because
//! it cannot see the process from a container.

use std::fmt;
use std::time::Duration;

use crate::ANSWERED_BY;

/// `metricsBindAddress` of kube-proxy by default.
const METRICS: &str = "127.0.0.1:10249";
/// `healthzBindAddress` of kube-proxy by default, as reached over loopback.
const HEALTHZ: &str = "127.0.0.1:10256";
/// Short, because the server is on this node.
const PATIENCE: Duration = Duration::from_secs(1);
/// How much of an answer is read, in bytes.
const LONGEST_ANSWER: u64 = 4096;

/// What is known about the kube-proxy process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubeProxy {
    /// A program other than this agent answers as kube-proxy does.
    Answers {
        /// The address that answers.
        at: &'static str,
    },
    /// No program does: kube-proxy has ended, or answers on other addresses, or this agent has its
    /// ports.
    Silent,
}

/// An answer to one request.
struct Answer {
    status: u16,
    is_signpost: bool,
    body: String,
}

/// Asks now. Blocks for two seconds at most.
pub fn observe_process() -> KubeProxy {
    let mode = |answer: &Answer| {
        let body = answer.body.trim();
        answer.status == 200 && matches!(body, "nftables" | "iptables" | "ipvs")
    };
    // This agent answers /proxyMode, too, but it marks its /debug answers.
    let is_signpost = ask(METRICS, "/debug").is_none_or(|answer| answer.is_signpost);
    if !is_signpost && ask(METRICS, "/proxyMode").is_some_and(|answer| mode(&answer)) {
        return KubeProxy::Answers { at: METRICS };
    }
    // This agent answers /readyz here; kube-proxy does not.
    let unknown = ask(HEALTHZ, "/readyz").is_some_and(|answer| answer.status == 404);
    if unknown && ask(HEALTHZ, "/livez").is_some_and(|a| a.body.contains("lastUpdated")) {
        return KubeProxy::Answers { at: HEALTHZ };
    }
    KubeProxy::Silent
}

/// Sends one request; `None` without an answer in time.
fn ask(address: &str, path: &str) -> Option<Answer> {
    let mut response = ureq::get(format!("http://{address}{path}"))
        .config()
        .http_status_as_error(false)
        .timeout_global(Some(PATIENCE))
        .proxy(None)
        .build()
        .call()
        .ok()?;
    let body = response.body_mut().with_config().limit(LONGEST_ANSWER);
    Some(Answer {
        body: body.read_to_string().unwrap_or_default(),
        status: response.status().as_u16(),
        is_signpost: response.headers().contains_key(ANSWERED_BY),
    })
}

impl fmt::Display for KubeProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KubeProxy::Answers { at } => write!(f, "kube-proxy answers at {at}"),
            KubeProxy::Silent => f.write_str("no kube-proxy answers on this node"),
        }
    }
}
