//! Laws about a kernel whose calls fail.

use std::collections::BTreeSet;
use std::sync::Arc;

use backend::{Backend, Change, Recovery, Rendered};
use dataplane::{Dataplane, Frontend, FrontendKey};

use super::{Rules, Subject};
use crate::faulty_backend::{CallOutcome, Faulty};

/// How many attempts one state may take. With one call in ten failing, 50 in a row do not fail.
const ATTEMPTS: usize = 50;

/// With one call in ten failing, the kernel eventually holds the desired rules. After every
/// attempt, failed or not, frontends that are the same before and after still have their endpoints.
pub fn converges_under_faults<S: Subject>(subject: &S, history: &[Dataplane], seed: u64) {
    let faults = [
        CallOutcome::Refuse(Recovery::Retry),
        CallOutcome::Refuse(Recovery::Observe),
        CallOutcome::LoseAnswer,
    ];
    let mut backend = Faulty::seeded(subject.fresh(), seed, &faults);
    let mut before = Dataplane::default();
    let mut observed = Some(Rendered::default());
    for desired in history {
        let serving = observe(backend.inner());
        let arrived = (0..ATTEMPTS).any(|_| {
            let arrived = attempt(&mut backend, &mut observed, desired);
            let held = observe(backend.inner());
            never_half_serves(subject, (&before, &serving), desired, &held);
            arrived
        });
        assert!(arrived, "{ATTEMPTS} attempts were not enough");
        let held = observe(backend.inner());
        let anew = backend.inner().render(desired, &Rendered::default());
        assert_eq!(
            subject.canonical(&held),
            subject.canonical(&anew),
            "left is what the kernel came to hold, right the desired state"
        );
        before = desired.clone();
    }
}

/// Rules `held` between two states send connections to every frontend that is the same in both to
/// the same endpoints as the rules `before`.
pub fn never_half_serves<S: Subject>(
    subject: &S,
    before: (&Dataplane, &Rules<S>),
    after: &Dataplane,
    held: &Rules<S>,
) {
    let (before, serving) = before;
    for key in same_frontends(before, after) {
        let (had, has) = (subject.targets(serving, &key), subject.targets(held, &key));
        assert_eq!(has, had, "{key} has not changed, but its endpoints have");
    }
}

/// The keys whose winning frontend is the same in both. Empty if the configuration or the node
/// differs: then everything may change.
fn same_frontends(before: &Dataplane, after: &Dataplane) -> BTreeSet<FrontendKey> {
    if before.config() != after.config() || before.node() != after.node() {
        return BTreeSet::new();
    }
    let winner = |dataplane: &Dataplane, key: &FrontendKey| -> Option<Arc<Frontend>> {
        let claims = dataplane.frontends().get(key)?;
        Some(Arc::clone(claims.winner().1))
    };
    let keys = before.frontends().iter().map(|(key, _)| *key);
    keys.filter(|key| winner(before, key) == winner(after, key))
        .collect()
}

/// One attempt to commit, as a reconciler makes it. Returns whether the desired rules were reached.
fn attempt<B: Backend>(
    backend: &mut Faulty<B>,
    observed: &mut Option<Rendered<B::Rules>>,
    desired: &Dataplane,
) -> bool {
    let from = match observed.take() {
        Some(from) => from,
        None => match backend.observe() {
            Ok(rules) => Rendered {
                dataplane: Dataplane::default(),
                rules,
            },
            Err(_) => return false,
        },
    };
    let rules = backend.render(desired, &from);
    let change = backend.diff(&from.rules, &rules);
    let error = if change.size().is_empty() {
        None
    } else {
        backend.commit(change).err()
    };
    match error.map(|error| error.recovery) {
        None => {
            let dataplane = desired.clone();
            *observed = Some(Rendered { dataplane, rules });
            true
        }
        Some(Recovery::Retry) => {
            *observed = Some(from);
            false
        }
        Some(Recovery::Observe) => false,
        Some(recovery) => panic!("no fault asks for {recovery:?}"),
    }
}

fn observe<B: Backend>(backend: &mut B) -> B::Rules {
    backend.observe().expect("the backend below has no faults")
}
