//! The laws of every backend, applied to a simulated kernel; and invariants of every step of a
//! change.

use std::collections::BTreeSet;

use backend::{Backend, Rendered};
use backend_ipvs::{Change, Ipvs, Rules, simulate};
use dataplane::{Dataplane, Family, FrontendKey, Target};
use proptest::prelude::*;
use testkit::laws::{self, Simulated};
use testkit::{InMemoryBackend, cases, histories, questions, questions_beside_tenants};

struct OfFamily(Family);

impl laws::Subject for OfFamily {
    type Backend = InMemoryBackend<Ipvs>;
    type Canonical = Rules;

    fn fresh(&self) -> InMemoryBackend<Ipvs> {
        InMemoryBackend::new(Ipvs::detached(self.0), |held, change: &Change| {
            for step in change.steps() {
                held.replay(step)?;
            }
            Ok(change.steps().len())
        })
    }

    fn canonical(&self, rules: &Rules) -> Rules {
        rules.canonical(self.0)
    }

    fn targets(&self, rules: &Rules, key: &FrontendKey) -> BTreeSet<Target> {
        rules.targets(key)
    }
}

fn render(family: Family, dataplane: &Dataplane) -> Rules {
    Ipvs::detached(family).render(dataplane, &Rendered::default())
}

/// The rules as read from a kernel to which they were written from nothing.
fn read_back(backend: &Ipvs, desired: &Rules) -> Rules {
    let mut held = Rules::default();
    for step in backend.diff(&held, desired).steps() {
        held.replay(step).expect("every step can be taken");
    }
    held
}

const SIMULATED: Simulated<Rules> = Simulated { render, simulate };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(64)))]

    #[test]
    fn every_law_of_backends_holds(history in histories(5), seed: u64) {
        for family in Family::ALL {
            laws::all(&OfFamily(family), &history, seed);
        }
    }

    #[test]
    fn after_every_step_what_has_not_changed_is_served(history in histories(4)) {
        for family in Family::ALL {
            let backend = Ipvs::detached(family);
            for states in history.windows(2) {
                let [before, after] = states else { continue };
                let from = Rendered { dataplane: before.clone(), rules: render(family, before) };
                let desired = backend.render(after, &from);
                let serving = from.rules;
                let mut held = serving.clone();
                for step in backend.diff(&serving, &desired).steps() {
                    held.replay(step).expect("every step can be taken");
                    laws::never_half_serves(&OfFamily(family), (before, &serving), after, &held);
                }
                prop_assert_eq!(&held, &desired);
            }
        }
    }

    /// No mark changes its owner, so that existing connections stay with their virtual server.
    #[test]
    fn a_virtual_server_that_stays_keeps_its_mark(history in histories(4)) {
        for family in Family::ALL {
            let backend = Ipvs::detached(family);
            let mut observed = Rendered::default();
            for desired in &history {
                let desired_rules = backend.render(desired, &observed);
                for (key, claims) in desired.frontends().iter().filter(|(key, _)| key.family() == family) {
                    let same = observed.dataplane.frontends().get(key).is_some_and(|before| {
                        before.winner() == claims.winner()
                    });
                    if same {
                        prop_assert_eq!(observed.rules.marks(key), desired_rules.marks(key), "{}", key);
                    }
                }
                // An agent that starts reads them from the kernel.
                let found = Rendered { dataplane: Dataplane::default(), rules: read_back(&backend, &desired_rules) };
                let anew = backend.render(desired, &found);
                prop_assert_eq!(&anew, &desired_rules);
                observed = Rendered { dataplane: desired.clone(), rules: desired_rules };
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(1000)))]

    #[test]
    fn every_packet_goes_where_the_dataplane_says((cluster, packets) in questions(23)) {
        SIMULATED.every_packet_goes_where_the_dataplane_says(&cluster, &packets);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(100)))]

    #[test]
    fn honest_verdicts_do_not_depend_on_tenants(
        (cluster, tenants, packets) in questions_beside_tenants(39), seed: u64,
    ) {
        SIMULATED.honest_verdicts_do_not_depend_on_tenants(&cluster, &tenants, &packets, seed);
    }
}
