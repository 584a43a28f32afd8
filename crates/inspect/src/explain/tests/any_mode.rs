//! A mode that lives in the tests: nothing here knows it but its entry among the modes.

use backend::erase;
use testkit::{FakeKernel, FakeRules};

use super::*;

const MODE: Mode = Mode::Ipvs;

fn detach(family: Family, _: Variant) -> AnyBackend {
    erase(FakeKernel::new().backend(family))
}

/// A Service in that mode, programmed.
fn world() -> World {
    let service = mk_service("shop/cart")
        .cluster_ip("10.96.0.10")
        .port("", 80);
    let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
    let mut world = World::in_mode(MODE, &[(service.build(), endpoints.build())]);
    world.modes = DetachedModes::default().with(MODE, detach);
    let rules = |family| FakeRules::render(&world.dataplane, family);
    let held = |family| RulesByMode::only(MODE, AnyRules::of(rules(family)));
    world.observed = Family::ALL.map(|family| (family, held(family))).into();
    world.kernel = observed(&world.observed);
    world
}

#[test]
fn a_mode_that_lives_in_the_tests_is_explained() {
    let mut world = world();
    for question in ["shop/cart", "10.96.0.10:80"] {
        let text = world.answer(question);
        let found = "fake 10.96.0.10:80/tcp: 1 endpoints";
        assert!(text.contains(found), "{text}");
        assert!(!text.contains("missing"), "{text}");
        assert!(
            text.contains("the kernel holds what was programmed"),
            "{text}"
        );
    }
    world.find(RulesByMode::default());
    let text = world.answer("shop/cart");
    let missing = "! missing in the kernel: fake 10.96.0.10:80/tcp: 1 endpoints";
    assert!(text.contains(missing), "{text}");
}

#[test]
fn a_mode_that_lives_in_the_tests_is_traced() {
    let world = world();
    let trace = |kernel: &Kernel| {
        let packet = "10.0.1.9 -> 10.96.0.10:80".parse().expect("a packet");
        crate::trace(&packet, &world.dataplane, kernel, &world.modes).expect("there are rules")
    };
    let traced = trace(&world.kernel);
    assert!(traced.agree, "{traced}");
    assert_eq!(traced.actual, "10.0.1.5:8080");
    let nothing = Family::ALL.map(|family| (family, RulesByMode::default()));
    let traced = trace(&observed(&nothing.into()));
    assert!(!traced.agree, "{traced}");
}
