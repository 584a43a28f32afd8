mod third;

use backend::{Backend, Change as _, Recovery, Rendered, erase};
use backend_iptables::Iptables;
use crds::condition::reason::{BOTH_VARIANTS_IN_USE, ONE_VARIANT_IN_USE, VARIANTS_UNREADABLE};
use crds::profile::mode::Mode as ProfileMode;
use dataplane::{Config, Dataplane, Family};
use reconciler::{FamilyReconciler, Outcome, Reason, SystemClock};
use testkit::{FakeKernel, FakeRules, mk_config, mk_endpoints, mk_node, mk_service};
use xtables::{Found, Presence};

use super::findings;
use super::on_demand::{OpenOnDemand, TableAvailability};
use super::*;

/// Services with these numbers, programmed by `mode`.
fn dataplane(mode: Mode, numbers: std::ops::Range<u8>) -> Dataplane {
    let config = Config {
        mode,
        ..Config::clone(&mk_config().build())
    };
    let mut dataplane = Dataplane::new(mk_node(1).build(), config.into());
    for number in numbers {
        let service = mk_service(&format!("shop/service-{number}"))
            .cluster_ip(&format!("10.96.0.{number}"))
            .port("http", 80)
            .build();
        let endpoints = mk_endpoints()
            .tcp("http")
            .ready("10.0.1.5:8080", "node-1")
            .build();
        let (node, config) = (dataplane.node(), dataplane.config());
        let rules = dataplane::compile(&service, &endpoints, node, config);
        dataplane.set(rules.into());
    }
    dataplane
}

#[test]
fn rules_in_the_variant_that_is_not_used_are_removed() {
    let backend = simulator(Mode::Iptables, Family::Ipv4);
    let desired = dataplane(Mode::Iptables, 1..3);
    let desired_rules = backend.render(&desired, &Rendered::default());
    let used = desired_rules.typed::<VariantRules>().used;
    let with_leftover = AnyRules::of(VariantRules {
        used: used.clone(),
        leftover: used,
    });
    let observed = Rendered {
        dataplane: Dataplane::default(),
        rules: with_leftover.clone(),
    };
    assert_eq!(backend.render(&desired, &observed), desired_rules);
    let removal = backend.diff(&with_leftover, &desired_rules).size();
    let all = backend.diff(&desired_rules, &AnyRules::default()).size();
    assert_eq!(
        removal, all,
        "the other variant is emptied, and no more is written"
    );
}

/// A node with `ipv6.disable=1` on which other programs use legacy tables, which it lacks for IPv6.
#[test]
fn a_family_that_legacy_tables_lack_is_served_as_in_mode_nftables() {
    let kernel = FakeKernel::new();
    let nftables = erase(kernel.backend(Family::Ipv4));
    let mut iptables = OpenOnDemand::detached(Iptables::detached(Family::Ipv4, Variant::Legacy));
    iptables.offer = TableAvailability::Lacking;
    let others = vec![(Mode::Iptables, erase(iptables))];
    let mut family = FamilyReconciler::with_modes((Mode::Nftables, nftables), others);
    let desired = dataplane(Mode::Iptables, 1..4);
    let sync = family.sync(&desired, Reason::Startup, &SystemClock);
    assert_eq!(sync.outcome, Outcome::Committed);
    assert_eq!(
        kernel.rules(Family::Ipv4),
        FakeRules::render(&desired, Family::Ipv4)
    );
    let state = ModeState::of(&family, &IptablesFigures::default());
    assert!(state.unusable.is_empty(), "nothing is reported");
    assert_eq!(state.active_mode, Some(Mode::Nftables));
}

fn modes(active_mode: Mode, unusable: Option<Mode>) -> BTreeMap<Family, ModeState> {
    let state = ModeState {
        active_mode: Some(active_mode),
        variant: Some(Variant::Legacy),
        unusable: unusable
            .map(|mode| (mode, "no such thing".to_owned()))
            .into_iter()
            .collect(),
        ..ModeState::default()
    };
    Family::ALL.map(|family| (family, state.clone())).into()
}

#[test]
fn t12_what_cannot_be_used_is_reported_with_what_is_used_instead() {
    let (nftables, iptables) = (Mode::Nftables, Mode::Iptables);
    let fallen_back = modes(nftables, Some(iptables));
    assert_eq!(findings::mode(&fallen_back), Some(ProfileMode::Nftables));
    assert_eq!(findings::iptables(&fallen_back), None);
    let replaced = findings::replaced(iptables, &fallen_back).expect("it is reported");
    let expected = "mode iptables cannot be used on this node: nftables is used for IPv4 instead: no such thing";
    assert_eq!(replaced.message, expected);
    // An unusable mode is reported only if it is the desired one.
    assert_eq!(findings::replaced(nftables, &fallen_back), None);
    assert_eq!(findings::replaced(iptables, &modes(iptables, None)), None);
}

#[test]
fn t12_what_a_mode_has_left_behind_is_reported_whatever_is_desired() {
    let mut modes = modes(Mode::Nftables, Some(Mode::Iptables));
    assert_eq!(findings::left_behind(&modes).next(), None);
    for state in modes.values_mut() {
        state.outgoing = [Mode::Iptables, Mode::Ipvs].into();
        let error = "no such module".to_owned();
        state.unusable.insert(Mode::Ipvs, error);
    }
    let reported: Vec<String> = findings::left_behind(&modes)
        .map(|field| field.message)
        .collect();
    let message = |mode, family, error| {
        format!(
            "rules of mode {mode} are still in the kernel for {family}, and still forward to \
             former endpoints of Services that have none any more: {error}"
        )
    };
    let expected = [
        message("iptables", "IPv4", "no such thing"),
        message("ipvs", "IPv4", "no such module"),
        message("iptables", "IPv6", "no such thing"),
        message("ipvs", "IPv6", "no such module"),
    ];
    assert_eq!(reported, expected);
}

/// A Service of IPv6 alone may need a module that no Service of IPv4 needs.
#[test]
fn what_limits_one_family_is_named_and_what_limits_both_is_named_once() {
    let mut modes = modes(Mode::Ipvs, None);
    assert_eq!(findings::limitations(&modes), None);
    let own = [(Family::Ipv4, "no mh"), (Family::Ipv6, "no twos")];
    for (family, own) in own {
        let state = modes.get_mut(&family).expect("both are there");
        state.limitations = vec!["read-only".to_owned(), own.to_owned()];
    }
    let reported = findings::limitations(&modes).expect("it is reported");
    assert_eq!(reported.message, "read-only; no mh; no twos");
    let ipv4 = modes.get_mut(&Family::Ipv4).expect("it is there");
    ipv4.limitations.clear();
    let reported = findings::limitations(&modes).expect("it is reported");
    assert_eq!(reported.message, "read-only; no twos");
}

#[test]
fn t36_a_split_is_reported_with_the_variant_that_is_used() {
    let presence = |rules| Presence {
        offered: true,
        rules,
        ..Presence::default()
    };
    let seen = |nf_tables, legacy| {
        VariantScan::Seen(Found {
            nf_tables: presence(nf_tables),
            legacy: presence(legacy),
        })
    };
    let modes = modes(Mode::Iptables, None);
    let reported = |sighting: &VariantScan| {
        let finding = findings::split(sighting, &modes).expect("it is reported");
        (finding.reason, finding.message)
    };
    let (reason, message) = reported(&seen(12, 3));
    assert_eq!(reason, BOTH_VARIANTS_IN_USE);
    let both = message.contains("12 rules") && message.contains("variant legacy");
    assert!(both, "{message}");
    assert_eq!(reported(&seen(0, 3)).0, ONE_VARIANT_IN_USE);
    let refused = VariantScan::Refused("not permitted".to_owned());
    assert_eq!(reported(&refused).0, VARIANTS_UNREADABLE);
    assert_eq!(findings::split(&VariantScan::None, &modes), None);
}

/// A change that is counted as done would be recorded as present in the kernel.
#[test]
fn a_change_of_another_mode_is_refused() {
    let [mut nftables, iptables] =
        [Mode::Nftables, Mode::Iptables].map(|mode| simulator(mode, Family::Ipv4));
    let nothing = AnyRules::default();
    let error = nftables
        .commit(iptables.diff(&nothing, &nothing))
        .expect_err("the change is not one of nftables");
    assert_eq!(error.recovery, Recovery::Observe);
}
