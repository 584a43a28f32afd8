//! How the kernel as a whole stands, family by family. Pure.

use std::collections::{BTreeMap, BTreeSet};

use backend::{Backend, Change as _, Standing as Found};
use backend_iptables::{Iptables, Rules};
use backend_nftables::{Nftables, Table};
use dataplane::{Family, FrontendKey, Mechanism, ServiceKey};
use reconciler::Round;
use xtables::TableName;

use super::answer::{Explanation, KernelAnswer, PieceAnswer};
use super::comparison::verified;
use super::{Evidence, Kernel, Question, count};
use crate::mechanism::Held;

/// How the kernel stands in the families that the question is about; in all, where it is about none.
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
                last_round: status
                    .and_then(|status| status.rounds.last())
                    .map(|round| describe_round(round)),
            }
        })
        .collect()
}

/// A sentence on the whole family, and what of it all Services share and is not as it was programmed.
fn compare(
    family: Family,
    found: &Result<Held, String>,
    evidence: &Evidence<'_>,
) -> (String, Vec<PieceAnswer>) {
    let believed = evidence.believed.get(&family);
    let unknown = || "! what was programmed last is not known".to_owned();
    match (evidence.mechanism(family), found) {
        (Mechanism::Nftables, Err(error)) => (
            format!("! the table could not be read: {error}"),
            Vec::new(),
        ),
        (Mechanism::Nftables, Ok(found)) if !found.nftables.exists() => (
            "! the table is missing in the kernel".to_owned(),
            Vec::new(),
        ),
        (Mechanism::Nftables, Ok(found)) => match believed {
            None => (unknown(), Vec::new()),
            Some(Held { nftables, .. }) => (
                describe_table(family, nftables, &found.nftables),
                damaged_table(nftables, &found.nftables),
            ),
        },
        (Mechanism::Iptables, Err(error)) => (
            format!("! the rules could not be read: {error}"),
            Vec::new(),
        ),
        (Mechanism::Iptables, Ok(found)) if !found.iptables.exist() => (
            "! our rules are missing in the kernel".to_owned(),
            Vec::new(),
        ),
        (Mechanism::Iptables, Ok(found)) => match believed {
            None => (unknown(), Vec::new()),
            Some(Held { iptables, .. }) => (
                describe_rules(family, iptables, &found.iptables, evidence),
                damaged_rules(iptables, &found.iptables),
            ),
        },
    }
}

fn describe_table(family: Family, believed: &Table, found: &Table) -> String {
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

fn describe_rules(
    family: Family,
    believed: &Rules,
    found: &Rules,
    evidence: &Evidence<'_>,
) -> String {
    let backend = Iptables::detached(family, evidence.variant);
    let mending = backend.diff(found, believed).size();
    if mending.is_empty() {
        let rules = TableName::ALL.iter().map(|table| found.count(*table)).sum();
        let (rules, variant) = (count(rules, "rule"), evidence.variant);
        return format!("the kernel holds what was programmed, {rules} of iptables ({variant})");
    }
    // Chains are written whole: how many rules that takes says nothing of how many are wrong.
    let chains = count(mending.objects, "chain");
    format!("! the kernel differs from what was programmed: {chains} to mend")
}

/// The chains and sets that are not as they were programmed, and what is in sets that all Services
/// share and was never put there. What is missing in these is told of the Service that misses it.
fn damaged_table(believed: &Table, found: &Table) -> Vec<PieceAnswer> {
    let chains = believed.compare_chains(found).into_values();
    let shared = believed.compare_memberships(found).into_iter();
    chains
        .chain(believed.compare_sets(found))
        .chain(believed.compare_numbers(found))
        .filter(|piece| piece.standing != Found::Present)
        .chain(shared.filter(|piece| piece.standing == Found::Unwanted))
        .map(verified)
        .collect()
}

/// The chains that all packets pass and that are not as they were programmed, and those that nobody
/// wants.
fn damaged_rules(believed: &Rules, found: &Rules) -> Vec<PieceAnswer> {
    let shared = believed.compare_shared(found).into_iter();
    let damaged = shared.filter(|piece| piece.standing != Found::Present);
    damaged.map(verified).collect()
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
