//! What stands against a takeover: obstacles, which stop it, and warnings, which do not. Pure.

use crds::condition::FOREIGN_PROXY_DETECTED;
use crds::condition::reason::{HANDED_BACK, advice};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use super::{Serving, find};
use crate::check::name_outside;
use crate::pod_network::{Comparison, DETECT_OTHERWISE};
use crate::trouble::{ConditionProblem, Weight, troubles};

/// An obstacle to a takeover.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::migrate) struct Obstacle {
    pub(in crate::migrate) what: String,
    pub(in crate::migrate) next: String,
    /// Whether `--force` overrides it.
    pub(in crate::migrate) yields_to_force: bool,
}

/// What changes with a takeover, or may undo it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::migrate) struct Warning {
    pub(in crate::migrate) what: String,
    pub(in crate::migrate) next: String,
}

// === impl Obstacle ===

impl Obstacle {
    /// A Pod of kube-proxy, which `stop` stops for good.
    pub(super) fn of_pod(pod: &Pod, stop: String) -> Obstacle {
        let (what, next) = match pod.metadata.deletion_timestamp {
            Some(_) => {
                let next =
                    "run this again once `kubectl -n kube-system get pods` no longer lists it";
                ("a kube-proxy Pod is terminating", next.to_owned())
            }
            None => ("a Pod of kube-proxy runs", stop),
        };
        Obstacle {
            what: what.to_owned(),
            next,
            yields_to_force: false,
        }
    }

    /// Pods that detection by podCIDRs does not recognise. The same text for all nodes, so that it
    /// is printed once.
    pub(super) fn of_pod_addresses(comparison: &Comparison<'_>) -> Obstacle {
        let Comparison { compared, outside } = comparison;
        Obstacle {
            what: format!(
                "detectLocal.mode is NodeCIDR, and {} of {compared} Pods have addresses outside of the podCIDRs of their \
                 nodes: {}",
                outside.len(),
                name_outside(outside)
            ),
            next: DETECT_OTHERWISE.to_owned(),
            yields_to_force: true,
        }
    }

    pub(in crate::migrate) fn no_agent() -> Obstacle {
        Obstacle {
            what: "no agent runs".to_owned(),
            next: "`kubectl get pods -A -o wide -l app.kubernetes.io/component=agent` shows where agents run; `kubectl signpost check` says what is missing"
                .to_owned(),
            yields_to_force: false,
        }
    }

    /// No proxy serves the node, so that it cannot be handed back.
    pub(in crate::migrate) fn unserved(node: &str) -> Obstacle {
        Obstacle {
            what: "no proxy serves this node: it was handed back and has no rules of kube-proxy"
                .to_owned(),
            next: format!(
                "start kube-proxy on it, or `kubectl signpost migrate takeover --node {node}`"
            ),
            yields_to_force: false,
        }
    }

    pub(super) fn no_proxy() -> Obstacle {
        Obstacle {
            what: "the node has no NodeProxy".to_owned(),
            next: advice("NoConfiguration").unwrap_or_default().to_owned(),
            yields_to_force: false,
        }
    }

    /// Returns the obstacles that the conditions of a NodeProxy report.
    pub(super) fn of_conditions(conditions: &[Condition], serving: Serving) -> Vec<Obstacle> {
        let faults = troubles(conditions).into_iter();
        let faults = faults.filter(|trouble| {
            trouble.weight == Weight::Fault && trouble.reason != HANDED_BACK.name
        });
        let mut obstacles: Vec<Obstacle> = faults.map(Obstacle::of_trouble).collect();
        let found = find(conditions, FOREIGN_PROXY_DETECTED);
        if serving == Serving::Unknown {
            let next = found.and_then(|condition| advice(&condition.reason));
            obstacles.push(Obstacle {
                what: "the agent does not know whether the node has rules of kube-proxy".to_owned(),
                next: next
                    .unwrap_or(
                        "wait until it has reported; `kubectl signpost nodes` says why it does not",
                    )
                    .to_owned(),
                yields_to_force: true,
            });
        }
        obstacles
    }

    fn of_trouble(trouble: ConditionProblem) -> Obstacle {
        let ConditionProblem {
            condition,
            status,
            reason,
            message,
            advice,
            ..
        } = trouble;
        Obstacle {
            what: format!("{condition} is {status}, {reason}: {message}"),
            next: advice
                .unwrap_or("`kubectl signpost nodes` shows what is wrong with the node")
                .to_owned(),
            yields_to_force: true,
        }
    }
}
