//! The laws of every backend, over a kernel that is a value; and what a change may never do on its
//! way.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use backend::{
    Asked, Backend, CommitError, Drift, Effect, ObserveError, Receipt, Recovery, Rendered,
    Shortcoming,
};
use backend_iptables::{Change, Iptables, Rules};
use dataplane::{
    ChunkSize, Config, Dataplane, Family, FrontendKey, Precedence, ServiceKey, Target, compile,
};
use proptest::prelude::*;
use testkit::{
    clusters, clusters_with_tenants, histories, laws, mk_config, mk_endpoints, mk_node, mk_service,
};
use xtables::{TableName, Variant};

/// Programs a value.
struct OverAValue {
    backend: Iptables,
    held: Rules,
}

struct EitherVariant {
    family: Family,
    variant: Variant,
}

impl Backend for OverAValue {
    type Rules = Rules;
    type Change = Change;

    fn family(&self) -> Family {
        self.backend.family()
    }

    fn chunk_size(&self, config: &Config) -> ChunkSize {
        self.backend.chunk_size(config)
    }

    fn longest_part(&self, config: &Config) -> Duration {
        self.backend.longest_part(config)
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<Rules>) -> Rules {
        self.backend.render(desired, from)
    }

    fn diff(&self, believed: &Rules, wanted: &Rules) -> Change {
        self.backend.diff(believed, wanted)
    }

    fn observe(&mut self) -> Result<Rules, ObserveError> {
        Ok(self.held.clone())
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        Ok(Drift::None)
    }

    fn commit(&mut self, change: Change) -> Result<Receipt, CommitError> {
        for step in change.steps() {
            self.held.replay(step).map_err(|refused| CommitError {
                family: self.backend.family(),
                recovery: Recovery::Observe,
                effect: Effect::Possible,
                source: refused.into(),
            })?;
        }
        Ok(Receipt {
            transactions: change.steps().len(),
        })
    }

    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        let change = self.backend.diff(&self.held, &Rules::default());
        self.commit(change)
    }

    fn suspects(&self, change: &Change, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        self.backend.suspects(change, desired)
    }

    fn shortcomings(&self, asked: Asked<'_>) -> Vec<Shortcoming> {
        self.backend.shortcomings(asked)
    }
}

impl laws::Subject for EitherVariant {
    type Backend = OverAValue;
    type Canonical = Rules;

    fn fresh(&self) -> OverAValue {
        OverAValue {
            backend: Iptables::detached(self.family, self.variant),
            held: Rules::default(),
        }
    }

    fn canonical(&self, rules: &Rules) -> Rules {
        rules.clone()
    }

    fn targets(&self, rules: &Rules, key: &FrontendKey) -> BTreeSet<Target> {
        rules.targets(key)
    }
}

/// How many rules they say they have.
fn counted(rules: &Rules) -> usize {
    TableName::ALL.map(|table| rules.count(table)).iter().sum()
}

/// How many rules a person counts.
fn printed(rules: &Rules) -> usize {
    let text = rules.to_string();
    text.lines().filter(|line| line.starts_with("-A ")).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_law_of_backends_holds(history in histories(5), seed: u64) {
        for family in Family::ALL {
            for variant in [Variant::NfTables, Variant::Legacy] {
                laws::all(&EitherVariant { family, variant }, &history, seed);
            }
        }
    }

    #[test]
    fn after_every_step_what_has_not_changed_is_served(history in histories(4)) {
        for family in Family::ALL {
            let subject = EitherVariant { family, variant: Variant::Legacy };
            let backend = Iptables::detached(family, Variant::Legacy);
            for states in history.windows(2) {
                let [before, after] = states else { continue };
                let serving = backend.render(before, &Rendered::default());
                let wanted = backend.render(after, &Rendered::default());
                let mut held = Rules::default();
                for step in backend.diff(&held, &serving).steps() {
                    held.replay(step).expect("every step can be taken");
                }
                prop_assert_eq!(&held, &serving);
                for step in backend.diff(&serving, &wanted).steps() {
                    held.replay(step).expect("every step can be taken");
                    laws::never_half_serves(&subject, (before, &serving), after, &held);
                }
                prop_assert_eq!(&held, &wanted);
                prop_assert_eq!(counted(&held), printed(&held));
                let advanced = backend.render(after, &Rendered {
                    dataplane: before.clone(),
                    rules: serving,
                });
                prop_assert_eq!(counted(&advanced), printed(&wanted));
            }
        }
    }

    #[test]
    fn the_api_server_and_dns_are_served_after_the_first_steps(cluster in clusters()) {
        let dataplane = cluster.compile();
        for family in Family::ALL {
            let backend = Iptables::detached(family, Variant::NfTables);
            let wanted = backend.render(&dataplane, &Rendered::default());
            let first: Vec<_> = dataplane.frontends().iter().filter(|(key, claims)| {
                let (service, frontend) = claims.winner();
                let whole = dataplane.services().get(service);
                let is_first = whole.is_some_and(|rules| {
                    rules.frontends.iter().all(|(_, f)| f.precedence == Precedence::First)
                });
                key.family() == family && is_first && !frontend.cluster.is_empty()
            }).map(|(key, _)| *key).collect();
            let mut held = Rules::default();
            let change = backend.diff(&held, &wanted);
            if let Some(step) = change.steps().first() {
                held.replay(step).expect("every step can be taken");
            }
            for key in first {
                prop_assert_eq!(held.targets(&key), wanted.targets(&key), "{}", key);
            }
        }
    }

    /// A label makes a Service one that comes first, and its tenant writes the labels.
    #[test]
    fn no_step_of_a_start_gives_anyone_what_is_anothers(
        (mut cluster, tenants) in clusters_with_tenants(),
    ) {
        cluster.services.extend(tenants);
        let dataplane = cluster.compile();
        for family in Family::ALL {
            let backend = Iptables::detached(family, Variant::NfTables);
            let wanted = backend.render(&dataplane, &Rendered::default());
            let mut held = Rules::default();
            for step in backend.diff(&held, &wanted).steps() {
                held.replay(step).expect("every step can be taken");
                for (_, rules) in dataplane.services().iter() {
                    for (key, _) in rules.frontends.iter().filter(|(key, _)| key.family() == family) {
                        prop_assert!(held.targets(key).is_subset(&wanted.targets(key)), "{}", key);
                    }
                }
            }
        }
    }
}

/// A large change goes in steps that are bounded, and each of them can be taken.
#[test]
fn ten_thousand_services_go_in_bounded_steps() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for number in 0..10_000_u32 {
        let address = Ipv4Addr::from(0x0a60_0000 | number).to_string();
        let service = mk_service(&format!("shop/web-{number}"));
        let service = service.cluster_ip(&address).port("http", 80).build();
        let mut endpoints = mk_endpoints().tcp("http");
        for pod in 1..=5 {
            endpoints = endpoints.ready(&format!("10.0.2.{pod}:8080"), "node-2");
        }
        let rules = compile(&service, &endpoints.build(), &node, &config);
        dataplane.set(Arc::new(rules));
    }
    let backend = Iptables::detached(Family::Ipv4, Variant::NfTables);
    let wanted = backend.render(&dataplane, &Rendered::default());
    let mut held = Rules::default();
    for change in [
        backend.diff(&held, &wanted),
        backend.diff(&wanted, &Rules::default()),
    ] {
        for step in change.steps() {
            assert!(step.rules() <= 5_000 && step.removed.len() <= 2_000);
        }
    }
    let change = backend.diff(&held, &wanted);
    let (last, rest) = change.steps().split_last().expect("there is much to do");
    assert!(rest.len() > 5 && !last.is_empty());
    for step in &rest[..3] {
        held.replay(step).expect("every step can be taken");
    }
}
