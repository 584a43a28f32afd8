//! The state of the kernel as a whole, for each family. Pure.

use std::collections::{BTreeMap, BTreeSet};

use backend::Found;
use dataplane::{Family, FrontendKey, ServiceKey};
use modes::RulesByMode;
use reconciler::FamilySync;

use super::answer::{Explanation, KernelAnswer, PieceAnswer};
use super::comparison::verified;
use super::{Evidence, Kernel, Question};

/// Describes the state of the kernel in the families that the question is about, or in all families
/// if it is about none.
pub(super) fn explain_kernel(
    question: &Question,
    explanation: &Explanation,
    asked: &BTreeMap<ServiceKey, Vec<FrontendKey>>,
    evidence: &Evidence<'_>,
) -> Vec<KernelAnswer> {
    let Kernel::Observed(seen) = evidence.kernel else {
        return Vec::new();
    };
    let mut families: BTreeSet<Family> =
        asked.values().flatten().map(FrontendKey::family).collect();
    match question {
        Question::Address { address, .. } => drop(families.insert(Family::of(*address))),
        Question::Mark { family, .. } => families.extend(family),
        Question::Service { .. } | Question::NodePort { .. } => {}
    }
    let frontends = explanation
        .services
        .iter()
        .flat_map(|service| &service.frontends);
    let named: BTreeSet<&str> = frontends
        .flat_map(|frontend| &frontend.chains)
        .map(|chain| chain.piece.as_str())
        .collect();
    seen.iter()
        .filter(|(family, _)| families.is_empty() || families.contains(family))
        .map(|(family, found)| {
            let mut families = evidence.families.iter();
            let status = families.find(|status| status.family == *family);
            let (table, damaged) = compare(*family, found, evidence);
            KernelAnswer {
                family: family.to_string(),
                table,
                damaged: damaged
                    .into_iter()
                    .filter(|piece| !named.contains(piece.piece.as_str()))
                    .collect(),
                last_sync: status
                    .and_then(|status| status.syncs.last())
                    .map(|sync| describe_sync(sync)),
            }
        })
        .collect()
}

/// Returns a sentence about the whole family, and the pieces that all Services share and that
/// differ from what was programmed.
fn compare(
    family: Family,
    found: &Result<RulesByMode, String>,
    evidence: &Evidence<'_>,
) -> (String, Vec<PieceAnswer>) {
    let (backend, mode) = (evidence.backend(family), evidence.mode(family));
    let found = match found {
        Ok(held) => held.of(mode),
        Err(error) => return (backend.describe(Found::Unreadable(error)), Vec::new()),
    };
    if !backend.exist(&found) {
        return (backend.describe(Found::Missing), Vec::new());
    }
    let Some(observed) = evidence.observed.get(&family) else {
        let unknown = "! the last programmed state is unknown".to_owned();
        return (unknown, Vec::new());
    };
    let programmed = observed.of(mode);
    let damaged = backend.compare_shared(&programmed, &found).into_iter();
    let described = backend.describe(Found::Rules {
        programmed: &programmed,
        found: &found,
    });
    (described, damaged.map(verified).collect())
}

/// Describes number, time, reason and outcome of a sync. `/debug/syncs` shows its cost.
fn describe_sync(sync: &FamilySync) -> String {
    let when = jiff::Timestamp::try_from(sync.started);
    let when = when.map(|when| format!(" at {when:.0}"));
    format!(
        "{}{} ({}): {}",
        sync.number,
        when.unwrap_or_default(),
        sync.reason,
        sync.outcome
    )
}
