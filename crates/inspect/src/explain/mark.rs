//! Answers questions about the mark of a virtual server: which Service port's it is, and which
//! addresses lead to it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use backend::{AnyRules, FORWARDING_MARKS, MarkOwner};
use dataplane::{Family, FrontendKey, Mode, ServiceKey};
use modes::{DetachedModes, RulesByMode};

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
    /// The mode that uses the mark.
    mode: Mode,
    family: Family,
    owner: MarkOwner,
    /// The addresses that lead to it.
    frontends: Vec<FrontendKey>,
}

/// The Services whose virtual servers have the mark of `question`, by the rules that were programmed
/// last in one of these `modes`. None for a question about something else.
pub fn services_of_mark(
    question: &Question,
    programmed: &BTreeMap<Family, RulesByMode>,
    modes: &DetachedModes,
) -> BTreeSet<ServiceKey> {
    let Question::Mark { mark, family } = question else {
        return BTreeSet::new();
    };
    let families = programmed.iter();
    let families = families.filter(|(own, _)| family.is_none_or(|family| family == **own));
    let services = families.filter_map(|(family, rules)| {
        let rules = |mode| [rules.of(mode), AnyRules::default()];
        match owner(*mark, *family, modes, rules)? {
            (_, MarkOwner::ServicePort(port)) => Some(port.service),
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
    let mut is_signposts = false;
    let families = Family::ALL.into_iter();
    for family in families.filter(|own| family.is_none_or(|family| family == *own)) {
        let Some(marked) = Marked::of(mark, family, evidence) else {
            continue;
        };
        is_signposts = true;
        remarks.extend(marked.remark(question));
        match marked.owner {
            MarkOwner::ServicePort(port) => {
                let frontends = asked.entry(port.service).or_default();
                frontends.extend(marked.frontends);
            }
            MarkOwner::Connections => {
                let backend = evidence.modes.simulator(marked.mode, family);
                let [programmed, found] = rules(marked.mode, family, evidence);
                let pieces = backend.compare_mark(&programmed, &found, mark);
                left.extend(pieces.into_iter().map(verified));
            }
            MarkOwner::NotSignpost | MarkOwner::Unassigned => {}
        }
    }
    if remarks.is_empty() {
        // The first mark has no virtual server.
        let first = FORWARDING_MARKS.value + 1;
        let remark = match is_signposts {
            false => format!(
                "{question} is not Signpost's: its virtual servers have marks from {first:#x} on, which is \
                 FWM {first}"
            ),
            true => format!(
                "no Service has {question}: if `ipvsadm -Ln` lists it, it stays for connections that have \
                 outlived their mode"
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

/// The rules of `mode` that were programmed last, and those in the kernel, if it was read.
fn rules(mode: Mode, family: Family, evidence: &Evidence<'_>) -> [AnyRules; 2] {
    [evidence.observed.get(&family), evidence.kernel.held(family)]
        .map(|held| held.map(|held| held.of(mode)).unwrap_or_default())
}

/// The mode that uses `mark`, and whose the virtual server is, by what `rules` returns for each mode: the
/// rules that were programmed last, and those that were found. `None` if no mode uses the mark.
///
/// Asks every mode, not only the active one: the kernel has rules of two while one replaces the other.
fn owner(
    mark: u32,
    family: Family,
    modes: &DetachedModes,
    rules: impl Fn(Mode) -> [AnyRules; 2],
) -> Option<(Mode, MarkOwner)> {
    modes.simulators(family).find_map(|(mode, backend)| {
        let [programmed, found] = rules(mode);
        let owner = backend.mark_owner(&programmed, &found, mark);
        (owner != MarkOwner::NotSignpost).then_some((mode, owner))
    })
}

// === impl Marked ===

impl Marked {
    /// `None` if no mode uses the mark.
    fn of(mark: u32, family: Family, evidence: &Evidence<'_>) -> Option<Marked> {
        let modes = evidence.modes;
        let (mode, owner) = owner(mark, family, modes, |mode| rules(mode, family, evidence))?;
        let frontends = match &owner {
            MarkOwner::ServicePort(port) => {
                let service = evidence.dataplane.services().get(&port.service);
                let keys = service.into_iter().flat_map(|rules| &rules.frontends);
                let keys = keys
                    .map(|(key, _)| *key)
                    .filter(|key| key.family() == family);
                let backend = modes.simulator(mode, family);
                let [programmed, _] = rules(mode, family, evidence);
                keys.filter(|key| backend.marks(&programmed, key).contains(&mark))
                    .collect()
            }
            _ => Vec::new(),
        };
        Some(Marked {
            mode,
            family,
            owner,
            frontends,
        })
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
            MarkOwner::NotSignpost | MarkOwner::Unassigned => None,
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
