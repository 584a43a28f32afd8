use super::*;

fn found(modes: &[Mode]) -> Found {
    let both = BTreeSet::from(Family::ALL);
    let rules = modes.iter().map(|mode| (*mode, both.clone()));
    Found {
        rules: rules.collect(),
        ..Found::default()
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
    let (status, reason, message) = reported(found(&[Mode::Nftables]), ANSWERS);
    assert_eq!((status, reason), (Status::True, "KubeProxyNftables"));
    assert_eq!(
        message,
        "found rules of kube-proxy in mode nftables for IPv4 and IPv6; kube-proxy answers at 127.0.0.1:10249; \
         new connections follow Signpost's rules in mode nftables, and in mode iptables the rules \
         whose chains were attached last; established connections are unaffected"
    );
    let (.., message) = reported(found(&[Mode::Iptables]), KubeProxy::Silent);
    assert!(
        message.contains("no kube-proxy answers on this node"),
        "{message}"
    );
}

/// Mode ipvs has an entry in iptables, too.
#[test]
fn virtual_servers_with_chains_beside_them_are_mode_ipvs() {
    let both = found(&[Mode::Iptables, Mode::Ipvs]);
    assert_eq!(reported(both.clone(), KubeProxy::Silent).1, "KubeProxyIpvs");
    let of_both = |mode| Family::ALL.map(|family| (mode, family));
    let all = [of_both(Mode::Iptables), of_both(Mode::Ipvs)].concat();
    assert_eq!(both.removable(), all, "chains are removed first");
}

/// A kube-proxy that returns creates its chains before it changes virtual servers.
#[test]
fn virtual_servers_end_only_while_kube_proxy_has_no_chains() {
    let noted = |mut found: Found, virtual_servers| {
        found.note_virtual_servers(virtual_servers);
        found
    };
    let ends = noted(Found::default(), VirtualServers::Ending);
    assert_eq!((ends.rules.len(), ends.ending), (0, Ending::Pending));
    assert!(!ends.is_nothing());
    let (status, reason, _) = reported(ends, KubeProxy::Silent);
    assert_eq!((status, reason), (Status::False, "KubeProxyEnding"));

    let chains = found(&[Mode::Iptables]);
    let legacy = Found {
        legacy: Legacy::Chains,
        ..Found::default()
    };
    for (before, virtual_servers) in [
        (Found::default(), VirtualServers::Present),
        (chains, VirtualServers::Ending),
        (legacy, VirtualServers::Ending),
    ] {
        let found = noted(before, virtual_servers);
        assert_eq!(found.ending, Ending::Complete);
        assert_eq!(reported(found, KubeProxy::Silent).1, "KubeProxyIpvs");
    }
    let nothing = noted(Found::default(), VirtualServers::None);
    assert!(nothing.is_nothing());
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

/// A removal that was cut short has ended one family, and virtual servers are found for both.
#[test]
fn the_mode_is_that_of_the_family() {
    let ipv6 = BTreeSet::from([Family::Ipv6]);
    let both = BTreeSet::from(Family::ALL);
    let modes = |found: &Found| Family::ALL.map(|family| found.mode(family));
    assert_eq!(modes(&Found::default()), [None, None]);
    let legacy = Found {
        legacy: Legacy::Chains,
        legacy_families: ipv6.clone(),
        ..Found::default()
    };
    assert_eq!(modes(&legacy), [None, Some(Mode::Iptables)]);
    assert!(legacy.has_chains(Variant::Legacy, Family::Ipv6));
    assert!(!legacy.has_chains(Variant::NfTables, Family::Ipv6));
    let mut found = Found::default();
    found.rules.insert(Mode::Iptables, ipv6);
    assert_eq!(modes(&found), [None, Some(Mode::Iptables)]);
    found.rules.insert(Mode::Ipvs, both);
    assert_eq!(modes(&found), [Some(Mode::Ipvs); 2]);
    let chains = |family| found.has_chains(Variant::NfTables, family);
    assert_eq!(Family::ALL.map(chains), [false, true]);
}
