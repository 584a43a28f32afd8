//! What other programs do to the rules of Signpost.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use crds::profile::mode::Mode;
use dataplane::Family;
use netlink::ipvs::Operation;
use tests::iptables_program::iptables_program;
use xtables::Variant;

use crate::ipvs;
use crate::stage::Stage;

/// What another program removes while the agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    /// [`remove_part`].
    Part,
    /// [`remove_everything`].
    Everything,
}

// === impl Damage ===

impl Damage {
    /// The number of repairs that an agent counts: one of each damaged family.
    pub(super) fn repairs(self, mode: Mode) -> f64 {
        match (self, mode) {
            (Damage::Part, Mode::Ipvs) => 1.0,
            (Damage::Part | Damage::Everything, _) => 2.0,
        }
    }
}

/// Removes the rules of the family `lost`, and of the other one the node ports; in mode ipvs the virtual servers of
/// `lost` instead.
pub(super) fn remove_part(stage: &Stage, mode: Mode, variant: Variant, lost: Family) -> Result<()> {
    let kept = match lost {
        Family::Ipv4 => Family::Ipv6,
        Family::Ipv6 => Family::Ipv4,
    };
    let lines = match mode {
        Mode::Nftables => {
            let [lost, kept] = [lost, kept].map(nft_word);
            format!("nft delete table {lost} signpost; nft flush map {kept} signpost nodeports")
        }
        Mode::Iptables => {
            let [lost, kept] = [lost, kept].map(|family| iptables_program(family, variant));
            format!(
                "{lost} -w -t nat -F; {kept}-save -t nat | sed -n 's/^:\\(SIGNPOST-NODE[^ ]*\\).*/\\1/p' |
                 while read chain; do {kept} -w -t nat -F $chain; done"
            )
        }
        Mode::Ipvs => format!("nft delete table {} signpost-ipvs", nft_word(lost)),
    };
    run_shell(stage, &lines)?;
    match mode {
        Mode::Ipvs => remove_virtual_servers(stage, &[lost]),
        Mode::Nftables | Mode::Iptables => Ok(()),
    }
}

/// Removes all rules, also those of others, who have theirs again then, and all virtual servers.
pub(super) fn remove_everything(stage: &Stage, mode: Mode, variant: Variant) -> Result<()> {
    let mut lines = "nft flush ruleset\n".to_owned();
    if variant == Variant::Legacy {
        for family in Family::ALL {
            let program = iptables_program(family, variant);
            for table in ["raw", "mangle", "nat", "filter"] {
                writeln!(lines, "{program} -w -t {table} -F")?;
                writeln!(lines, "{program} -w -t {table} -X")?;
            }
        }
    }
    run_shell(stage, &lines)?;
    if mode == Mode::Ipvs {
        remove_virtual_servers(stage, &Family::ALL)?;
    }
    stage.set_others(variant, true)
}

fn remove_virtual_servers(stage: &Stage, families: &[Family]) -> Result<()> {
    let mut servers = ipvs::servers(stage)?;
    let mut own: Vec<_> = servers.observe_virtual_servers()?.own.into_keys().collect();
    own.retain(|key| families.contains(&key.family));
    ensure!(!own.is_empty(), "there are none");
    let removals = own
        .into_iter()
        .map(|key| Operation::RemoveVirtualServer { key });
    servers.commit(&removals.collect::<Vec<_>>())?;
    Ok(())
}

/// Runs lines of shell on the node.
pub(super) fn run_shell(stage: &Stage, lines: &str) -> Result<()> {
    let mut command = stage.node()?.command("sh");
    command.args(["-e", "-c", lines]);
    command.env("XTABLES_LOCKFILE", stage.lock()?);
    let output = command.output().context("unable to run sh")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{lines}: {errors}");
    Ok(())
}

fn nft_word(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    }
}
