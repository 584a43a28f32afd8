//! Others who use the same tables.

use anyhow::{Result, ensure};
use backend::{Backend, Drift};
use dataplane::{Dataplane, Family};
use tests::programmed::{generated_clusters, program};
use xtables::Variant;

use crate::ground::Ground;

/// Rules of others before and behind where ours go, with counters, a policy, and words that none of
/// ours has.
fn theirs(family: Family) -> String {
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
pub(crate) fn removal_leaves_other_peoples_rules(ground: &Ground) -> Result<()> {
    let mut before = Vec::new();
    for family in Family::ALL {
        ground.restore(family, &theirs(family))?;
        let saved = ground.save(family)?;
        // ip6tables-nft-restore 1.8.9 takes no heed of the counters of rules.
        let counted = match (family, ground.variant) {
            (Family::Ipv6, Variant::NfTables) => ":FORWARD DROP [11:660]",
            _ => "[8:480] -A THEIRS-FORWARD",
        };
        ensure!(saved.contains(counted), "{saved}");
        before.push(saved);
    }
    for (mut backend, mut believed) in ground.program(&ground.rich()?)? {
        for cluster in generated_clusters(10)? {
            believed = program(&mut backend, &cluster.compile(), &believed)?;
        }
        let family = backend.family();
        let saved = ground.save(family)?;
        ensure!(saved.contains("-j SIGNPOST-SERVICES"), "{saved}");
        let left = theirs_of(&saved);
        let alone = theirs_of(&before[usize::from(family == Family::Ipv6)]);
        ensure!(left == alone, "while ours are there:\n{left}\nnot\n{alone}");
        let _ = backend.commit_removal()?;
    }
    for (family, before) in Family::ALL.into_iter().zip(&before) {
        let after = ground.save(family)?;
        ensure!(after == *before, "{family}:\n{after}\nnot\n{before}");
    }
    Ok(())
}

/// What is left of a listing without ours.
fn theirs_of(saved: &str) -> String {
    let lines = saved.lines().filter(|line| !line.contains("SIGNPOST-"));
    lines.map(|line| format!("{line}\n")).collect()
}

pub(crate) fn quiet_is_told_from_change(ground: &Ground) -> Result<()> {
    let dataplane = ground.rich()?;
    let empty = Dataplane::new(dataplane.node().clone(), dataplane.config().clone());
    let mut families = ground.program(&dataplane)?;
    for (backend, _) in &mut families {
        backend.observe()?;
    }
    let (first, believed) = &mut families[0];
    *believed = program(first, &empty, believed)?;
    for (backend, _) in &mut families {
        let drift = backend.observe_drift()?;
        let expected = match ground.variant {
            Variant::NfTables => Drift::None,
            // Only reading tells.
            Variant::Legacy => Drift::Possible,
        };
        ensure!(drift == expected, "{drift:?} after our own commits");
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
