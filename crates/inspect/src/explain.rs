//! Explains a Service from its fields to its elements or rules in the kernel and back, and where
//! the kernel differs from the desired state. Pure: the caller reads the evidence.

mod answer;
mod comparison;
mod connections;
mod endpoints;
mod families;
mod kernel;
mod left_out;
mod mark;
mod place;
mod question;
mod service;
mod text;

use std::collections::BTreeMap;

use backend::{AnyBackend, count};
use dataplane::{Dataplane, Family, Mode, Rejection, ServiceKey};
use modes::{DetachedModes, RulesByMode};
use reconciler::FamilyStatus;
use thiserror::Error;
use xtables::Variant;

use crate::{QueryResult, ServiceState};

pub use answer::Explanation;
pub(crate) use kernel::active_mode;
pub use kernel::{Kernel, RulesLocation};
pub use left_out::asks_for;
pub use mark::services_of_mark;
pub use place::services_at;
pub(crate) use question::parse_protocol;
pub use question::{ParseQuestionError, Question};
pub(crate) use text::line;

/// The inputs of an explanation.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// The desired state.
    pub dataplane: &'a Dataplane,
    /// What the source delivered about the Services in question.
    pub reported: &'a QueryResult,
    /// The parts of it that are not honoured.
    pub rejections: &'a [Rejection],
    /// The rules that the agent last observed.
    pub observed: &'a BTreeMap<Family, RulesByMode>,
    /// The rules in the kernel, as read for this question.
    pub kernel: &'a Kernel,
    /// The status of each family.
    pub families: &'a [FamilyStatus],
    /// The iptables variant in use, if a family uses iptables.
    pub variant: Variant,
    /// The modes that there are.
    pub modes: &'a DetachedModes,
}

/// The source has no such object.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unknown {
    /// No such Service. The agent does not list Services with another proxy's label.
    #[error(
        "the agent of this node does not know Service {0}: it does not exist, or its label \
         service.kubernetes.io/service-proxy-name assigns it to another proxy"
    )]
    Service(ServiceKey),
    /// The Service has no such port.
    #[error("Service {service} has no port {port:?}: it has {has}")]
    Port {
        /// The Service.
        service: ServiceKey,
        /// The requested port.
        port: String,
        /// The ports of the Service, in words.
        has: String,
    },
}

/// Answers `question`.
pub fn explain(question: &Question, evidence: &Evidence<'_>) -> Result<Explanation, Unknown> {
    let mut explanation = Explanation {
        question: question.to_string(),
        node: evidence.dataplane.node().name.to_string(),
        remarks: Vec::new(),
        services: Vec::new(),
        endpoint_of: Vec::new(),
        unclaimed: None,
        kernel: Vec::new(),
    };
    let asked = match question {
        Question::Service { service, port } => {
            let view = match evidence.reported.services.get(service) {
                Some(ServiceState::Served { view, .. }) => view,
                Some(ServiceState::Unserved(reason)) => {
                    let remark = format!("Service {service} is not programmed: {reason}");
                    explanation.remarks.push(remark);
                    return Ok(explanation);
                }
                Some(ServiceState::Unknown) | None => {
                    let reasons = service::rejected(service, &[], evidence);
                    if reasons.is_empty() {
                        return Err(Unknown::Service(service.clone()));
                    }
                    let remark = format!("Service {service} is not programmed");
                    explanation.remarks.push(remark);
                    explanation.remarks.extend(reasons);
                    return Ok(explanation);
                }
            };
            let keys = service::frontends_of(&view.service, port.as_deref(), evidence)?;
            BTreeMap::from([(service.clone(), keys)])
        }
        Question::Mark { mark, family } => {
            let answer = mark::explain_mark(*mark, *family, question, evidence);
            explanation.remarks = answer.remarks;
            explanation.unclaimed = answer.left;
            answer.asked
        }
        place => {
            let asked = place::frontends_at(place, evidence.dataplane);
            explanation.endpoint_of = place::endpoint_of(place, evidence);
            explanation.remarks = place::remarks(place, &asked, &explanation.endpoint_of, evidence);
            explanation.unclaimed = place::explain_unclaimed(place, &asked, evidence);
            asked
        }
    };
    for (service, keys) in &asked {
        let answer = service::explain_service(service, keys, evidence);
        explanation.services.extend(answer);
    }
    explanation.kernel = families::explain_kernel(question, &explanation, &asked, evidence);
    Ok(explanation)
}

// === impl Evidence ===

impl Evidence<'_> {
    /// Returns the backend that programs `family`, without a kernel.
    fn backend(&self, family: Family) -> AnyBackend {
        self.modes.backend(self.mode(family), family, self.variant)
    }

    /// Returns the active mode of `family`.
    fn mode(&self, family: Family) -> Mode {
        let desired = self.dataplane.config().mode;
        let held = self.observed.get(&family).or(self.kernel.held(family));
        held.map_or(desired, |held| active_mode(held, desired))
    }
}

#[cfg(test)]
mod tests;
