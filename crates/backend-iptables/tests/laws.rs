//! The laws of every backend, applied to a simulated kernel; and invariants of every step of a
//! change.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use backend::{Backend, FrontendContext, Rendered, UnsupportedField};
use backend_iptables::{Change, Iptables, Rules};
use dataplane::{Config, Dataplane, Family, FrontendKey, Precedence, Target, compile};
use proptest::prelude::*;
use testkit::{
    InMemoryBackend, cases, clusters, clusters_with_tenants, histories, laws, mk_config,
    mk_endpoints, mk_node, mk_service,
};
use xtables::{TableName, Variant};

struct EitherVariant {
    family: Family,
    variant: Variant,
}

impl laws::Subject for EitherVariant {
    type Backend = InMemoryBackend<Iptables>;
    type Canonical = Rules;

    fn fresh(&self) -> InMemoryBackend<Iptables> {
        let backend = Iptables::detached(self.family, self.variant);
        InMemoryBackend::new(backend, |held, change: &Change| {
            for step in change.steps() {
                held.replay(step)?;
            }
            Ok(change.steps().len())
        })
    }

    fn canonical(&self, rules: &Rules) -> Rules {
        rules.clone()
    }

    fn targets(&self, rules: &Rules, key: &FrontendKey) -> BTreeSet<Target> {
        rules.targets(key)
    }
}

/// Failure story T93: the kernel remembers 100 clients of an endpoint, and says nothing when it forgets
/// one for another.
#[test]
fn t93_services_with_affinity_are_named_because_the_kernel_remembers_few_clients() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let sticky = mk_service("shop/sticky").cluster_ip("10.96.0.10");
    let sticky = sticky.cluster_ip("fd00:10:96::a").port("", 80);
    let sticky = sticky.client_ip_affinity(Duration::from_secs(60)).build();
    let other = mk_service("shop/web").cluster_ip("10.96.0.11");
    let other = other.port("", 80).build();
    for (service, expected) in [(sticky, 1), (other, 0)] {
        let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
        let rules = compile(&service, &endpoints.build(), &node, &config);
        let backend = Iptables::detached(Family::Ipv4, Variant::NfTables);
        let named = rules.frontends.iter().flat_map(|(key, frontend)| {
            backend.unsupported_fields(FrontendContext {
                config: &config,
                service: &service.key,
                key: *key,
                frontend,
            })
        });
        let named: Vec<_> = named.collect();
        assert_eq!(named.len(), expected, "of one family: {named:?}");
        let is_affinity = |field: &UnsupportedField| field.field == "spec.sessionAffinity";
        assert!(named.iter().all(is_affinity), "{named:?}");
    }
}

/// Rules that come without a dataplane are rendered anew, also if the configuration is the one that
/// an empty dataplane has: nothing in them is taken for desired.
#[test]
fn nothing_is_kept_of_rules_whose_services_are_not_known() {
    let backend = Iptables::detached(Family::Ipv4, Variant::NfTables);
    let (node, config) = (mk_node(1).build(), Arc::new(Config::default()));
    let state = |name: &str, cluster_ip: &str| {
        let service = mk_service(name).cluster_ip(cluster_ip).port("", 80).build();
        let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        dataplane.set(compile(&service, &endpoints.build(), &node, &config).into());
        dataplane
    };
    let found = Rendered {
        dataplane: Dataplane::default(),
        rules: backend.render(&state("shop/old", "10.96.0.1"), &Rendered::default()),
    };
    let desired = state("shop/new", "10.96.0.2");
    let anew = backend.render(&desired, &Rendered::default());
    assert_eq!(backend.render(&desired, &found), anew);
}

/// The number of rules according to `Rules::count`.
fn counted(rules: &Rules) -> usize {
    TableName::ALL.map(|table| rules.count(table)).iter().sum()
}

/// The number of rules as printed.
fn printed(rules: &Rules) -> usize {
    let text = rules.to_string();
    text.lines().filter(|line| line.starts_with("-A ")).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(64)))]

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
                let desired = backend.render(after, &Rendered::default());
                let mut held = Rules::default();
                for step in backend.diff(&held, &serving).steps() {
                    held.replay(step).expect("every step can be taken");
                }
                prop_assert_eq!(&held, &serving);
                for step in backend.diff(&serving, &desired).steps() {
                    held.replay(step).expect("every step can be taken");
                    laws::never_half_serves(&subject, (before, &serving), after, &held);
                }
                prop_assert_eq!(&held, &desired);
                prop_assert_eq!(counted(&held), printed(&held));
                let advanced = backend.render(after, &Rendered {
                    dataplane: before.clone(),
                    rules: serving,
                });
                prop_assert_eq!(counted(&advanced), printed(&desired));
            }
        }
    }

    #[test]
    fn the_api_server_and_dns_are_served_after_the_first_steps(cluster in clusters()) {
        let dataplane = cluster.compile();
        for family in Family::ALL {
            let backend = Iptables::detached(family, Variant::NfTables);
            let desired = backend.render(&dataplane, &Rendered::default());
            let first: Vec<_> = dataplane.frontends().iter().filter(|(key, claims)| {
                let (service, frontend) = claims.winner();
                let whole = dataplane.services().get(service);
                let is_first = whole.is_some_and(|rules| {
                    rules.frontends.iter().all(|(_, f)| f.precedence == Precedence::First)
                });
                key.family() == family && is_first && !frontend.cluster.is_empty()
            }).map(|(key, _)| *key).collect();
            let mut held = Rules::default();
            let change = backend.diff(&held, &desired);
            if let Some(step) = change.steps().first() {
                held.replay(step).expect("every step can be taken");
            }
            for key in first {
                prop_assert_eq!(held.targets(&key), desired.targets(&key), "{}", key);
            }
        }
    }

    /// A label makes a Service come first, and tenants can set labels.
    #[test]
    fn no_step_of_a_start_gives_a_service_what_is_anothers(
        (mut cluster, tenants) in clusters_with_tenants(),
    ) {
        cluster.services.extend(tenants);
        let dataplane = cluster.compile();
        for family in Family::ALL {
            let backend = Iptables::detached(family, Variant::NfTables);
            let desired = backend.render(&dataplane, &Rendered::default());
            let mut held = Rules::default();
            for step in backend.diff(&held, &desired).steps() {
                held.replay(step).expect("every step can be taken");
                for (_, rules) in dataplane.services().iter() {
                    for (key, _) in rules.frontends.iter().filter(|(key, _)| key.family() == family) {
                        prop_assert!(held.targets(key).is_subset(&desired.targets(key)), "{}", key);
                    }
                }
            }
        }
    }
}

/// A large change is divided into bounded steps, each of which the kernel accepts.
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
    let desired = backend.render(&dataplane, &Rendered::default());
    let mut held = Rules::default();
    for change in [
        backend.diff(&held, &desired),
        backend.diff(&desired, &Rules::default()),
    ] {
        for step in change.steps() {
            assert!(step.rules() <= 5_000 && step.removed.len() <= 2_000);
        }
    }
    let change = backend.diff(&held, &desired);
    let (last, rest) = change.steps().split_last().expect("there is much to do");
    assert!(rest.len() > 5 && !last.is_empty());
    for step in &rest[..3] {
        held.replay(step).expect("every step can be taken");
    }
}
