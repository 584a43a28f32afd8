//! The fake backend obeys the laws, and each law detects a backend that violates it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use backend::{
    Backend, Change, CommitError, Drift, FrontendContext, ObserveError, Receipt, Rendered,
    UnsupportedField,
};
use dataplane::{
    Config, Dataplane, Family, FrontendKey, Origin, Packet, PartSize, Protocol, ServiceKey, Target,
    Verdict, compile,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::Subject;
use crate::{
    Cluster, FakeBackend, FakeChange, FakeKernel, FakeOperation, FakeRules, cases, histories, laws,
    mk_config, mk_endpoints, mk_node, mk_service, questions_beside_tenants,
};

struct Fake(Family);

impl Subject for Fake {
    type Backend = FakeBackend;
    type Canonical = FakeRules;

    fn fresh(&self) -> FakeBackend {
        FakeKernel::new().backend(self.0)
    }

    fn canonical(&self, rules: &FakeRules) -> FakeRules {
        rules.clone()
    }

    fn targets(&self, rules: &FakeRules, key: &FrontendKey) -> BTreeSet<Target> {
        rules.targets(key)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(64)))]

    #[test]
    fn the_fake_backend_obeys_every_law(history in histories(5), seed: u64) {
        for family in Family::ALL {
            laws::all(&Fake(family), &history, seed);
        }
    }

    #[test]
    fn every_prefix_of_a_fake_change_serves_what_has_not_changed(history in histories(3)) {
        serve_at_every_prefix(FakeRules::diff, &history);
    }
}

/// Lists hold backends of different modes in erased form.
#[test]
fn an_erased_backend_answers_as_the_one_behind_it() {
    let kernel = FakeKernel::new();
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("shop/cart")
        .cluster_ip("10.96.0.10")
        .port("", 80);
    let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
    let rules = compile(&service.build(), &endpoints.build(), &node, &config);
    let mut desired = Dataplane::new(node, config);
    desired.set(rules.into());

    let mut erased = backend::erase(kernel.backend(Family::Ipv4));
    let desired_rules = erased.render(&desired, &Rendered::default());
    let nothing = erased.observe().expect("it is read");
    assert!(nothing.is_nothing() && !erased.exist(&nothing));
    let change = erased.diff(&nothing, &desired_rules);
    let receipt = erased.commit(change);
    let _ = receipt.expect("it is taken");
    assert_eq!(
        desired_rules.typed::<FakeRules>(),
        kernel.rules(Family::Ipv4)
    );
    let found = erased.observe().expect("it is read");
    assert_eq!(found, desired_rules);
    assert!(erased.diff(&found, &desired_rules).size().is_empty());

    let packet = Packet {
        origin: Origin::Node,
        source: "192.168.0.1".parse().expect("an address"),
        destination: "10.96.0.10".parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: crate::port(80),
    };
    let verdict = erased.simulate(&found, desired.node(), &packet);
    assert_eq!(verdict, desired.verdict(&packet));
    let removed = erased.commit_removal();
    let _ = removed.expect("it goes");
    assert!(erased.observe().expect("it is read").is_nothing());
}

/// Cuts each change of `history` at every operation and checks which frontends are served.
fn serve_at_every_prefix(
    diff: impl Fn(&FakeRules, &FakeRules) -> FakeChange,
    history: &[Dataplane],
) {
    let family = Family::Ipv4;
    for states in history.windows(2) {
        let [before, after] = states else { continue };
        let serving = FakeRules::render(before, family);
        let change = diff(&serving, &FakeRules::render(after, family));
        for operations in 0..change.0.len() {
            let kernel = FakeKernel::new();
            kernel.tamper(family, |rules| *rules = serving.clone());
            kernel.cut_after(operations);
            let error = kernel.backend(family).commit(change.clone());
            error.expect_err("the kernel was told to stop before the end");
            let held = kernel.rules(family);
            laws::never_half_serves(&Fake(family), (before, &serving), after, &held);
        }
    }
}

/// The defect of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    DiffNeverEmpty,
    DiffLeavesRemovalsOut,
    RenderCountsItsCalls,
    RenderKeepsWhatItFinds,
    ObserveMissesHairpins,
    RemovalKeepsTheBase,
    CommitLosesAFrontendLater,
}

struct DefectiveBackend {
    inner: FakeBackend,
    lie: Defect,
    renders: Cell<usize>,
}

impl Backend for DefectiveBackend {
    type Rules = FakeRules;
    type Change = FakeChange;

    fn family(&self) -> Family {
        self.inner.family()
    }

    fn part_size(&self, config: &Config) -> PartSize {
        self.inner.part_size(config)
    }

    fn longest_part(&self, config: &Config) -> Duration {
        self.inner.longest_part(config)
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<FakeRules>) -> FakeRules {
        let mut rules = self.inner.render(desired, from);
        self.renders.set(self.renders.get() + 1);
        if self.lie == Defect::RenderCountsItsCalls && self.renders.get().is_multiple_of(2) {
            rules.frontends.pop_first();
        }
        if self.lie == Defect::RenderKeepsWhatItFinds {
            rules.cluster_ips.extend(&from.rules.cluster_ips);
        }
        rules
    }

    fn diff(&self, observed: &FakeRules, desired: &FakeRules) -> FakeChange {
        let mut change = self.inner.diff(observed, desired);
        let removes = |step: &FakeOperation| matches!(step, FakeOperation::RemoveFrontend(_));
        match (self.lie, &desired.base) {
            (Defect::DiffNeverEmpty, Some(base)) => {
                change.0.push(FakeOperation::SetBase(base.clone()));
            }
            (Defect::DiffLeavesRemovalsOut, _) => change.0.retain(|step| !removes(step)),
            _ => {}
        }
        change
    }

    fn observe(&mut self) -> Result<FakeRules, ObserveError> {
        let mut rules = self.inner.observe()?;
        if self.lie == Defect::ObserveMissesHairpins {
            rules.hairpins.clear();
        }
        Ok(rules)
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        self.inner.observe_drift()
    }

    fn commit(&mut self, change: FakeChange) -> Result<Receipt, CommitError> {
        let receipt = self.inner.commit(change)?;
        let kernel = self.inner.kernel();
        if self.lie == Defect::CommitLosesAFrontendLater && kernel.commits() > 1 {
            kernel.tamper(self.family(), |rules| drop(rules.frontends.pop_first()));
        }
        Ok(receipt)
    }

    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        let kept = self.inner.kernel().rules(self.family()).base;
        let receipt = self.inner.commit_removal()?;
        if self.lie == Defect::RemovalKeepsTheBase {
            let kernel = self.inner.kernel();
            kernel.tamper(self.family(), |rules| rules.base = kept);
        }
        Ok(receipt)
    }

    fn suspects(&self, change: &FakeChange, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        self.inner.suspects(change, desired)
    }

    fn unsupported_fields(&self, asked: FrontendContext<'_>) -> Vec<UnsupportedField> {
        self.inner.unsupported_fields(asked)
    }
}

impl Subject for Defect {
    type Backend = DefectiveBackend;
    type Canonical = FakeRules;

    fn fresh(&self) -> DefectiveBackend {
        DefectiveBackend {
            inner: FakeKernel::new().backend(Family::Ipv4),
            lie: *self,
            renders: Cell::new(0),
        }
    }

    fn canonical(&self, rules: &FakeRules) -> FakeRules {
        rules.clone()
    }

    fn targets(&self, rules: &FakeRules, key: &FrontendKey) -> BTreeSet<Target> {
        rules.targets(key)
    }
}

/// Two Services; then one of them; then both, the other with a new address.
fn short_history() -> Vec<Dataplane> {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let rules = |name: &str, cluster_ip: &str| {
        let service = mk_service(name).cluster_ip(cluster_ip).port("", 80);
        let endpoints = mk_endpoints()
            .tcp("")
            .ready("10.0.1.5:8080", "node-1")
            .ready("10.0.2.7:8080", "node-2");
        compile(&service.build(), &endpoints.build(), &node, &config)
    };
    let mut dataplane = Dataplane::new(node.clone(), config.clone());
    dataplane.set(rules("shop/web", "10.96.0.10").into());
    dataplane.set(rules("shop/cart", "10.96.0.11").into());
    let mut history = vec![dataplane.clone()];
    dataplane.remove(&ServiceKey::new("shop", "cart"));
    history.push(dataplane.clone());
    dataplane.set(rules("shop/cart", "10.96.0.12").into());
    history.push(dataplane);
    history
}

#[test]
#[should_panic(expected = "differ from themselves")]
fn a_diff_that_is_never_empty_is_caught() {
    laws::nothing_differs_from_itself(&Defect::DiffNeverEmpty, &short_history());
}

#[test]
#[should_panic(expected = "right what was committed")]
fn a_diff_without_removals_is_caught() {
    laws::a_commit_arrives(&Defect::DiffLeavesRemovalsOut, &short_history());
}

#[test]
#[should_panic(expected = "put together in another order")]
fn a_render_that_depends_on_more_than_content_is_caught() {
    laws::render_depends_on_content_only(&Defect::RenderCountsItsCalls, &short_history(), 1);
}

#[test]
#[should_panic(expected = "rendered from what is believed")]
fn a_render_that_keeps_what_it_finds_is_caught() {
    laws::render_from_anything_is_the_same(&Defect::RenderKeepsWhatItFinds, &short_history());
}

#[test]
#[should_panic(expected = "a restart would write")]
fn an_observe_that_misses_something_is_caught() {
    laws::a_restart_writes_nothing(&Defect::ObserveMissesHairpins, &short_history());
}

#[test]
#[should_panic(expected = "left is what removal left behind")]
fn a_removal_that_leaves_something_is_caught() {
    laws::removal_leaves_nothing(&Defect::RemovalKeepsTheBase, &short_history());
}

#[test]
#[should_panic(expected = "has not changed, but its endpoints have")]
fn a_commit_that_loses_an_unchanged_frontend_is_caught() {
    laws::converges_under_faults(&Defect::CommitLosesAFrontendLater, &short_history(), 1);
}

#[test]
#[should_panic(expected = "has not changed, but its endpoints have")]
fn a_change_that_removes_before_it_adds_is_caught() {
    let flush_first = |observed: &FakeRules, desired: &FakeRules| {
        let mut change = observed.diff(&FakeRules::default());
        change.0.extend(FakeRules::default().diff(desired).0);
        change
    };
    serve_at_every_prefix(flush_first, &short_history());
}

/// A packet from outside to a Service that only the last state of [`short_history`] has.
fn packet() -> Packet {
    Packet {
        origin: Origin::Outside {
            interface: "eth0".into(),
        },
        source: IpAddr::from([192, 0, 2, 7]),
        destination: IpAddr::from([10, 96, 0, 12]),
        protocol: Protocol::Tcp,
        port: crate::port(80),
    }
}

/// Checks this verdict on [`packet`] between nothing and the last state of [`short_history`].
fn on_the_way(held: &Verdict) {
    let history = short_history();
    laws::never_misleads([&Dataplane::default(), &history[2]], &packet(), held);
}

#[test]
fn a_packet_may_be_left_as_it_is_or_served_early() {
    on_the_way(&Verdict::Untouched);
    on_the_way(&short_history()[2].verdict(&packet()));
}

#[test]
#[should_panic(expected = "is refused on the way")]
fn a_refusal_on_the_way_is_caught() {
    on_the_way(&Verdict::Reject);
}

#[test]
#[should_panic(expected = "is misled")]
fn a_strange_endpoint_on_the_way_is_caught() {
    let mut served = short_history()[2].verdict(&packet());
    let Verdict::Deliver(choices) = &mut served else {
        panic!("the last state does not serve it");
    };
    choices[0].target.port = crate::port(9);
    on_the_way(&served);
}

#[test]
#[should_panic(expected = "is not served on the way")]
fn a_gap_between_two_states_that_serve_is_caught() {
    let [_, before, after] = &short_history()[..] else {
        panic!("it has three states");
    };
    let unchanged = Packet {
        destination: IpAddr::from([10, 96, 0, 10]),
        ..packet()
    };
    laws::never_misleads([before, after], &unchanged, &Verdict::Untouched);
}

/// A Service with a node port and a cluster IP that is also on a device of the node, and a packet
/// to that node port at that cluster IP.
fn node_port_at_cluster_ip() -> (Dataplane, Packet) {
    let (node, config) = (
        mk_node(1).local_address("10.96.0.12"),
        mk_config().node_ports_anywhere().build(),
    );
    let node = node.build();
    let service = mk_service("shop/web").cluster_ip("10.96.0.12");
    let service = service.port("", 80).node_port(30_080).build();
    let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
    let mut dataplane = Dataplane::new(node.clone(), config.clone());
    dataplane.set(compile(&service, &endpoints.build(), &node, &config).into());
    let packet = Packet {
        port: crate::port(30_080),
        ..packet()
    };
    (dataplane, packet)
}

#[test]
fn a_node_port_may_be_rejected_at_a_cluster_ip_before_it_comes() {
    let (after, packet) = node_port_at_cluster_ip();
    assert!(matches!(after.verdict(&packet), Verdict::Deliver(_)));
    laws::never_misleads([&Dataplane::default(), &after], &packet, &Verdict::Reject);
}

#[test]
#[should_panic(expected = "is refused on the way")]
fn a_refused_node_port_at_an_address_of_the_node_is_caught() {
    let (after, packet) = node_port_at_cluster_ip();
    let packet = Packet {
        destination: IpAddr::from([192, 168, 0, 1]),
        ..packet
    };
    laws::never_misleads([&Dataplane::default(), &after], &packet, &Verdict::Reject);
}

#[test]
#[should_panic(expected = "is refused on the way")]
fn a_refused_node_port_that_was_served_before_is_caught() {
    let (both, packet) = node_port_at_cluster_ip();
    laws::never_misleads([&both, &both], &packet, &Verdict::Reject);
}

#[test]
fn a_fake_change_says_how_much_it_writes() {
    let rules = FakeRules::render(&short_history()[1], Family::Ipv4);
    let size = FakeRules::default().diff(&rules).size();
    assert_eq!((size.elements, size.objects), (3, 1), "{rules}");
}

#[test]
#[should_panic(expected = "left is what happens beside tenants")]
fn a_tenant_that_changes_a_verdict_is_caught() {
    let web = mk_service("shop/web").cluster_ip("10.96.0.10").port("", 80);
    let thief = mk_service("aaa/thief")
        .cluster_ip("10.96.0.11")
        .port("", 80);
    let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
    let cluster = Cluster {
        node: mk_node(1).build(),
        config: mk_config().build(),
        services: vec![(web.build(), endpoints.build())],
    };
    let tenants = [(thief.build(), mk_endpoints().build())];
    let packet = dataplane::Packet {
        origin: dataplane::Origin::Node,
        source: [192, 168, 0, 1].into(),
        destination: [10, 96, 0, 10].into(),
        protocol: dataplane::Protocol::Tcp,
        port: crate::port(80),
    };
    laws::honest_verdicts_do_not_depend_on_tenants(
        &cluster,
        &tenants,
        &[packet],
        1,
        |dataplane, packets| {
            let ask = |packet| match dataplane.services().len() {
                1 => dataplane.verdict(packet),
                _ => Verdict::Drop,
            };
            packets.iter().map(ask).collect()
        },
    );
}

#[test]
fn a_lie_about_an_honest_service_beside_tenants_is_caught() {
    let mut runner = TestRunner::deterministic();
    let mut lies = 0;
    for _ in 0..60 {
        let tree = questions_beside_tenants(6).new_tree(&mut runner);
        let (cluster, tenants, packets) = tree.expect("nothing is filtered").current();
        let honest = cluster.compile();
        let truth = |packet: &Packet| honest.verdict(packet);
        let verdicts = laws::HonestVerdicts::of(&cluster, &tenants, &packets, truth);
        verdicts.expect(truth);
        let is_protected =
            |packet: &&Packet| laws::is_protected(packet, &cluster, &honest, &tenants);
        for about in packets.iter().filter(is_protected) {
            let lie = |packet: &Packet| match truth(packet) {
                verdict if packet != about => verdict,
                Verdict::Drop => Verdict::Reject,
                _ => Verdict::Drop,
            };
            let law = AssertUnwindSafe(|| verdicts.expect(lie));
            assert!(catch_unwind(law).is_err(), "{about}");
            lies += 1;
        }
    }
    assert!(lies > 50, "{lies}");
}
