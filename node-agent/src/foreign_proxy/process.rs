//! Whether a kube-proxy runs beside us: it is asked where it answers by default. Its process cannot be
//! seen from a container.

use std::fmt;
use std::time::Duration;

use crate::debug;

/// `metricsBindAddress` of kube-proxy, unless it is told otherwise.
const METRICS: &str = "127.0.0.1:10249";
/// `healthzBindAddress` of kube-proxy, unless it is told otherwise; as reached from here.
const HEALTHZ: &str = "127.0.0.1:10256";
/// It is on this node.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most of an answer that is read, in bytes.
const LONGEST_ANSWER: u64 = 4096;

/// What is known of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KubeProxy {
    /// Something that is not us answers as kube-proxy does.
    Answers {
        /// Where.
        at: &'static str,
    },
    /// Nothing does: it has ended, or answers elsewhere, or found these ports taken by us.
    Silent,
}

/// An answer to one question.
struct Answer {
    status: u16,
    ours: bool,
    body: String,
}

/// Asks now. Blocks for two seconds at most.
pub(crate) fn observe_process() -> KubeProxy {
    let mode = |answer: &Answer| {
        let body = answer.body.trim();
        answer.status == 200 && matches!(body, "nftables" | "iptables" | "ipvs")
    };
    // We answer /proxyMode, too; but /debug we sign.
    let ours = ask(METRICS, "/debug").is_none_or(|answer| answer.ours);
    if !ours && ask(METRICS, "/proxyMode").is_some_and(|answer| mode(&answer)) {
        return KubeProxy::Answers { at: METRICS };
    }
    // Here we answer /readyz, and kube-proxy does not.
    let unknown = ask(HEALTHZ, "/readyz").is_some_and(|answer| answer.status == 404);
    if unknown && ask(HEALTHZ, "/livez").is_some_and(|a| a.body.contains("lastUpdated")) {
        return KubeProxy::Answers { at: HEALTHZ };
    }
    KubeProxy::Silent
}

/// `None` where nobody answers in time.
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
        ours: response.headers().contains_key(debug::ANSWERED_BY),
    })
}

impl fmt::Display for KubeProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KubeProxy::Answers { at } => write!(f, "kube-proxy answers at {at}"),
            KubeProxy::Silent => f.write_str("no kube-proxy answers here"),
        }
    }
}
