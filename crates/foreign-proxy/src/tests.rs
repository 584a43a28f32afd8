use super::*;

fn found(mechanisms: &[Mechanism]) -> Found {
    let both = BTreeSet::from(Family::ALL);
    let rules = mechanisms
        .iter()
        .map(|mechanism| (*mechanism, both.clone()));
    Found {
        rules: rules.collect(),
        legacy: Legacy::None,
    }
}

const ANSWERS: KubeProxy = KubeProxy::Answers {
    at: "127.0.0.1:10249",
};

/// The status, reason and message of the condition.
fn reported(found: Found, kube_proxy: KubeProxy) -> (Status, &'static str, String) {
    let finding = finding(&ForeignProxyScan::Seen(found, kube_proxy)).expect("it was looked");
    (finding.status, finding.reason.name, finding.message)
}

#[test]
fn what_was_found_is_named_with_who_serves_and_whether_it_still_runs() {
    let (status, reason, message) = reported(found(&[Mechanism::Nftables]), ANSWERS);
    assert_eq!((status, reason), (Status::True, "KubeProxyNftables"));
    assert_eq!(
        message,
        "found rules of kube-proxy in mode nftables for IPv4 and IPv6; kube-proxy answers at 127.0.0.1:10249; \
         new connections follow Signpost's rules in mode nftables, and in mode iptables the rules \
         whose chains were attached last; established connections are unaffected"
    );
    let (.., message) = reported(found(&[Mechanism::Iptables]), KubeProxy::Silent);
    assert!(
        message.contains("no kube-proxy answers on this node"),
        "{message}"
    );
}

/// Mode ipvs has an entry in iptables, too.
#[test]
fn virtual_servers_with_chains_beside_them_are_mode_ipvs() {
    let both = found(&[Mechanism::Iptables, Mechanism::Ipvs]);
    assert_eq!(reported(both.clone(), KubeProxy::Silent).1, "KubeProxyIpvs");
    assert_eq!(both.removable(), [], "they belong together");
    let chains = found(&[Mechanism::Iptables]).removable();
    assert_eq!(
        chains,
        Family::ALL.map(|family| (Mechanism::Iptables, family))
    );
}

#[test]
fn nothing_found_is_false_and_not_looked_is_not_reported() {
    let (status, reason, message) = reported(Found::default(), KubeProxy::Silent);
    assert_eq!(
        (status, reason, &*message),
        (Status::False, "NoneFound", "")
    );
    assert_eq!(finding(&ForeignProxyScan::None), None);
}

/// The condition is unknown if the rules cannot be read, unless kube-proxy itself answers.
#[test]
fn legacy_rules_are_unknown_until_their_owner_is_known() {
    let legacy = Found {
        legacy: Legacy::Unreadable,
        ..Found::default()
    };
    let (status, reason, _) = reported(legacy.clone(), KubeProxy::Silent);
    assert_eq!((status, reason), (Status::Unknown, "LegacyRulesUnread"));
    let (status, reason, _) = reported(legacy, ANSWERS);
    assert_eq!((status, reason), (Status::True, "KubeProxyIptables"));
    let seen = Found {
        legacy: Legacy::Chains,
        ..Found::default()
    };
    let (status, reason, _) = reported(seen, KubeProxy::Silent);
    assert_eq!((status, reason), (Status::True, "KubeProxyIptables"));
}

#[test]
fn a_kernel_that_refuses_is_unknown_and_not_nothing() {
    let finding = finding(&ForeignProxyScan::Refused(
        "operation not permitted".to_owned(),
    ));
    let finding = finding.expect("it was looked");
    assert_eq!(finding.status, Status::Unknown);
    assert_eq!(finding.reason.name, "RulesUnreadable");
}
