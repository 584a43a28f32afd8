//! Answers questions about the mark of a virtual server: which Service port's it is, and which
//! addresses lead to it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use backend::{AnyRules, MarkOwner};
use dataplane::{Family, FrontendKey, Mode, ServiceKey};
use modes::{RulesByMode, detached};
use xtables::Variant;

use super::answer::FrontendAnswer;
use super::comparison::verified;
use super::{Evidence, Question};

/// What is known of a mark.
pub(super) struct MarkAnswer {
    /// The frontends that lead to virtual servers with it, by Service.
    pub(super) asked: BTreeMap<ServiceKey, Vec<FrontendKey>>,
    /// General remarks, in sentences without a final full stop.
    pub(super) remarks: Vec<String>,
    /// The virtual servers that no frontend leads to.
    pub(super) left: Option<FrontendAnswer>,
}

/// The virtual server of one family with the mark of a question.
struct Marked {
    family: Family,
    owner: MarkOwner,
    /// The addresses that lead to it.
    frontends: Vec<FrontendKey>,
}

/// The Services whose virtual servers have the mark of `question`, by the rules that were programmed
/// last. None for a question about something else.
pub fn services_of_mark(
    question: &Question,
    programmed: &BTreeMap<Family, RulesByMode>,
) -> BTreeSet<ServiceKey> {
    let Question::Mark { mark, family } = question else {
        return BTreeSet::new();
    };
    let families = programmed.iter();
    let families = families.filter(|(own, _)| family.is_none_or(|family| family == **own));
    let services = families.filter_map(|(family, rules)| {
        let rules = rules.of(Mode::Ipvs);
        match owner(*family, &rules, &AnyRules::default(), *mark) {
            MarkOwner::ServicePort(port) => Some(port.service),
            _ => None,
        }
    });
    services.collect()
}

/// Explains the virtual servers with the mark of `question`.
pub(super) fn explain_mark(
    mark: u32,
    family: Option<Family>,
    question: &Question,
    evidence: &Evidence<'_>,
) -> MarkAnswer {
    let mut asked: BTreeMap<ServiceKey, Vec<FrontendKey>> = BTreeMap::new();
    let mut remarks = Vec::new();
    let mut left = Vec::new();
    let families = Family::ALL.into_iter();
    for family in families.filter(|own| family.is_none_or(|family| family == *own)) {
        let marked = Marked::of(mark, family, evidence);
        remarks.extend(marked.remark(question));
        match marked.owner {
            MarkOwner::ServicePort(port) => {
                let frontends = asked.entry(port.service).or_default();
                frontends.extend(marked.frontends);
            }
            MarkOwner::Connections => {
                let backend = detached(Mode::Ipvs, family, Variant::NfTables);
                let [programmed, found] = rules(family, evidence);
                let pieces = backend.compare_mark(&programmed, &found, mark);
                left.extend(pieces.into_iter().map(verified));
            }
            MarkOwner::OtherProgram | MarkOwner::Nobody => {}
        }
    }
    if remarks.is_empty() {
        let remark = match Marked::of(mark, Family::Ipv4, evidence).owner {
            MarkOwner::OtherProgram => format!(
                "{question} is not Signpost's: its virtual servers have marks from 0x53400001 on, which is \
                 FWM 1396703233"
            ),
            _ => format!(
                "no Service has {question}: if `ipvsadm -Ln` lists it, it stays for connections that have \
                 outlived mode ipvs"
            ),
        };
        remarks.push(remark);
    }
    let left = (!left.is_empty()).then(|| FrontendAnswer::unclaimed(&question, left));
    MarkAnswer {
        asked,
        remarks,
        left,
    }
}

/// The rules of mode ipvs that were programmed last, and those in the kernel, if it was read.
fn rules(family: Family, evidence: &Evidence<'_>) -> [AnyRules; 2] {
    [evidence.observed.get(&family), evidence.kernel.held(family)]
        .map(|held| held.map(|held| held.of(Mode::Ipvs)).unwrap_or_default())
}

fn owner(family: Family, programmed: &AnyRules, found: &AnyRules, mark: u32) -> MarkOwner {
    // Only mode ipvs has virtual servers, also while another mode takes its place.
    let backend = detached(Mode::Ipvs, family, Variant::NfTables);
    backend.mark_owner(programmed, found, mark)
}

// === impl Marked ===

impl Marked {
    fn of(mark: u32, family: Family, evidence: &Evidence<'_>) -> Marked {
        let [programmed, found] = rules(family, evidence);
        let owner = owner(family, &programmed, &found, mark);
        let frontends = match &owner {
            MarkOwner::ServicePort(port) => {
                let rules = evidence.dataplane.services().get(&port.service);
                let keys = rules.into_iter().flat_map(|rules| &rules.frontends);
                let keys = keys
                    .map(|(key, _)| *key)
                    .filter(|key| key.family() == family);
                let backend = detached(Mode::Ipvs, family, Variant::NfTables);
                keys.filter(|key| backend.marks(&programmed, key).contains(&mark))
                    .collect()
            }
            _ => Vec::new(),
        };
        Marked {
            family,
            owner,
            frontends,
        }
    }

    /// `None` if there is no such virtual server.
    fn remark(&self, question: &Question) -> Option<String> {
        let family = self.family;
        match &self.owner {
            MarkOwner::ServicePort(port) => {
                let frontends = self.frontends.iter().map(FrontendKey::to_string);
                let frontends: Vec<String> = frontends.collect();
                let lead = match frontends.is_empty() {
                    true => "no address leads to it".to_owned(),
                    false => format!("reached at {}", frontends.join(", ")),
                };
                Some(format!(
                    "{question} is a virtual server of {} for {family}, {lead}",
                    describe_port(port)
                ))
            }
            MarkOwner::Connections => Some(format!(
                "{question} is a virtual server of Signpost's for {family} that no address leads to any more: it \
                 stays until its connections have ended"
            )),
            MarkOwner::OtherProgram | MarkOwner::Nobody => None,
        }
    }
}

fn describe_port(port: &dataplane::ServicePortName) -> String {
    let (service, protocol) = (&port.service, port.protocol);
    match port.port.is_empty() {
        true => format!("Service {service} ({protocol})"),
        false => format!("Service {service}, port {} ({protocol})", port.port),
    }
}
