//! What is known of a Service, from its fields to the elements in the kernel and back, and where the
//! kernel differs from what is wanted. Pure: what it is made from is read by whoever asks.

mod answer;
mod connections;
mod endpoints;
mod kernel;
mod place;
mod question;
mod service;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use backend::{Backend, Change as _};
use backend_nftables::{Nftables, Piece, Standing as Found, Table};
use dataplane::{Dataplane, Family, FrontendKey, Rejection, ServiceKey};
use reconciler::{FamilyStatus, Round};
use thiserror::Error;

use crate::inquiry::{Standing, Told};
use answer::{KernelAnswer, PieceAnswer, PieceStanding};

pub(crate) use answer::Explanation;
pub(crate) use kernel::Kernel;
pub(crate) use place::services_at;
pub(crate) use question::{Question, parse_protocol};
pub(crate) use text::{count, line};

/// All that an explanation is made from.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    /// What is wanted.
    pub(crate) dataplane: &'a Dataplane,
    /// What it was compiled from.
    pub(crate) told: &'a Told,
    /// What of it is not honoured.
    pub(crate) rejections: &'a [Rejection],
    /// What the kernel is believed to hold.
    pub(crate) believed: &'a BTreeMap<Family, Table>,
    /// What it was seen to hold.
    pub(crate) kernel: &'a Kernel,
    /// How each family stands.
    pub(crate) families: &'a [FamilyStatus],
}

/// Nobody has told of what is asked about.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Unknown {
    /// No such Service. One with another proxy's label is not even told of by an API server.
    #[error(
        "nothing is known of Service {0} here: it does not exist, or the label \
         service.kubernetes.io/service-proxy-name gives it to another proxy"
    )]
    Service(ServiceKey),
    /// The Service has no such port.
    #[error("Service {service} has no port {port:?}: it has {has}")]
    Port {
        /// Whose.
        service: ServiceKey,
        /// What was asked for.
        port: String,
        /// The ports that there are, in words.
        has: String,
    },
}

/// The answer to `question`.
pub(crate) fn explain(
    question: &Question,
    evidence: &Evidence<'_>,
) -> Result<Explanation, Unknown> {
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
            let view = match evidence.told.services.get(service) {
                Some(Standing::Served { view, .. }) => view,
                Some(Standing::Unserved(reason)) => {
                    let remark = format!("Service {service} is not programmed: {reason}");
                    explanation.remarks.push(remark);
                    return Ok(explanation);
                }
                Some(Standing::Unknown) | None => {
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
    explanation.kernel = explain_kernel(question, &explanation, &asked, evidence);
    Ok(explanation)
}

/// How the kernel stands in the families that the question is about; in all, where it is about none.
fn explain_kernel(
    question: &Question,
    explanation: &Explanation,
    asked: &BTreeMap<ServiceKey, Vec<FrontendKey>>,
    evidence: &Evidence<'_>,
) -> Vec<KernelAnswer> {
    let Kernel::Observed(tables) = evidence.kernel else {
        return Vec::new();
    };
    let mut families: BTreeSet<Family> =
        asked.values().flatten().map(FrontendKey::family).collect();
    if let Question::Address { address, .. } = question {
        families.insert(Family::of(*address));
    }
    let frontends = explanation
        .services
        .iter()
        .flat_map(|service| &service.frontends);
    let named: BTreeSet<&str> = frontends
        .flat_map(|frontend| &frontend.chains)
        .map(|chain| chain.piece.as_str())
        .collect();
    tables
        .iter()
        .filter(|(family, _)| families.is_empty() || families.contains(family))
        .map(|(family, found)| {
            let believed = evidence.believed.get(family);
            let mut families = evidence.families.iter();
            let status = families.find(|status| status.family == *family);
            let damaged = match (believed, found) {
                (Some(believed), Ok(found)) if found.exists() => damaged(believed, found),
                _ => Vec::new(),
            };
            KernelAnswer {
                family: family.to_string(),
                table: describe_table(*family, believed, found),
                damaged: damaged
                    .into_iter()
                    .filter(|piece| !named.contains(piece.piece.as_str()))
                    .collect(),
                last_round: status
                    .and_then(|status| status.rounds.last())
                    .map(|round| describe_round(round)),
            }
        })
        .collect()
}

fn describe_table(
    family: Family,
    believed: Option<&Table>,
    found: &Result<Table, String>,
) -> String {
    let found = match found {
        Ok(found) if found.exists() => found,
        Ok(_) => return "! the table is missing in the kernel".to_owned(),
        Err(error) => return format!("! the table could not be read: {error}"),
    };
    let Some(believed) = believed else {
        return "! what was programmed last is not known".to_owned();
    };
    let mending = Nftables::detached(family).diff(found, believed).size();
    if mending.is_empty() {
        let elements = count(found.elements(), "element");
        return format!("the kernel holds what was programmed, {elements}");
    }
    let pieces = count(mending.elements, "element");
    let pieces = match mending.objects {
        0 => pieces,
        objects => format!("{pieces} and {}", count(objects, "other piece")),
    };
    format!("! the kernel differs from what was programmed: {pieces} to mend")
}

/// Which, when, why and how it ended: what it cost is at `/debug/rounds`.
fn describe_round(round: &Round) -> String {
    let when = jiff::Timestamp::try_from(round.started);
    let when = when.map(|when| format!(" at {when:.0}"));
    format!(
        "{}{} ({}): {}",
        round.number,
        when.unwrap_or_default(),
        round.reason,
        round.outcome
    )
}

/// The chains and sets that are not as they were programmed, and what is in sets that all Services
/// share and was never put there. What is missing in these is told of the Service that misses it.
fn damaged(believed: &Table, found: &Table) -> Vec<PieceAnswer> {
    let chains = believed.compare_chains(found).into_values();
    let shared = believed.compare_memberships(found).into_iter();
    chains
        .chain(believed.compare_sets(found))
        .filter(|piece| piece.standing != Found::Present)
        .chain(shared.filter(|piece| piece.standing == Found::Unwanted))
        .map(verified)
        .collect()
}

/// A piece that was looked for in the kernel.
fn verified(piece: Piece) -> PieceAnswer {
    let (standing, found) = match piece.standing {
        Found::Present => (PieceStanding::Present, Vec::new()),
        Found::Missing => (PieceStanding::Missing, Vec::new()),
        Found::Unwanted => (PieceStanding::Unwanted, Vec::new()),
        Found::Different { found } => (PieceStanding::Different, found),
    };
    PieceAnswer {
        piece: piece.text,
        standing,
        found,
    }
}

#[cfg(test)]
mod tests;
