//! Conntrack's setting to accept packets that it considers invalid is changed while Signpost runs.

use anyhow::{Context, Result, ensure};
use dataplane::Family;
use reconciler::{FamilyReconciler, Outcome, Reason, SystemClock};

use crate::damages::services;
use crate::ground::Ground;

const SETTING: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// On a node that has just booted, conntrack has no sysctls before the first rule that uses it, and
/// `conntrack.tcpBeLiberal` is written some seconds later. In variant nf_tables, rules kept
/// dropping INVALID packets until another program changed the tables.
pub(crate) fn conntrack_that_is_made_liberal(ground: &Ground) -> Result<()> {
    let dataplane = services(1..=3, 8080);
    let [backend, _] = ground.open()?;
    // The sysctl is read in the thread's namespace.
    ground.namespace.enter(|| -> Result<()> {
        let mut domain = FamilyReconciler::new(backend);
        let mut sync = |reason| domain.sync(&dataplane, reason, &SystemClock);
        for (liberal, reason) in [
            ("0", Reason::Startup),
            ("1", Reason::Timer),
            ("0", Reason::Timer),
        ] {
            std::fs::write(SETTING, liberal).with_context(|| format!("to {liberal}"))?;
            let made = sync(reason);
            ensure!(made.outcome == Outcome::Committed, "{made}");
            ensure!(
                made.repaired_drift.is_none(),
                "no program caused that: {made}"
            );
            let saved = ground.save(Family::Ipv4)?;
            let drops = saved.contains("-m conntrack --ctstate INVALID -j DROP");
            ensure!(drops == (liberal == "0"), "with {liberal}:\n{saved}");
            let quiet = sync(Reason::Timer);
            ensure!(quiet.outcome == Outcome::Unchanged, "{quiet}");
        }
        Ok(())
    })?
}
