//! The simulated rules send every packet where the dataplane says it may go.

use std::sync::Arc;

use backend::{Backend, Rendered};
use backend_nftables::{Nftables, Table, simulate};
use dataplane::{Dataplane, Family};
use proptest::prelude::*;
use testkit::laws::Simulated;
use testkit::{cases, clusters, questions, questions_beside_tenants};

fn render(family: Family, dataplane: &Dataplane) -> Table {
    Nftables::detached(family).render(dataplane, &Rendered::default())
}

const SIMULATED: Simulated<Table> = Simulated { render, simulate };

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
        cluster in clusters(), order in any::<prop::sample::Index>(),
    ) {
        let whole = cluster.compile();
        for family in Family::ALL {
            let backend = Nftables::detached(family);
            let mut dataplane = Dataplane::new(Arc::clone(&cluster.node), Arc::clone(&cluster.config));
            let mut rendered = Rendered::default();
            let services: Vec<_> = whole.services().iter().map(|(_, rules)| Arc::clone(rules)).collect();
            let start = if services.is_empty() { 0 } else { order.index(services.len()) };
            for rules in services[start..].iter().chain(&services[..start]) {
                dataplane.set(Arc::clone(rules));
                let rules = backend.render(&dataplane, &rendered);
                rendered = Rendered { dataplane: dataplane.clone(), rules };
            }
            let rules = backend.render(&whole, &rendered);
            let at_once = render(family, &whole);
            prop_assert_eq!(rules.canonical(family).to_string(), at_once.canonical(family).to_string());
        }
    }

    #[test]
    fn a_change_replayed_leads_from_one_cluster_to_another(
        one in clusters(), other in clusters(), damaged in any::<bool>(),
    ) {
        for family in Family::ALL {
            let backend = Nftables::detached(family);
            let (one, other) = (one.compile(), other.compile());
            let from = Rendered { dataplane: one.clone(), rules: render(family, &one) };
            let mut kernel = Table::default();
            for transaction in backend.diff(&kernel, &from.rules).transactions() {
                kernel.replay(transaction).map_err(|refused| TestCaseError::fail(refused.to_string()))?;
            }
            prop_assert_eq!(&kernel, &from.rules);
            // Incremental, or from rules read back after another program changed them.
            let from = if damaged { Rendered { dataplane: Dataplane::default(), rules: kernel.clone() } } else { from };
            let desired = backend.render(&other, &from);
            let change = backend.diff(&from.rules, &desired);
            for transaction in change.transactions() {
                kernel.replay(transaction).map_err(|refused| TestCaseError::fail(format!("{refused}\n{change}")))?;
            }
            prop_assert_eq!(&kernel, &desired);
            prop_assert!(backend.diff(&desired, &desired).transactions().is_empty());
            prop_assert_eq!(kernel.canonical(family), render(family, &other).canonical(family));
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
