//! What a node reports that it does not honour.

use super::*;

/// In mode iptables, each Service with affinity has one unsupported field in both families.
#[test]
fn of_many_unsupported_fields_all_are_counted_and_the_first_are_named() {
    let view = view();
    let unsupported_field = |number: u16| backend::UnsupportedField {
        service: ServiceKey::new("shop", format!("s{number:05}")),
        frontend: FrontendKey::NodePort {
            family: Family::Ipv4,
            protocol: Protocol::Tcp,
            port: Port::new(80).expect("a port"),
        },
        field: "spec.sessionAffinity",
        message: "is not kept".into(),
    };
    let both = Family::ALL.map(|family| FamilyStatus {
        unsupported_fields: (0..10_000).map(unsupported_field).collect(),
        ..programmed(family, &view)
    });
    let status = say(&view, Some(&report(both)));
    assert_eq!(status.rejections.total, 20_000);
    assert_eq!(status.rejections.first.len(), MOST_REJECTIONS);
    let named = status.rejections.first.iter().map(|r| &*r.object);
    assert_eq!(named.max(), Some("Service shop/s00009"));
    let (_, reason, message) = reported(&status, condition::FEATURES_HONOURED);
    assert_eq!(reason, "ServicesRejected");
    assert!(
        message.starts_with("20000 in all, the first: Service shop/s00000"),
        "{message}"
    );
}

/// Failure story T93: reported in addition to anything else that is not honoured.
#[test]
fn t93_services_whose_affinity_is_exhausted_are_named() {
    let mut view = view();
    let mut desired = Dataplane::default();
    let mut full_affinity_maps = BTreeSet::new();
    for number in 10..20_u8 {
        let address = format!("10.96.0.{number}");
        let service = testkit::mk_service(&format!("game/lobby-{number}"));
        let service = service
            .cluster_ip(&address)
            .client_ip_affinity(Duration::from_secs(10_800));
        let service = service.port("http", 80).build();
        let endpoints = testkit::mk_endpoints().build();
        let rules = dataplane::compile(&service, &endpoints, desired.node(), desired.config());
        desired.set(rules.into());
        full_affinity_maps.insert(FrontendKey::Address {
            address: address.parse().expect("an address"),
            protocol: Protocol::Tcp,
            port: Port::new(80).expect("a port"),
        });
    }
    view.desired = Some(desired);
    let say = |view: &View, full_affinity_maps: &BTreeSet<FrontendKey>| {
        let facts = Facts {
            full_affinity_maps,
            ..facts(view, None)
        };
        let status = status(&facts, &NodeProxyStatus::default(), Timestamp::UNIX_EPOCH);
        reported(&status, condition::FEATURES_HONOURED)
    };
    let (status, reason, message) = say(&view, &full_affinity_maps);
    assert_eq!((&*status, &*reason), ("False", "AffinityExhausted"));
    let beginning = "session affinity is exhausted for game/lobby-10, game/lobby-11,";
    assert!(message.starts_with(beginning), "{message}");
    assert!(message.contains("game/lobby-17 and 2 more:"), "{message}");

    let effective = Arc::make_mut(&mut view.effective);
    (effective.mode, effective.ipvs.strict_arp) = (ProfileMode::Ipvs, true);
    let (_, reason, message) = say(&view, &full_affinity_maps);
    assert_eq!(reason, "FieldNotHonoured");
    assert!(message.contains("; session affinity is"), "{message}");

    Arc::make_mut(&mut view.effective).mode = ProfileMode::Nftables;
    let (status, reason, _) = say(&view, &BTreeSet::new());
    assert_eq!((&*status, &*reason), ("True", "AllHonoured"));
}

/// Failure story T68, for the profile.
#[test]
fn t68_a_scheduler_of_the_profile_that_the_mode_does_not_have_is_named_once() {
    let mut view = view();
    let asked = dataplane::Scheduler::LeastConnection;
    let config = testkit::mk_config().scheduler(asked).build();
    view.desired = Some(Dataplane::new(testkit::mk_node(1).build(), config));
    let status = say(&view, None);
    let (status, reason, message) = reported(&status, condition::FEATURES_HONOURED);
    assert_eq!((&*status, &*reason), ("False", "FieldNotHonoured"));
    let used = asked.nearest_in(dataplane::Mode::Nftables);
    assert_eq!(
        message,
        format!(
            "loadBalancer.scheduler: mode nftables does not have scheduler lc: {used} is used instead"
        )
    );
}
