//! Explanations in mode iptables, and one in mode ipvs.

use backend::AnyRules;
use dataplane::{Family, Mode};
use modes::{RulesByMode, VariantRules};
use xtables::{BuiltIn, Rule, TableChange, TableName};

use super::{World, cart, compare_with_golden, observed, till};
use crate::explain::Kernel;
use crate::explain::answer::PieceState;

impl World {
    /// Applies an external change to the IPv4 rules of iptables.
    fn repaired_drift_rules(&mut self, change: &TableChange) {
        let mut held = self.observed[&Family::Ipv4].clone();
        let mut rules: VariantRules = held.of(Mode::Iptables).typed();
        rules.used.replay(change).expect("the kernel takes it");
        held.set(Mode::Iptables, AnyRules::of(rules));
        self.find(held);
    }
}

/// Returns a change of table nat that writes these chains.
fn nat(chains: &[(&str, &[Rule])]) -> TableChange {
    let chains = chains
        .iter()
        .map(|(name, rules)| ((*name).into(), (*rules).into()));
    TableChange {
        chains: chains.collect(),
        ..TableChange::new(TableName::Nat)
    }
}

#[test]
fn in_mode_iptables_a_service_is_explained_from_its_fields_to_its_rules() {
    let services = [cart(), till(&["10.0.1.5:53"])];
    let mut world = World::in_mode(Mode::Iptables, &services);
    compare_with_golden("whole-iptables", &world.answer("shop/cart"));
    let other = world.answer("shop/till");
    assert!(!other.contains("! missing"), "nothing is wrong:\n{other}");

    world.kernel = Kernel::NotAsked;
    let explanation = world.ask("shop/till").expect("it is known");
    let frontend = &explanation.services[0].frontends[0];
    let mut pieces = frontend.elements.iter().chain(&frontend.chains);
    assert!(pieces.all(|piece| piece.state == PieceState::Unverified));
    assert_eq!((frontend.elements.len(), frontend.chains.len()), (3, 2));
}

#[test]
fn in_mode_iptables_where_the_kernel_differs_is_marked() {
    let services = [till(&["10.0.1.5:53", "10.0.1.6:53"])];
    let mut world = World::in_mode(Mode::Iptables, &services);
    let observed = world.observed[&Family::Ipv4].to_string();
    let of_service = |line: &&str| line.starts_with("-A SIGNPOST-SVC-");
    let chain = observed
        .lines()
        .find(of_service)
        .and_then(|line| line.split(' ').nth(1));
    let chain = chain.expect("the Service has a chain");

    world.repaired_drift_rules(&nat(&[(chain, &[])]));
    compare_with_golden("missing-iptables", &world.answer("shop/till"));

    world.repaired_drift_rules(&nat(&[("SIGNPOST-POSTROUTING", &[])]));
    let text = world.answer("shop/till");
    for line in [
        "IPv4: ! the kernel differs from what was programmed: 1 chain to repair\n",
        "  ! differs: nat chain SIGNPOST-POSTROUTING\n    in the kernel it is empty\n",
    ] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }

    let without_entry = TableChange {
        entries: vec![(BuiltIn::Output, Vec::new())],
        ..TableChange::new(TableName::Nat)
    };
    world.repaired_drift_rules(&without_entry);
    let text = world.answer("shop/till");
    assert!(
        text.contains("  ! missing in the kernel: nat OUTPUT\n"),
        "{text}"
    );

    world.find(RulesByMode::default());
    let text = world.answer("shop/till");
    assert!(
        text.contains("IPv4: ! Signpost's rules are missing in the kernel\n"),
        "{text}"
    );
    assert!(
        text.contains("! missing in the kernel: iptables -t nat -A SIGNPOST-SERVICES"),
        "{text}"
    );
}

#[test]
fn in_mode_iptables_leftovers_are_marked() {
    let mut world = World::in_mode(Mode::Iptables, &[till(&["10.0.1.5:53"])]);
    let other = World::in_mode(Mode::Iptables, &[till(&["10.0.1.5:53", "10.0.1.9:53"])]);
    world.kernel = observed(&other.observed);
    let text = world.answer("shop/till").replace("\n        ", " ");
    let line = "-j DNAT --to-destination 10.0.1.9:53\n";
    let undesired = text.lines().find(|line| line.contains("10.0.1.9:53"));
    let undesired = undesired.expect("it is named");
    assert!(
        undesired.starts_with("    ! leftover: iptables -t nat -A SIGNPOST-SVC-"),
        "{undesired}"
    );
    assert!(text.contains(line), "{text}");

    let gone = World::in_mode(Mode::Iptables, &[cart()]);
    world.dataplane = gone.dataplane;
    let text = world.answer("10.96.0.11:53/udp");
    let line = "! leftover: iptables -t nat -A SIGNPOST-SERVICES -d 10.96.0.11/32 -p udp";
    assert!(text.contains(line), "{text}");
}

#[test]
fn virtual_servers_are_explained() {
    let mut world = World::in_mode(Mode::Ipvs, &[till(&["10.0.1.5:53"])]);
    compare_with_golden("ipvs", &world.answer("shop/till"));
    world.find(RulesByMode::default());
    let text = world.answer("shop/till");
    assert!(
        text.contains("! missing in the kernel: virtual server FWM 1396703233"),
        "{text}"
    );
}

/// Failure story T365.
#[test]
fn t365_a_mark_that_ipvsadm_prints_is_explained() {
    let remarks = |world: &World, question: &str| {
        let explanation = world.ask(question).expect("it is known");
        explanation.remarks.join("; ")
    };
    let mut world = World::in_mode(Mode::Ipvs, &[till(&["10.0.1.5:53"])]);
    for question in ["FWM 1396703233", "fwm 1396703233", "0x53400001"] {
        let text = world.answer(question);
        assert!(text.contains("Service shop/till\n"), "{question}: {text}");
        assert!(
            text.contains("    virtual server FWM 1396703233, scheduler rr\n"),
            "{text}"
        );
        let expected = "FWM 1396703233 is a virtual server of Service shop/till (udp) for IPv4, \
                        reached at 10.96.0.11:53/udp";
        assert_eq!(remarks(&world, question), expected);
    }
    let of_ipv6 = remarks(&world, "FWM 1396703233 IPv6");
    let nobody = "no Service has FWM 1396703233 IPv6: ";
    assert!(of_ipv6.starts_with(nobody), "{of_ipv6}");
    let other = remarks(&world, "FWM 1073741825");
    assert!(
        other.starts_with("FWM 1073741825 is not Signpost's"),
        "{other}"
    );
    // The Service is gone, and the kernel keeps its virtual server for connections.
    let kernel = world.kernel;
    world = World::in_mode(Mode::Ipvs, &[]);
    world.kernel = kernel;
    let text = world.answer("FWM 1396703233");
    assert!(
        text.contains("virtual server FWM 1396703233, scheduler rr\n"),
        "{text}"
    );
    let remark = remarks(&world, "FWM 1396703233");
    assert!(
        remark.contains("that no address leads to any more"),
        "{remark}"
    );
    let others = World::in_mode(Mode::Nftables, &[till(&["10.0.1.5:53"])]);
    let of_others = remarks(&others, "FWM 1396703233");
    let nobody = "no Service has FWM 1396703233: ";
    assert!(of_others.starts_with(nobody), "{of_others}");
}
