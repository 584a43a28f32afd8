//! The takeover, from kube-proxy to Signpost.

use std::time::Duration;

use crds::condition::{self, Status, status_of};
use crds::profile::mechanism::Mode;
use dataplane::Family;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use reconciler::{Activity, Report};
use runtime::chain;
use tokio::time::{Instant, sleep, timeout};

use super::closing::{self, SignpostNodePorts};
use super::preflight::{Point, some_of};
use super::server::{Caller, Server, SignpostSide, blocking};
use super::{Ending, WarningPolicy};
use crate::serving_state::ServingState;
use crate::support::done_without;
use foreign_proxy::kernel::{self, ForeignDependencies, ScanError};
use foreign_proxy::process::KubeProxy;
use foreign_proxy::services::{Difference, observe_difference};
use foreign_proxy::{ForeignProxyScan, Found, Legacy, Mechanism};

/// How long it may take to program Signpost's rules again after a handback.
const PROGRAMMED_WITHIN: Duration = Duration::from_secs(60);
/// How long the agent checks whether kube-proxy's rules come back. A kube-proxy that still runs may
/// take an hour (pkg/proxy/nftables/proxier.go); one that writes its rules at once is found.
const COME_BACK_WITHIN: Duration = Duration::from_secs(2);
/// Stops kube-proxy on all nodes without removing it.
const STOP_KUBE_PROXY: &str = "kubectl -n kube-system patch daemonset kube-proxy -p \
    '{\"spec\":{\"template\":{\"spec\":{\"nodeSelector\":{\"signpost.dev/kube-proxy\":\"wanted\"}}}}}'";

/// What changes when mode nftables of either proxy replaces kube-proxy's mode iptables, according
/// to docs/parity.md.
const FROM_IPTABLES: &str = "from mode iptables to nftables: node ports answer on the node's own address of each family, not \
    on its other addresses or on 127.0.0.1, unless a profile sets nodePorts; no rule opens health-check node ports in a firewall of \
    the node; invalid packets are not dropped; wrong ports of cluster IPs are rejected";
/// What a takeover does not remove: only kube-proxy can tell which virtual servers are its own.
const VIRTUAL_SERVERS: &str = "kube-proxy's virtual servers are here (device kube-ipvs0) and stay: once Signpost's rules are \
    here, which come before them, remove them with kube-proxy --cleanup, in the image that kube-proxy has; it removes \
    virtual servers of other programs, too";

impl Server {
    /// Removes kube-proxy's rules once Signpost's are programmed. Every step can be repeated and
    /// skips what is done already.
    pub(super) async fn take_over(&self, effort: WarningPolicy, caller: &mut Caller) -> Ending {
        let before = *self.board.serving_state().borrow();
        let scan = self.observe_proxies().await;
        let points = self.check_takeover(&scan, before).await;
        if !caller.allows(points, effort).await {
            return Ending::Refused;
        }
        let ForeignProxyScan::Seen(found, _) = scan else {
            return Ending::Refused;
        };
        if effort == WarningPolicy::DryRun {
            caller.say("dry run: nothing was changed").await;
            return Ending::Done;
        }
        if before == ServingState::HandedBack
            && let Err(ending) = self.resume(effort, caller).await
        {
            return ending;
        }
        for (mechanism, family) in found.removable() {
            let removed = match mechanism {
                Mechanism::Nftables => blocking(move || kernel::commit_table_removal(family)).await,
                _ => blocking(move || kernel::commit_chains_removal(family)).await,
            };
            if let Err(error) = removed {
                let text = chain(&error).to_string();
                caller.say(text).await;
                return Ending::Failed;
            }
            let text = format!("removed kube-proxy's {mechanism} rules for {family}");
            caller.say(text).await;
        }
        self.expect_gone(caller).await
    }

    /// Programs Signpost's rules again.
    async fn resume(&self, effort: WarningPolicy, caller: &mut Caller) -> Result<(), Ending> {
        if let Err(error) = self.mark.commit_removal() {
            let text = chain(&error).to_string();
            caller.say(text).await;
            return Err(Ending::Refused);
        }
        let (mut report, mut status) = (self.board.report(), self.board.status());
        self.board.post_serving_state(ServingState::Serving);
        let ready = async {
            // The status follows its inputs with a delay: Ready may still be that of before the
            // handback. Wait for the report first.
            let programmed = report.wait_for(|report| report.as_deref().is_some_and(is_programmed));
            drop(programmed.await);
            let ready = status
                .wait_for(|status| status_of(&status.conditions, condition::READY) == Status::True);
            drop(ready.await);
        };
        if timeout(PROGRAMMED_WITHIN, ready).await.is_ok() {
            let text = "this node's Services are programmed again";
            caller.say(text).await;
            return Ok(());
        }
        let text = self.describe_readiness();
        caller.say(format!("serving again, but {text}")).await;
        match effort {
            WarningPolicy::Forced => Ok(()),
            WarningPolicy::DryRun | WarningPolicy::Careful => Err(Ending::Failed),
        }
    }

    /// Checks that the removed rules do not come back.
    async fn expect_gone(&self, caller: &mut Caller) -> Ending {
        let deadline = Instant::now() + COME_BACK_WITHIN;
        let left = loop {
            let found = match self.observe_proxies().await {
                ForeignProxyScan::Seen(found, _) => found,
                ForeignProxyScan::None => Found::default(),
                ForeignProxyScan::Refused(error) => {
                    caller.say(error).await;
                    return Ending::Failed;
                }
            };
            if !found.removable().is_empty() {
                let text = "kube-proxy's rules came back: stop it first";
                caller.say(format!("{text}\n{STOP_KUBE_PROXY}")).await;
                return Ending::Failed;
            }
            if Instant::now() >= deadline {
                break (found.rules.is_empty(), found.legacy);
            }
            sleep(COME_BACK_WITHIN / 8).await;
        };
        let text = match left {
            (false, _) => {
                caller.say(VIRTUAL_SERVERS).await;
                return Ending::Failed;
            }
            (true, Legacy::Unreadable | Legacy::Chains) => {
                "Signpost serves this node's Services; rules in the legacy variant of iptables were not changed"
            }
            (true, Legacy::None) => {
                "Signpost alone serves this node's Services; if kube-proxy returns, condition \
                 ForeignProxyDetected reports it"
            }
        };
        caller.say(text).await;
        Ending::Done
    }

    /// Returns the findings to show before a takeover.
    async fn check_takeover(
        &self,
        scan: &ForeignProxyScan,
        serving_state: ServingState,
    ) -> Vec<Point> {
        let (found, kube_proxy) = match scan {
            ForeignProxyScan::None => return Vec::new(),
            ForeignProxyScan::Refused(error) => return vec![Point::obstacle(error.clone())],
            ForeignProxyScan::Seen(found, kube_proxy) => (found.clone(), kube_proxy),
        };
        let mut points = vec![readiness(self, serving_state)];
        if let KubeProxy::Answers { .. } = kube_proxy {
            let text = format!(
                "{kube_proxy} and would put its rules back: stop it first\n{STOP_KUBE_PROXY}"
            );
            points.push(Point::warning(text));
        }
        let signpost = self.signpost();
        let view = self.board.view().borrow().clone();
        let node_ports = view.as_deref().and_then(SignpostNodePorts::of);
        let observe = move || observe_points(&found, serving_state, signpost, node_ports.as_ref());
        points.extend(blocking(observe).await);
        points
    }

    /// Returns the condition Ready as text.
    pub(super) fn describe_readiness(&self) -> String {
        let status = self.board.status().borrow().clone();
        describe(&status.conditions, condition::READY)
    }
}

/// Returns whether Signpost's rules are in the kernel, and not withdrawn, in each family that the
/// kernel supports.
fn is_programmed(report: &Report) -> bool {
    let all = report.families.len();
    let programmed = report.families.iter().filter(|f| f.programmed.is_some());
    report.activity != Activity::Withdrawn
        && programmed.count() + done_without(&report.families).count() == all
}

/// Returns one of the conditions as text.
fn describe(conditions: &[Condition], kind: &str) -> String {
    let mut conditions = conditions.iter();
    conditions
        .find(|condition| condition.type_ == kind)
        .map_or_else(
            || "the agent has no status yet".to_owned(),
            |said| {
                format!(
                    "{kind} is {}, {}: {}",
                    said.status, said.reason, said.message
                )
            },
        )
}

fn readiness(server: &Server, serving_state: ServingState) -> Point {
    let status = server.board.status().borrow().clone();
    match (
        serving_state,
        status_of(&status.conditions, condition::READY),
    ) {
        (ServingState::HandedBack, _) => Point::note(
            "this node was handed back: its Services are programmed again before anything is removed",
        ),
        // Ready is also True if some Services cannot be programmed, or if repairs back off.
        (_, Status::True) if is_degraded(&status.conditions) => {
            let text = describe(&status.conditions, condition::DEGRADED);
            Point::warning(format!(
                "some Services may be served by kube-proxy's rules alone: {text}"
            ))
        }
        (_, Status::True) => Point::note("every Service this agent knows is programmed"),
        _ => {
            let text = server.describe_readiness();
            Point::warning(format!("some Services are not programmed: {text}"))
        }
    }
}

/// Returns whether there is another problem than a refused earlier attempt.
fn is_degraded(conditions: &[Condition]) -> bool {
    conditions.iter().any(|condition| {
        condition.type_ == condition::DEGRADED
            && condition.status == "True"
            && condition.reason != condition::reason::HANDOVER_REFUSED.name
    })
}

/// Returns findings about the rules in the kernel.
fn observe_points(
    found: &Found,
    serving_state: ServingState,
    signpost: SignpostSide,
    node_ports: Option<&SignpostNodePorts>,
) -> Vec<Point> {
    let mut points = Vec::new();
    let legacy = match found.legacy {
        Legacy::None => None,
        Legacy::Unreadable => Some(
            "the legacy variant of iptables has a table nat that cannot be read: if there are chains \
             KUBE-SVC-* in it (iptables-legacy-save -t nat), remove them with kube-proxy --cleanup, in the image \
             that kube-proxy has, before anything else",
        ),
        Legacy::Chains => Some(
            "rules of kube-proxy are in the legacy variant of iptables, and stay (iptables-legacy-save -t nat): \
             remove them with kube-proxy --cleanup, in the image that kube-proxy has, before anything else",
        ),
    };
    if let Some(text) = legacy {
        points.push(match found.rules.is_empty() {
            true => Point::warning(text),
            false => Point::note(text),
        });
    }
    if found.rules.contains_key(&Mechanism::Ipvs) {
        points.push(Point::warning(VIRTUAL_SERVERS));
    }
    if found.rules.is_empty() {
        points.push(Point::note("no rules of kube-proxy are here to be removed"));
    }
    let removable = found.removable();
    let from_iptables = removable.iter().any(|(of, _)| *of == Mechanism::Iptables);
    if from_iptables && signpost.mode != Mode::Iptables {
        points.push(Point::note(FROM_IPTABLES));
    }
    for (mechanism, family) in removable {
        let some = match mechanism {
            Mechanism::Nftables if signpost.mode == Mode::Iptables => {
                let text = "the Services in kube-proxy's rules are not compared with Signpost's";
                Ok(vec![Point::note(format!("{family}: {text}"))])
            }
            Mechanism::Nftables => observe_nftables(family, serving_state),
            _ => observe_iptables(family),
        };
        points
            .extend(some.unwrap_or_else(|error| vec![Point::obstacle(chain(&error).to_string())]));
        let closing =
            node_ports.map(|node_ports| closing::observe_points(mechanism, family, node_ports));
        points.extend(closing.into_iter().flat_map(|closing| {
            closing.unwrap_or_else(|error| {
                let error = chain(&error);
                let text = "unable to find out which node ports would close";
                vec![Point::warning(format!("{family}: {text}: {error}"))]
            })
        }));
    }
    points
}

fn observe_nftables(family: Family, serving_state: ServingState) -> Result<Vec<Point>, ScanError> {
    if serving_state == ServingState::HandedBack {
        return Ok(Vec::new());
    }
    let Difference {
        only_theirs,
        only_own,
    } = observe_difference(family)?;
    let mut points = Vec::new();
    if !only_theirs.is_empty() {
        let some = some_of(&only_theirs);
        let text = "either they were deleted, or another proxy is to serve them";
        points.push(Point::note(format!(
            "{family}: only kube-proxy's rules name {some}; {text}"
        )));
    }
    if !only_own.is_empty() {
        let some = some_of(&only_own);
        points.push(Point::note(format!(
            "{family}: only Signpost's rules name {some}"
        )));
    }
    Ok(points)
}

fn observe_iptables(family: Family) -> Result<Vec<Point>, ScanError> {
    let ForeignDependencies {
        others,
        drops_forwarded,
    } = kernel::observe_foreign_references(family)?;
    let mut points = Vec::new();
    if !others.is_empty() {
        points.push(Point::obstacle(format!("{family}: {}", some_of(&others))));
    }
    if drops_forwarded {
        points.push(Point::warning(format!(
            "{family}: chain FORWARD of table filter drops what no rule accepts, and kube-proxy's rules accept traffic \
             to Services: have the network plug-in, or a rule of your own, accept traffic that is forwarded to Pods"
        )));
    }
    Ok(points)
}
