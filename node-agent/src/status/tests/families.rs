//! Families that cannot be programmed, and what they leave unserved.

use super::*;

/// Failure story T58: kubernetes#133694.
#[test]
fn t58_one_broken_family_is_distinguished_from_the_other() {
    let view = view();
    let [ipv4, ipv6] = Family::ALL.map(|family| programmed(family, &view));
    let status = say(&view, Some(&report([ipv4, failing(ipv6, Recovery::Retry)])));
    assert_eq!(reported(&status, condition::READY).1, "PartiallyProgrammed");
    assert_eq!(reported(&status, condition::IPV4_PROGRAMMED).0, "True");
    let (programmed, reason, message) = reported(&status, condition::IPV6_PROGRAMMED);
    assert_eq!(
        (programmed.as_str(), reason.as_str()),
        ("False", "CommitFailed")
    );
    assert_eq!(message, "IPv6: failed to commit: no such device");
}

/// A node whose kernel lacks IPv6, with or without an IPv6 address.
fn without_ipv6(address: Option<std::net::Ipv6Addr>) -> (View, Report) {
    let mut view = view();
    let node = Node {
        ipv6: address,
        ..Node::default()
    };
    view.desired = Some(Dataplane::new(Arc::new(node), Arc::new(Config::default())));
    let [ipv4, ipv6] = Family::ALL.map(|family| programmed(family, &view));
    let never = FamilyStatus {
        programmed_since: None,
        last_receipt: None,
        last_success: None,
        programmed: None,
        ..ipv6
    };
    let report = report([ipv4, failing(never, Recovery::Halt)]);
    (view, report)
}

/// Failure story T84.
#[test]
fn t84_a_family_that_the_kernel_lacks_and_no_service_needs_is_reported_and_the_node_is_ready() {
    let (view, report) = without_ipv6(None);
    let status = say(&view, Some(&report));
    let (ready, reason, message) = reported(&status, condition::READY);
    assert_eq!((ready.as_str(), reason.as_str()), ("True", "Programmed"));
    assert_eq!(
        message,
        "programmed without one address family: IPv6: failed to commit: no such device"
    );
    let (programmed, reason, _) = reported(&status, condition::IPV6_PROGRAMMED);
    assert_eq!(
        (programmed.as_str(), reason.as_str()),
        ("False", "KernelUnsupported")
    );
    assert_eq!(reported(&status, condition::DEGRADED).0, "False");
    assert_eq!(reported(&status, condition::PROGRESSING).1, "Settled");
    assert_eq!(status.applied_hash, Some(view.hash.clone()));
    assert_eq!(status.rejections.total, 0);
}

/// Failure story T84: Services that need the family are always named. If the node could be reached
/// through that family, it is not ready.
#[test]
fn t84_services_that_want_a_family_that_the_kernel_lacks_are_named() {
    for (address, ready) in [
        (None, "True"),
        (Some(std::net::Ipv6Addr::LOCALHOST), "False"),
    ] {
        let (view, report) = without_ipv6(address);
        let mut desired = Dataplane::default();
        let service = testkit::mk_service("shop/web").cluster_ip("fd00::1");
        let service = service.port("http", 80).build();
        let endpoints = testkit::mk_endpoints().build();
        let rules = dataplane::compile(&service, &endpoints, desired.node(), desired.config());
        desired.set(rules.into());
        let mut not_served = NotServed::default();
        not_served.follow(&[Family::Ipv6], Some(&desired));
        let facts = Facts {
            not_served: &not_served,
            ..facts(&view, Some(&report))
        };
        let before = NodeProxyStatus::default();
        let status = status(&facts, &before, Timestamp::UNIX_EPOCH);
        assert_eq!(reported(&status, condition::READY).0, ready);
        assert_eq!(status.rejections.total, 1);
        let first = &status.rejections.first[0];
        assert_eq!(
            (&*first.object, &*first.field),
            ("Service shop/web", "spec.ipFamilies")
        );
        let expected = "not served: IPv6: failed to commit: no such device";
        assert_eq!(first.message, expected);
        assert_eq!(status.applied_hash, Some(view.hash.clone()));
    }
}

#[test]
fn a_kernel_that_cannot_is_distinguished_from_one_that_would_not() {
    let view = view();
    let both = Family::ALL.map(|f| failing(programmed(f, &view), Recovery::Halt));
    let status = say(&view, Some(&report(both)));
    assert_eq!(reported(&status, condition::READY).1, "KernelUnsupported");
    assert_eq!(
        reported(&status, condition::DEGRADED).1,
        "KernelUnsupported"
    );
}

/// Failure story T25: kubernetes#142068.
#[test]
fn t25_a_service_that_the_kernel_refuses_is_named_and_the_node_is_ready() {
    let view = view();
    let [mut ipv4, ipv6] = Family::ALL.map(|family| programmed(family, &view));
    ipv4.quarantined.push(Quarantined {
        service: ServiceKey::new("shop", "cart"),
        error: "invalid argument".to_owned(),
        since: SystemTime::UNIX_EPOCH,
    });
    let status = say(&view, Some(&report([ipv4, ipv6])));
    assert_eq!(reported(&status, condition::READY).0, "True");
    let (degraded, reason, message) = reported(&status, condition::DEGRADED);
    assert_eq!(
        (degraded.as_str(), reason.as_str()),
        ("True", "ServicesRejected")
    );
    assert!(message.contains("shop/cart"), "{message}");
    assert_eq!(status.rejections.total, 1);
    assert_eq!(status.rejections.first[0].object, "Service shop/cart");
}

/// The message named one family only, and not the mode that serves meanwhile.
#[test]
fn all_failures_of_a_node_are_in_one_message() {
    let view = view();
    let state = modes::ModeState {
        stalled: [(Mode::Iptables, "the lock is held".to_owned())].into(),
        ..modes::ModeState::default()
    };
    let both = Family::ALL.map(|family| failing(programmed(family, &view), Recovery::Retry));
    let report = report(both);
    let facts = Facts {
        modes: &[(Family::Ipv4, state)].into(),
        ..facts(&view, Some(&report))
    };
    let status = status(&facts, &NodeProxyStatus::default(), Timestamp::UNIX_EPOCH);
    let (_, _, message) = reported(&status, condition::DEGRADED);
    for part in ["IPv4: failed", "IPv6: failed", "the lock is held"] {
        assert!(message.contains(part), "{message}");
    }
}
