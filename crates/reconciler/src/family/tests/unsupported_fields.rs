//! What a backend does not support, or has no room for, as the family reports it.

use super::*;

#[test]
fn what_a_backend_cannot_do_is_reported_for_what_is_desired_now() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(kernel.backend(IPV4));
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let sticky = mk_service("shop/sticky")
        .cluster_ip("10.96.0.12")
        .port("", 80)
        .client_ip_affinity(Duration::from_secs(60));
    let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
    let sticky = compile(&sticky.build(), &endpoints.build(), &node, &config);
    let mut desired = web_and_cart();
    family.sync(&desired, Reason::Startup, &clock);
    assert!(family.status().unsupported_fields.is_empty());

    desired.set(Arc::new(sticky));
    let sync = family.sync(&desired, Reason::Changed, &clock);
    let texts: Vec<String> = sync
        .unsupported_fields
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        texts,
        [
            "Service shop/sticky: spec.sessionAffinity: every connection is placed anew \
             (10.96.0.12:80/tcp)"
        ]
    );

    desired.remove(&ServiceKey::new("shop", "web"));
    let sync = family.sync(&desired, Reason::Changed, &clock);
    assert_eq!(
        sync.unsupported_fields.len(),
        1,
        "another Service has changed"
    );

    let mut restarted = FamilyReconciler::new(kernel.backend(IPV4));
    let again = restarted.sync(&desired, Reason::Startup, &clock);
    assert_eq!(
        again.unsupported_fields, sync.unsupported_fields,
        "to a restart"
    );
    desired.set_node(mk_node(2).build(), config);
    let again = family.sync(&desired, Reason::Changed, &clock);
    assert_eq!(
        again.unsupported_fields, sync.unsupported_fields,
        "on another node"
    );

    desired.remove(&ServiceKey::new("shop", "sticky"));
    let sync = family.sync(&desired, Reason::Changed, &clock);
    assert!(sync.unsupported_fields.is_empty());
}

/// What a backend reports that has no room for a Service of `desired`.
fn no_room(desired: &Dataplane) -> UnsupportedField {
    let web = ServiceKey::new("shop", "web");
    let mut frontends = desired.frontends().iter();
    let of_web = frontends.find(|(_, claims)| *claims.winner().0 == web);
    let (frontend, _) = of_web.expect("it has some");
    UnsupportedField {
        frontend: *frontend,
        service: web,
        field: "spec.ports",
        message: "there is no room".into(),
    }
}

/// Failure story T310.
#[test]
fn t310_a_service_that_a_backend_has_no_room_for_is_reported_as_long_as_it_has_none() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(kernel.backend(IPV4));
    let mut desired = web_and_cart();
    let no_room = no_room(&desired);
    kernel.leave_no_room(vec![no_room.clone()]);
    let sync = family.sync(&desired, Reason::Startup, &clock);
    assert_eq!(*sync.unsupported_fields, *slice::from_ref(&no_room));
    let sync = family.sync(&desired, Reason::Timer, &clock);
    assert_eq!(*sync.unsupported_fields, *slice::from_ref(&no_room));
    assert_eq!(*family.status().unsupported_fields, [no_room]);
    kernel.leave_no_room(Vec::new());
    desired.remove(&ServiceKey::new("shop", "cart"));
    let sync = family.sync(&desired, Reason::Changed, &clock);
    assert!(sync.unsupported_fields.is_empty());
}

/// Failure story T310. A repair begins with a read, and what was read does not show who has no room.
#[test]
fn t310_a_service_without_room_is_reported_while_a_repair_fails() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let refused = CallOutcome::Refuse(Recovery::Retry);
    let mut family = FamilyReconciler::new(failing(&kernel, refused, &[1, 2]));
    let desired = web_and_cart();
    kernel.leave_no_room(vec![no_room(&desired)]);
    family.sync(&desired, Reason::Startup, &clock);
    kernel.tamper(IPV4, |rules| *rules = FakeRules::default());
    for reason in [Reason::Drift, Reason::Retry, Reason::Retry] {
        let sync = family.sync(&desired, reason, &clock);
        assert_eq!(*sync.unsupported_fields, [no_room(&desired)], "{sync}");
    }
    assert_held(&kernel, &desired);
}

#[test]
fn t350_a_service_without_room_that_is_deleted_while_a_repair_fails_is_named_no_more() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let refused = CallOutcome::Refuse(Recovery::Retry);
    let mut family = FamilyReconciler::new(failing(&kernel, refused, &[1, 2, 3]));
    let mut desired = web_and_cart();
    let no_room = no_room(&desired);
    kernel.leave_no_room(vec![no_room.clone()]);
    family.sync(&desired, Reason::Startup, &clock);
    kernel.tamper(IPV4, |rules| *rules = FakeRules::default());
    let mut reported = |desired: &Dataplane, reason| {
        let sync = family.sync(desired, reason, &clock);
        assert!(matches!(sync.outcome, Outcome::Failed(_)), "{sync}");
        sync.unsupported_fields.to_vec()
    };
    assert_eq!(
        reported(&desired, Reason::Drift),
        std::slice::from_ref(&no_room)
    );
    desired.remove(&ServiceKey::new("shop", "cart"));
    assert_eq!(
        reported(&desired, Reason::Changed),
        [no_room],
        "another Service has gone"
    );
    desired.remove(&ServiceKey::new("shop", "web"));
    assert!(reported(&desired, Reason::Changed).is_empty());
}

/// Of several Services that claim the same address, the first by name gets it, in whatever order
/// they arrive.
#[test]
fn what_a_backend_cannot_do_is_reported_of_the_service_that_has_the_address() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(kernel.backend(IPV4));
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let rules = |name: &str, affinity: Option<Duration>| {
        let service = mk_service(name).cluster_ip("10.96.0.12").port("", 80);
        let service = match affinity {
            Some(timeout) => service.client_ip_affinity(timeout),
            None => service,
        };
        let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
        let rules = compile(&service.build(), &endpoints.build(), &node, &config);
        Arc::new(rules)
    };
    let minute = Some(Duration::from_secs(60));
    let mut desired = web_and_cart();
    let mut reported = |desired: &Dataplane| {
        let sync = family.sync(desired, Reason::Changed, &clock);
        let services = sync
            .unsupported_fields
            .iter()
            .map(|s| s.service.to_string());
        services.collect::<Vec<_>>()
    };

    desired.set(rules("shop/b", minute));
    assert_eq!(reported(&desired), ["shop/b"]);
    desired.set(rules("shop/a", None));
    assert!(reported(&desired).is_empty(), "shop/a has it now");
    desired.set(rules("shop/b", minute.map(|minute| 2 * minute)));
    assert!(
        reported(&desired).is_empty(),
        "shop/b has changed, and has it not"
    );
    desired.set(rules("shop/a", minute));
    assert_eq!(reported(&desired), ["shop/a"]);
    desired.remove(&ServiceKey::new("shop", "a"));
    assert_eq!(
        reported(&desired),
        ["shop/b"],
        "no other Service precedes it any more"
    );
}
