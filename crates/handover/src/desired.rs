//! The handover that the profile requests: whether it is complete, and the attempts at it.

use std::sync::Arc;
use std::time::Duration;

use crds::condition::{self, Status, status_of};
use crds::profile::handover::Handover;
use reconciler::Report;
use runtime::CancellationToken;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::handback::has_withdrawn;
use super::server::{Caller, Server};
use super::{Direction, Ending, WarningPolicy};
use crate::ServingState;
use foreign_proxy::ForeignProxyScan;
use runtime::jitter::jittered;

/// The pause after a failed attempt. It doubles up to `LONGEST_PAUSE`. An attempt at a handback
/// releases the ports of health checks and metrics for up to twelve seconds, so it must not be
/// repeated all the time.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Returns whether the node is served as `desired` requires. kube-proxy's virtual servers that end
/// do not delay a takeover: a single connection may last for days. Pure.
pub fn is_carried_out(
    desired: Handover,
    serving_state: ServingState,
    scan: &ForeignProxyScan,
    report: Option<&Report>,
) -> bool {
    match desired {
        Handover::Manual => true,
        // ForeignProxyDetected reports legacy tables that cannot be read.
        Handover::Takeover => {
            let ForeignProxyScan::Seen(found, _) = scan else {
                return false;
            };
            serving_state == ServingState::Serving && found.is_taken_over()
        }
        Handover::Handback => {
            serving_state == ServingState::HandedBack && report.is_some_and(has_withdrawn)
        }
    }
}

impl Server {
    /// Performs the handover that the profile requests whenever it is not complete, until `stop` is
    /// cancelled.
    pub async fn follow_profile(self: Arc<Server>, stop: CancellationToken) {
        let (mut status, mut scan) = (self.agent.status(), self.agent.scan());
        let mut desired = Handover::Manual;
        let mut pause = FIRST_PAUSE;
        let mut earliest = Instant::now();
        loop {
            let now = self.agent.desired_handover();
            if now != desired {
                (desired, pause, earliest) = (now, FIRST_PAUSE, Instant::now());
                self.agent.post_refusal(None);
            }
            if self.is_due() && Instant::now() >= earliest {
                // If a stop interrupts it, the next agent completes it, as after a SIGKILL.
                let refusal = tokio::select! {
                    () = stop.cancelled() => return,
                    refusal = self.attempt(desired) => refusal,
                };
                earliest = Instant::now() + jittered(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
                self.agent.post_refusal(refusal);
                // The attempt has scanned for other proxies itself.
                scan.mark_unchanged();
            }
            // Every arm is cancel safe: the state is checked again whichever arm ends.
            tokio::select! {
                () = stop.cancelled() => return,
                changed = status.changed() => if changed.is_err() { return },
                // The obstacle may be gone.
                changed = scan.changed() => {
                    if changed.is_err() { return }
                    (pause, earliest) = (FIRST_PAUSE, earliest.min(Instant::now() + FIRST_PAUSE / 2));
                }
                () = sleep_until(earliest), if Instant::now() < earliest => {}
            }
        }
    }

    /// Returns whether an attempt is due: the configuration is programmed, and the node is not yet
    /// served as it requires.
    fn is_due(&self) -> bool {
        let serving_state = self.agent.serving_state();
        let report = self.agent.report().borrow().clone();
        let scan = self.agent.scan().borrow().clone();
        if is_carried_out(
            self.agent.desired_handover(),
            serving_state,
            &scan,
            report.as_deref(),
        ) {
            return false;
        }
        let status = self.agent.status().borrow().clone();
        let mut conditions = status.conditions.iter();
        let is_pending = conditions.any(|condition| {
            condition.type_ == condition::PROGRESSING
                && condition.reason == condition::reason::HANDOVER_PENDING.name
        });
        let is_ready = status_of(&status.conditions, condition::READY) == Status::True;
        is_pending && (is_ready || serving_state == ServingState::HandedBack)
    }

    /// Attempts the handover `desired`. Returns the obstacle, if there is one.
    async fn attempt(&self, desired: Handover) -> Option<String> {
        let what = match desired {
            Handover::Manual => return None,
            Handover::Takeover => Direction::Takeover,
            Handover::Handback => Direction::Handback,
        };
        let _turn = self.turn.lock().await;
        info!(?what, "the profile asks for a handover");
        let mut caller = Caller::default();
        let ending = self
            .carry_out(what, WarningPolicy::Careful, &mut caller)
            .await;
        if ending == Ending::Done {
            info!(?what, "the handover that the profile asks for is done");
            return None;
        }
        let refusal = caller.refusal();
        warn!(
            ?what,
            refusal, "the handover that the profile asks for is {ending}"
        );
        Some(refusal)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use dataplane::Family;

    use super::*;
    use foreign_proxy::process::KubeProxy;
    use foreign_proxy::{Found, Legacy, Mode};

    fn seen(rules: &[Mode], legacy: Legacy) -> ForeignProxyScan {
        let families = BTreeSet::from([Family::Ipv4]);
        let rules = rules.iter().map(|mode| (*mode, families.clone()));
        let rules = BTreeMap::from_iter(rules);
        let found = Found {
            rules,
            legacy,
            ..Found::default()
        };
        ForeignProxyScan::Seen(found, KubeProxy::Silent)
    }

    #[test]
    fn a_takeover_is_done_where_no_rules_of_kube_proxy_are_left() {
        let is_done = |serving_state, scan: &ForeignProxyScan| {
            is_carried_out(Handover::Takeover, serving_state, scan, None)
        };
        let nothing = seen(&[], Legacy::None);
        assert!(is_done(ServingState::Serving, &nothing));
        assert!(is_done(
            ServingState::Serving,
            &seen(&[], Legacy::Unreadable)
        ));
        assert!(!is_done(ServingState::HandedBack, &nothing));
        let ending = ForeignProxyScan::Seen(
            Found {
                ending: foreign_proxy::Ending::Pending,
                ..Found::default()
            },
            KubeProxy::Silent,
        );
        assert!(is_done(ServingState::Serving, &ending));
        assert!(!is_done(ServingState::Serving, &ForeignProxyScan::None));
        for scan in [
            seen(&[Mode::Nftables], Legacy::None),
            seen(&[Mode::Ipvs], Legacy::None),
            seen(&[], Legacy::Chains),
        ] {
            assert!(!is_done(ServingState::Serving, &scan), "{scan:?}");
        }
    }
}
