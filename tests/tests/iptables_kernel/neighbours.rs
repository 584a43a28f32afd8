//! Other programs use the same tables.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use backend::{Backend, Drift, Rendered};
use backend_iptables::{Iptables, NotificationListener};
use dataplane::{Dataplane, Family};
use tests::programmed::{generated_clusters, program};
use xtables::Variant;

use crate::ground::Ground;

/// Returns rules of other programs before and after the place of Signpost's, with counters, a
/// policy, and matches that Signpost does not use.
fn rules_of_others(family: Family) -> String {
    let (target, range) = match family {
        Family::Ipv4 => ("198.51.100.9", "203.0.113.0/24"),
        Family::Ipv6 => ("2001:db8:51::9", "2001:db8:113::/64"),
    };
    let to = match family {
        Family::Ipv4 => format!("{target}:99"),
        Family::Ipv6 => format!("[{target}]:99"),
    };
    format!(
        "*nat\n\
         :PREROUTING ACCEPT [3:180]\n\
         :THEIRS - [0:0]\n\
         [5:300] -A PREROUTING -d {target} -p tcp -m tcp --dport 98 -j THEIRS\n\
         [6:360] -A POSTROUTING -s {range} -m limit --limit 5/sec -j RETURN\n\
         [7:420] -A THEIRS -p tcp -j DNAT --to-destination {to}\n\
         COMMIT\n\
         *filter\n\
         :INPUT ACCEPT [1:60]\n\
         :FORWARD DROP [11:660]\n\
         :THEIRS-FORWARD - [0:0]\n\
         [2:120] -A FORWARD -i eth9 -m comment --comment \"they say so\" -j THEIRS-FORWARD\n\
         [4:240] -A OUTPUT -m owner --uid-owner 12 -j ACCEPT\n\
         [8:480] -A THEIRS-FORWARD -s {range} -m mark ! --mark 0x1/0xff -j DROP\n\
         COMMIT\n"
    )
}

/// Failure story T18 (kubernetes#119265).
pub(crate) fn removal_leaves_rules_of_other_programs(ground: &Ground) -> Result<()> {
    let mut before = Vec::new();
    for family in Family::ALL {
        ground.restore(family, &rules_of_others(family))?;
        let saved = ground.save(family)?;
        // ip6tables-nft-restore 1.8.9 ignores the counters of rules.
        let counted = match (family, ground.variant) {
            (Family::Ipv6, Variant::NfTables) => ":FORWARD DROP [11:660]",
            _ => "[8:480] -A THEIRS-FORWARD",
        };
        ensure!(saved.contains(counted), "{saved}");
        before.push(saved);
    }
    for (mut backend, mut observed) in ground.program(&ground.rich()?)? {
        for cluster in generated_clusters(10)? {
            observed = program(&mut backend, &cluster.compile(), &observed)?;
        }
        let family = backend.family();
        let saved = ground.save(family)?;
        ensure!(saved.contains("-j SIGNPOST-SERVICES"), "{saved}");
        let left = of_others(&saved);
        let alone = of_others(&before[usize::from(family == Family::Ipv6)]);
        ensure!(
            left == alone,
            "while Signpost's rules are there:\n{left}\nnot\n{alone}"
        );
        let _ = backend.commit_removal()?;
    }
    for (family, before) in Family::ALL.into_iter().zip(&before) {
        let after = ground.save(family)?;
        ensure!(after == *before, "{family}:\n{after}\nnot\n{before}");
    }
    Ok(())
}

/// Returns a listing without Signpost's rules.
fn of_others(saved: &str) -> String {
    let lines = saved.lines().filter(|line| !line.contains("SIGNPOST-"));
    lines.map(|line| format!("{line}\n")).collect()
}

pub(crate) fn quiet_is_distinguished_from_change(ground: &Ground) -> Result<()> {
    let dataplane = ground.rich()?;
    let empty = Dataplane::new(dataplane.node().clone(), dataplane.config().clone());
    let mut families = ground.program(&dataplane)?;
    for (backend, _) in &mut families {
        backend.observe()?;
    }
    let (first, observed) = &mut families[0];
    *observed = program(first, &empty, observed)?;
    for (backend, _) in &mut families {
        let drift = backend.observe_drift()?;
        let expected = match ground.variant {
            Variant::NfTables => Drift::None,
            // Only a full read would tell.
            Variant::Legacy => Drift::Possible,
        };
        ensure!(drift == expected, "{drift:?} after Signpost's own commits");
    }
    for family in Family::ALL {
        ground.iptables(family, "-t nat -F SIGNPOST-POSTROUTING")?;
    }
    for (backend, _) in &mut families {
        let drift = backend.observe_drift()?;
        ensure!(drift == Drift::Possible, "a change went unseen");
    }
    Ok(())
}

/// Failure story T34.
pub(crate) fn what_others_do_elsewhere(ground: &Ground) -> Result<()> {
    let (mut families, mut notification_listener) = ground.open_with_listener()?;
    for backend in &mut families {
        program(backend, &ground.rich()?, &Rendered::default())?;
        backend.observe()?;
    }
    notification_listener.join()?;
    for backend in &mut families {
        // Read the changes made before the listener started.
        backend.observe()?;
    }
    let namespace = &ground.namespace;
    namespace.nft(&["add table inet theirs"])?;
    namespace.nft(&["add set inet theirs s { type ipv4_addr; }"])?;
    for number in 0..50 {
        let element = format!("add element inet theirs s {{ 11.0.0.{number} }}");
        namespace.nft(&[&element])?;
        let nothing = notification_listener.receive()?;
        ensure!(nothing.is_none(), "{nothing:?}");
    }
    for backend in &mut families {
        expect_no_drift(backend, &mut notification_listener)?;
    }
    // In shared tables any change may affect Signpost: a chain of another name may have been its
    // own.
    namespace.nft(&["add chain ip filter THEIRS"])?;
    let [ipv4, ipv6] = &mut families;
    expect_no_drift(ipv6, &mut notification_listener)?;
    ensure!(
        ipv4.observe_drift()? == Drift::Possible,
        "a change in Signpost's table went unseen"
    );
    Ok(())
}

/// Waits until all changes by other programs have been processed without drift.
fn expect_no_drift(
    backend: &mut Iptables,
    notification_listener: &mut NotificationListener,
) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while backend.observe_drift()? == Drift::Possible {
        ensure!(
            Instant::now() < deadline,
            "what others did elsewhere counts"
        );
        notification_listener.receive()?;
    }
    Ok(())
}
