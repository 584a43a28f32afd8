//! The takeover, from kube-proxy to Signpost.

use std::future::pending;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crds::condition::{self, Status, reason, status_of};
use crds::starter::{STOP_KUBE_PROXY, STOP_STATIC_POD};
use dataplane::Family;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use modes::Lock;
use reconciler::{Activity, FamilyStatus, Report, done_without};
use runtime::chain;
use tokio::time::{Instant, sleep, timeout};

use super::closing::SignpostNodePorts;
use super::host_ports;
use super::kube_proxy_rules;
use super::local_detection;
use super::preflight::{Point, Severity};
use super::server::{Caller, Server, blocking};
use super::{Ending, WarningPolicy};
use crate::ServingState;
use foreign_proxy::kernel;
use foreign_proxy::legacy_chains;
use foreign_proxy::process::KubeProxy;
use foreign_proxy::virtual_servers::{self, IdleRemoval, Remaining};
use foreign_proxy::{ForeignProxyScan, Found, Legacy, Mode};

/// How long it may take to program Signpost's rules again after a handback.
const PROGRAMMED_WITHIN: Duration = Duration::from_secs(60);
/// How long the agent checks whether kube-proxy's rules come back. A kube-proxy that still runs may
/// take an hour (pkg/proxy/nftables/proxier.go); one that writes its rules at once is found.
const COME_BACK_WITHIN: Duration = Duration::from_secs(2);

impl Server {
    /// Removes kube-proxy's rules once Signpost's are programmed. Every step can be repeated and
    /// skips what is done already.
    pub(super) async fn take_over(&self, effort: WarningPolicy, caller: &mut Caller) -> Ending {
        let before = self.agent.serving_state();
        let mut scan = self.observe_proxies().await;
        let mut points = self.check_takeover(&scan, before).await;
        // Only if nothing else prevents it: ports are not freed for an attempt that is refused
        // again and again.
        if effort == WarningPolicy::Careful
            && points.iter().all(|point| point.weight == Severity::Note)
            && before == ServingState::Serving
            && self.agent.rules_writer().may_run_silently(&scan)
            && self.offer_ports(caller).await
        {
            scan = self.observe_proxies().await;
            points = self.check_takeover(&scan, before).await;
        }
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
            && let Err(ending) = self.resume(&found, effort, caller).await
        {
            return ending;
        }
        for (mode, family) in found.removable() {
            let removed = match mode {
                Mode::Nftables => blocking(move || kernel::commit_table_removal(family)).await,
                Mode::Iptables => blocking(move || kernel::commit_chains_removal(family)).await,
                // Once for both families, after the chains.
                Mode::Ipvs => continue,
            };
            if let Err(error) = removed {
                let text = chain(&error).to_string();
                caller.say(text).await;
                return Ending::Failed;
            }
            let text = format!("removed kube-proxy's {mode} rules for {family}");
            caller.say(text).await;
        }
        if found.legacy == Legacy::Chains
            && let Err(ending) = self.remove_legacy_chains(caller).await
        {
            return ending;
        }
        if found.rules.contains_key(&Mode::Ipvs) {
            let own = self.signpost().addresses();
            if let Err(error) = blocking(move || virtual_servers::commit_ending(&own)).await {
                let text = chain(&error).to_string();
                caller.say(text).await;
                return Ending::Failed;
            }
        }
        self.expect_gone(caller).await
    }

    async fn remove_legacy_chains(&self, caller: &mut Caller) -> Result<(), Ending> {
        for family in Family::ALL {
            let Lock { path, patience } = self.lock.clone();
            let removed =
                blocking(move || legacy_chains::commit_removal(family, &path, patience)).await;
            if let Err(error) = removed {
                let text = chain(&error).to_string();
                caller.say(text).await;
                return Err(Ending::Failed);
            }
        }
        let text = "removed kube-proxy's chains from the legacy variant of iptables";
        caller.say(text).await;
        Ok(())
    }

    /// Removes the virtual servers that are idle already, and says what remains.
    async fn end_virtual_servers(&self, caller: &mut Caller) -> Result<(), Ending> {
        let (text, outcome) = match blocking(|| IdleRemoval::default().commit()).await {
            Err(error) => (chain(&error).to_string(), Err(Ending::Failed)),
            Ok(remaining) if remaining == Remaining::default() => {
                let text = "kube-proxy's virtual servers are removed";
                (text.to_owned(), Ok(()))
            }
            Ok(Remaining {
                virtual_servers,
                connections,
                addresses,
            }) => {
                let text = format!(
                    "{virtual_servers} virtual servers and {addresses} addresses of kube-proxy stay for now, with \
                     {connections} connections: the agent removes each when its last connection has ended"
                );
                (text, Ok(()))
            }
        };
        caller.say(text).await;
        outcome
    }

    /// Programs Signpost's rules again, at least where kube-proxy's are `found`.
    async fn resume(
        &self,
        found: &Found,
        effort: WarningPolicy,
        caller: &mut Caller,
    ) -> Result<(), Ending> {
        if let Err(error) = self.mark.commit_removal() {
            let text = chain(&error).to_string();
            caller.say(text).await;
            return Err(Ending::Refused);
        }
        let (mut report, mut status) = (self.agent.report(), self.agent.status());
        self.agent.post_serving_state(ServingState::Serving);
        let ready = async {
            // The status follows its inputs with a delay: Ready may still be that of before the
            // handback. Wait for the report first.
            let is_programmed = |report: &Report| is_programmed(report, found);
            let programmed = report.wait_for(|report| report.as_deref().is_some_and(is_programmed));
            let programmed = programmed.await.is_ok();
            let ready = status
                .wait_for(|status| status_of(&status.conditions, condition::READY) == Status::True);
            if !programmed || ready.await.is_err() {
                // The agent ends: it programs nothing any more, and no rules may be removed.
                pending::<()>().await;
            }
        };
        if timeout(PROGRAMMED_WITHIN, ready).await.is_ok() {
            let text = "this node's Services are programmed again";
            caller.say(text).await;
            return Ok(());
        }
        let text = self.describe_readiness();
        if !self.is_programmed(found) {
            let text =
                format!("Signpost's rules are not programmed, and kube-proxy's stay: {text}");
            caller.say(text).await;
            return Err(Ending::Failed);
        }
        caller.say(format!("serving again, but {text}")).await;
        match effort {
            WarningPolicy::Forced => Ok(()),
            WarningPolicy::DryRun | WarningPolicy::Careful => Err(Ending::Failed),
        }
    }

    /// Returns whether Signpost's rules are programmed where kube-proxy's are `found`.
    fn is_programmed(&self, found: &Found) -> bool {
        let report = self.agent.report();
        let report = report.borrow();
        report
            .as_deref()
            .is_some_and(|report| is_programmed(report, found))
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
            if !found.rules.is_empty() || found.legacy == Legacy::Chains {
                caller.say(stop_first("kube-proxy's rules came back")).await;
                return Ending::Failed;
            }
            if Instant::now() >= deadline {
                break found;
            }
            sleep(COME_BACK_WITHIN / 8).await;
        };
        if left.ending == foreign_proxy::Ending::Pending
            && let Err(ending) = self.end_virtual_servers(caller).await
        {
            return ending;
        }
        let text = match left.legacy {
            Legacy::Unreadable => {
                "Signpost serves this node's Services; rules in the legacy variant of iptables were not changed"
            }
            Legacy::Chains | Legacy::None => {
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
        let mut points = vec![readiness(self, serving_state, &found)];
        if let KubeProxy::Answers { .. } = kube_proxy {
            let text = format!("{kube_proxy} and would put its rules back");
            points.push(Point::warning(stop_first(&text)));
        }
        let signpost = self.signpost();
        let view = self.agent.view();
        // Where no rules of kube-proxy are left, nothing changes for Pods.
        if let (false, Some(view)) = (found.is_taken_over(), &view)
            && let Some(desired) = &view.desired
        {
            let mode = view.effective.detect_local.mode;
            points.extend(local_detection::check(mode, desired));
        }
        let node_ports = view.as_ref().and_then(SignpostNodePorts::of);
        let counters = Arc::clone(&self.counters);
        let conditions = self.agent.status().borrow().conditions.clone();
        let observe = move || {
            let own_rules = |family| host_ports::own_rules(serving_state, &conditions, family);
            let mut points = host_ports::observe_points(&found, own_rules, &signpost);
            let mut counters = counters.lock().unwrap_or_else(PoisonError::into_inner);
            let node_ports = node_ports.as_ref();
            points.extend(kube_proxy_rules::observe_points(
                &found,
                serving_state,
                signpost,
                node_ports,
                &mut counters,
            ));
            points
        };
        points.extend(blocking(observe).await);
        points
    }

    /// Returns the condition Ready as text.
    pub(super) fn describe_readiness(&self) -> String {
        let status = self.agent.status().borrow().clone();
        describe(&status.conditions, condition::READY)
    }
}

/// Returns whether Signpost's rules are in the kernel, and not withdrawn, in each family that the
/// kernel supports and where rules of kube-proxy are `found`. Where it has none, a takeover changes
/// nothing, as long as Signpost serves the other family.
fn is_programmed(report: &Report, found: &Found) -> bool {
    let families = &report.families;
    let is_programmed = |family: &FamilyStatus| family.programmed.is_some();
    let is_served = families.iter().any(is_programmed);
    let lacking: Vec<Family> = done_without(families).map(|f| f.family).collect();
    let loses_nothing =
        |family| lacking.contains(&family) || (is_served && found.mode(family).is_none());
    report.activity != Activity::Withdrawn
        && families
            .iter()
            .all(|family| is_programmed(family) || loses_nothing(family.family))
}

/// Adds how kube-proxy is stopped. The agent does not know what starts it on this node.
fn stop_first(why: &str) -> String {
    format!(
        "{why}: stop kube-proxy first\nwhere DaemonSet kube-system/kube-proxy starts it: {STOP_KUBE_PROXY}\n\
         elsewhere, as with k3s, RKE2 and managed add-ons: {STOP_STATIC_POD}"
    )
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

fn readiness(server: &Server, serving_state: ServingState, found: &Found) -> Point {
    let status = server.agent.status().borrow().clone();
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
        // Not even --force removes the only rules that serve.
        _ if !server.is_programmed(found) => {
            let text = server.describe_readiness();
            Point::obstacle(format!("Signpost's rules are not programmed: {text}"))
        }
        _ => {
            let text = server.describe_readiness();
            Point::warning(format!("some Services are not programmed: {text}"))
        }
    }
}

/// Returns whether there is another problem than a refused earlier attempt, and than new connections
/// that fail: the other proxy's rules may be what they fail for.
fn is_degraded(conditions: &[Condition]) -> bool {
    let others = [reason::HANDOVER_REFUSED, reason::CONNECTION_FAILED];
    conditions.iter().any(|condition| {
        condition.type_ == condition::DEGRADED
            && condition.status == "True"
            && others.iter().all(|other| other.name != condition.reason)
    })
}

#[cfg(test)]
mod tests;
