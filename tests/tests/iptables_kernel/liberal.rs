//! Conntrack that is told, while we run, to let through what it calls invalid.

use anyhow::{Context, Result, ensure};
use dataplane::Family;
use reconciler::{Domain, Outcome, Reason};
use tests::system_clock::SystemClock;

use crate::damages::services;
use crate::ground::Ground;

const SETTING: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// On a node that has just come up, conntrack has no settings before the first rule that asks it
/// something, and `conntrack.tcpBeLiberal` is set some seconds after that. Rules went on dropping what
/// is INVALID: in variant nf_tables, for as long as nobody else changed anything.
pub(crate) fn conntrack_that_is_made_liberal(ground: &Ground) -> Result<()> {
    let dataplane = services(1..=3, 8080);
    let [backend, _] = ground.open()?;
    // What is set is seen from the namespace that a thread is in.
    ground.namespace.enter(|| -> Result<()> {
        let mut domain = Domain::new(backend);
        let mut round = |reason| domain.round(&dataplane, reason, &SystemClock);
        for (liberal, reason) in [
            ("0", Reason::Startup),
            ("1", Reason::Timer),
            ("0", Reason::Timer),
        ] {
            std::fs::write(SETTING, liberal).with_context(|| format!("to {liberal}"))?;
            let made = round(reason);
            ensure!(made.outcome == Outcome::Committed, "{made}");
            ensure!(made.damage.is_none(), "it is nobody's doing: {made}");
            let saved = ground.save(Family::Ipv4)?;
            let drops = saved.contains("-m conntrack --ctstate INVALID -j DROP");
            ensure!(drops == (liberal == "0"), "with {liberal}:\n{saved}");
            let quiet = round(Reason::Timer);
            ensure!(quiet.outcome == Outcome::Unchanged, "{quiet}");
        }
        Ok(())
    })?
}
