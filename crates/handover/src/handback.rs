//! The handback, from Signpost to kube-proxy.

use std::time::Duration;

use dataplane::{Dataplane, Family};
use jiff::Timestamp;
use reconciler::{Activity, Report};
use runtime::chain;
use tokio::time::{Instant, sleep, timeout};
use xtables::Variant;

use super::preflight::{Point, some_of};
use super::server::{Caller, Server, SignpostSide, blocking};
use super::{Ending, WarningPolicy};
use crate::ServingState;
use foreign_proxy::kernel;
use foreign_proxy::process::{KubeProxy, observe_process};
use foreign_proxy::services::{frontends, observe_difference, observe_without_rule};
use foreign_proxy::virtual_servers;
use foreign_proxy::{ForeignProxyScan, Found, Legacy, Mode};

/// How long kube-proxy may take to answer on the ports that the agent released: it retries every
/// five seconds (cmd/kube-proxy/app/server.go).
const ANSWERS_WITHIN: Duration = Duration::from_secs(12);
/// How often the agent asks for an answer.
const ASKED_EVERY: Duration = Duration::from_millis(500);
/// How long the removal of Signpost's rules may take.
const REMOVED_WITHIN: Duration = Duration::from_secs(60);
/// Starts kube-proxy again on all nodes.
const START_KUBE_PROXY: &str = "kubectl -n kube-system patch daemonset kube-proxy --type json -p \
    '[{\"op\":\"remove\",\"path\":\"/spec/template/spec/nodeSelector/signpost.dev~1kube-proxy\"}]'";

impl Server {
    /// Removes Signpost's rules once kube-proxy's rules are programmed and kube-proxy answers.
    pub(super) async fn hand_back(&self, effort: WarningPolicy, caller: &mut Caller) -> Ending {
        let before = self.agent.serving_state();
        if before == ServingState::HandedBack {
            caller.say("this node was handed back before").await;
            return match effort {
                WarningPolicy::DryRun => Ending::Done,
                WarningPolicy::Careful | WarningPolicy::Forced => {
                    self.expect_withdrawal(caller).await
                }
            };
        }
        let scan = self.observe_proxies().await;
        let mut points = check_handback(&scan, self.signpost()).await;
        let connections = self.agent.modes().into_values();
        let connections = connections.filter_map(|state| state.connections);
        points.extend(outliving(connections.map(|counted| counted.active).sum()));
        if !caller.allows(points, effort).await {
            return Ending::Refused;
        }
        if effort == WarningPolicy::DryRun {
            caller.say("dry run: nothing was changed").await;
            return Ending::Done;
        }
        self.agent.post_serving_state(ServingState::ReleasingPorts);
        if !expect_kube_proxy(caller).await {
            if effort != WarningPolicy::Forced {
                self.agent.post_serving_state(ServingState::Serving);
                return Ending::Refused;
            }
            caller.say("continuing because of --force").await;
        }
        // From here on, a restarted agent continues the handback.
        if let Err(error) = self.mark.commit(Timestamp::now()) {
            self.agent.post_serving_state(ServingState::Serving);
            let text = chain(&error).to_string();
            caller.say(text).await;
            return Ending::Refused;
        }
        self.agent.post_serving_state(ServingState::HandedBack);
        // kube-proxy has returned to its virtual servers before it ended them all.
        if let Err(error) = blocking(virtual_servers::commit_return).await {
            let text = chain(&error).to_string();
            caller.say(text).await;
        }
        self.expect_withdrawal(caller).await
    }

    /// Leaves the ports of health checks and metrics to a kube-proxy that runs, which then answers
    /// there as long as it runs. Without one, the agent has them again after twelve seconds. Returns
    /// whether one answers.
    pub(super) async fn offer_ports(&self, caller: &mut Caller) -> bool {
        let seconds = ANSWERS_WITHIN.as_secs();
        let text = format!(
            "no kube-proxy answers: releasing ports 10249 and 10256 for up to {seconds} s to detect a running kube-proxy"
        );
        caller.say(text).await;
        self.agent.post_serving_state(ServingState::ReleasingPorts);
        let answers = observe_answer(caller).await;
        self.agent.post_serving_state(ServingState::Serving);
        answers
    }

    async fn expect_withdrawal(&self, caller: &mut Caller) -> Ending {
        let mut report = self.agent.report();
        let withdrawn = report.wait_for(|report| report.as_deref().is_some_and(has_withdrawn));
        if timeout(REMOVED_WITHIN, withdrawn).await.is_err() {
            let report = self.agent.report().borrow().clone();
            let mut families = report.iter().flat_map(|report| &report.families);
            let failing = families.find_map(|family| family.failing.as_ref());
            let error = failing.map_or("the kernel has not answered", |failing| &failing.error);
            caller
                .say(format!(
                    "Signpost's rules are still in the kernel: {error}; the agent tries again"
                ))
                .await;
            return Ending::Failed;
        }
        let text = "Signpost serves no Service here any more, also after restarts, until \
            signpost-agent takeover\nhealth-check node ports answer again once kube-proxy here is restarted, or \
            writes its rules the next time";
        caller.say(text).await;
        Ending::Done
    }
}

/// Returns whether Signpost's rules are gone, but for what established connections need.
pub(super) fn has_withdrawn(report: &Report) -> bool {
    let mut families = report.families.iter();
    report.activity == Activity::Withdrawn
        && families.all(|family| family.programmed.is_none() && family.failing.is_none())
}

/// Waits until kube-proxy answers on the released ports. Returns whether it does.
async fn expect_kube_proxy(caller: &mut Caller) -> bool {
    if observe_answer(caller).await {
        return true;
    }
    let text = format!(
        "no kube-proxy has answered within {} s after its ports became free, so no proxy would \
         follow changes: start kube-proxy first\n{START_KUBE_PROXY}\n--force overrides this",
        ANSWERS_WITHIN.as_secs()
    );
    caller.say(text).await;
    false
}

/// Returns whether kube-proxy answers on the released ports, as soon as it does.
async fn observe_answer(caller: &mut Caller) -> bool {
    let deadline = Instant::now() + ANSWERS_WITHIN;
    loop {
        let kube_proxy = blocking(observe_process).await;
        if let KubeProxy::Answers { .. } = kube_proxy {
            caller.say(kube_proxy.to_string()).await;
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        sleep(ASKED_EVERY).await;
    }
}

/// Names the connections that outlive the handback in IPVS, and what would end them.
fn outliving(connections: u64) -> Option<Point> {
    (connections > 0).then(|| {
        Point::note(format!(
            "mode ipvs: {connections} established connections stay with Signpost's virtual servers, because the \
             kernel cannot move them to rules of kube-proxy. The agent removes what they need when the last one has \
             ended: let it run until the kernel has no table signpost-ipvs-ending. signpost-agent cleanup would end \
             them, and so would a start of kube-proxy in mode nftables, which removes all virtual servers"
        ))
    })
}

async fn check_handback(scan: &ForeignProxyScan, signpost: SignpostSide) -> Vec<Point> {
    let found = match scan {
        ForeignProxyScan::None => return Vec::new(),
        ForeignProxyScan::Refused(error) => return vec![Point::obstacle(error.clone())],
        ForeignProxyScan::Seen(found, _) => found.clone(),
    };
    let Some(desired) = signpost.desired else {
        let text = "the agent does not know the Services yet, so whether kube-proxy serves them all is not known";
        return vec![Point::warning(text)];
    };
    blocking(move || observe_points(&found, &desired)).await
}

fn observe_points(found: &Found, desired: &Dataplane) -> Vec<Point> {
    let mut points = Vec::new();
    for family in Family::ALL {
        let has = |mode| {
            let families = found.rules.get(&mode);
            families.is_some_and(|families| families.contains(&family))
        };
        if has(Mode::Nftables) {
            points.push(match observe_difference(desired, family) {
                Err(error) => Point::warning(chain(&error).to_string()),
                Ok(difference) if difference.only_own.is_empty() => Point::note(format!(
                    "{family}: kube-proxy's rules name every Service that Signpost serves"
                )),
                Ok(difference) => {
                    let some = some_of(&difference.only_own);
                    Point::warning(format!("{family}: kube-proxy's rules do not name {some}"))
                }
            });
        } else if has(Mode::Ipvs) {
            points.push(match virtual_servers::observe_missing(desired, family) {
                Err(error) => Point::warning(chain(&error).to_string()),
                Ok(missing) if missing.is_empty() => Point::note(format!(
                    "{family}: kube-proxy has a virtual server for each cluster IP"
                )),
                Ok(missing) => {
                    let some = some_of(&missing);
                    Point::warning(format!(
                        "{family}: kube-proxy has no virtual server for {some}"
                    ))
                }
            });
        } else if has(Mode::Iptables) {
            points.push(match kernel::observe_entrance(family) {
                Err(error) => Point::warning(chain(&error).to_string()),
                Ok(true) => observe_rules(desired, family, Variant::NfTables),
                // kube-proxy creates some empty chains before it knows any Service.
                Ok(false) => Point::warning(format!(
                    "{family}: kube-proxy has chains here, but no rule leads to its Services yet: try again when \
                     it has synced"
                )),
            });
        } else if found.has_chains(Variant::Legacy, family) {
            points.push(observe_rules(desired, family, Variant::Legacy));
        } else if found.legacy == Legacy::Unreadable {
            let text = "kube-proxy may have rules in legacy iptables, which the agent cannot read: \
                iptables-legacy-save -t nat | grep KUBE-SVC";
            points.push(Point::warning(format!("{family}: {text}")));
        } else {
            let is_served = frontends(desired, family).next().is_some();
            points.push(match is_served {
                false => Point::note(format!("{family}: no Services are programmed here, by any proxy")),
                true => Point::warning(format!(
                    "{family}: no rules of kube-proxy are here, and connections, also established ones, \
                     would end: start it first\n{START_KUBE_PROXY}"
                )),
            });
        }
    }
    points
}

/// Whether kube-proxy's rules of mode iptables are for all Services that Signpost serves.
fn observe_rules(desired: &Dataplane, family: Family, variant: Variant) -> Point {
    match observe_without_rule(desired, family, variant) {
        Err(error) => Point::warning(chain(&error).to_string()),
        Ok(missing) if missing.is_empty() => Point::note(format!(
            "{family}: kube-proxy has rules for each cluster IP with endpoints"
        )),
        Ok(missing) => {
            let some = some_of(&missing);
            Point::warning(format!(
                "{family}: kube-proxy has no rules for {some}: try again when it has synced"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::preflight::Severity;
    use super::*;

    #[test]
    fn connections_that_stay_are_counted_and_prevent_nothing() {
        assert_eq!(outliving(0), None);
        let point = outliving(3).expect("three stay");
        assert_eq!(point.weight, Severity::Note);
        assert!(point.text.contains("3 established connections"), "{point}");
    }
}
