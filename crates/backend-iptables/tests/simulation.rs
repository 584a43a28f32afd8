//! The simulated rules send every packet where the dataplane says it may go.

use std::sync::Arc;

use backend::{Backend, Rendered};
use backend_iptables::{Iptables, Rules, simulate};
use dataplane::{Dataplane, Family};
use proptest::prelude::*;
use testkit::laws::Simulated;
use testkit::{cases, clusters, questions, questions_beside_tenants};
use xtables::Variant;

fn backend(family: Family) -> Iptables {
    Iptables::detached(family, Variant::NfTables)
}

fn render(family: Family, dataplane: &Dataplane) -> Rules {
    backend(family).render(dataplane, &Rendered::default())
}

const SIMULATED: Simulated<Rules> = Simulated { render, simulate };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(1500)))]

    #[test]
    fn every_packet_goes_where_the_dataplane_says((cluster, packets) in questions(23)) {
        SIMULATED.every_packet_goes_where_the_dataplane_says(&cluster, &packets);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(150)))]

    #[test]
    fn rendering_in_steps_gives_what_rendering_at_once_gives(
        cluster in clusters(), other in clusters(), order in any::<prop::sample::Index>(),
    ) {
        let whole = cluster.compile();
        for family in Family::ALL {
            let backend = backend(family);
            let mut dataplane = Dataplane::new(Arc::clone(&cluster.node), Arc::clone(&cluster.config));
            let mut rendered = Rendered::default();
            // Services that existed before and are removed one by one.
            let strange = other.compile();
            for (_, rules) in strange.services().iter() {
                dataplane.set(Arc::clone(rules));
            }
            let strangers: Vec<_> = strange.services().iter().map(|(key, _)| key.clone()).collect();
            let services: Vec<_> = whole.services().iter().map(|(_, rules)| Arc::clone(rules)).collect();
            let start = if services.is_empty() { 0 } else { order.index(services.len()) };
            let mut step = |dataplane: &Dataplane| {
                let rules = backend.render(dataplane, &rendered);
                rendered = Rendered { dataplane: dataplane.clone(), rules };
            };
            step(&dataplane);
            for service in strangers.iter().filter(|key| whole.services().get(key).is_none()) {
                dataplane.remove(service);
                step(&dataplane);
            }
            for rules in services[start..].iter().chain(&services[..start]) {
                dataplane.set(Arc::clone(rules));
                step(&dataplane);
            }
            let rules = backend.render(&whole, &rendered);
            prop_assert_eq!(rules.to_string(), render(family, &whole).to_string());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(150)))]

    #[test]
    fn honest_verdicts_do_not_depend_on_tenants(
        (cluster, tenants, packets) in questions_beside_tenants(39), seed: u64,
    ) {
        SIMULATED.honest_verdicts_do_not_depend_on_tenants(&cluster, &tenants, &packets, seed);
    }
}
