//! The sysctls of mode ipvs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use crds::condition::FEATURES_HONOURED;
use crds::condition::reason::MODE_NOT_HONOURED;
use crds::profile::mode::Mode;
use tests::lone_agent::Sysctls;
use xtables::Variant;

use crate::stage::{Place, SERVING, Stage};

/// The number of Services besides `shop/web`.
const FEW: u8 = 20;
/// The sysctl that the mode requires.
const CONNTRACK: &str = "/proc/sys/net/ipv4/vs/conntrack";
/// All that it sets, each with the value, and with another one. Linux before 5.17 does not have the
/// last.
const SETTINGS: [(&str, &str, &str); 3] = [
    ("conntrack", "1", "0"),
    ("expire_nodest_conn", "1", "0"),
    ("run_estimation", "0", "1"),
];

/// Failure story T129: without its sysctl, masqueraded connections would get no replies. In a
/// container the agent can only read it.
pub(crate) fn that_cannot_be_written() -> Result<()> {
    let mut stage = Stage::build_with(Variant::NfTables, FEW)?;
    stage.sysctls = Sysctls::ReadOnly;
    stage.set_mode(Mode::Ipvs)?;
    stage.start_agent()?;
    let said = stage.expect_condition(FEATURES_HONOURED, "False")?;
    ensure!(said.reason == MODE_NOT_HONOURED.name, "{said:?}");
    ensure!(said.message.contains("vs/conntrack"), "{said:?}");
    stage.expect_mode(Mode::Nftables)?;
    stage.expect_only(Place::Nftables)?;
    stage.expect_answers(&SERVING)?;
    // As an administrator does on the node.
    stage.node()?.enter(|| fs::write(CONNTRACK, "1"))??;
    stage.expect_mode(Mode::Ipvs)?;
    stage.expect_only(Place::Ipvs)?;
    stage.expect_answers(&SERVING)?;
    // The mode works without the others, and what that means is said.
    stage.expect_message(FEATURES_HONOURED, |said| {
        said.contains("vs/expire_nodest_conn could not be set to 1")
            && !said.contains("vs/conntrack")
    })
}

/// A file below `/proc/sys`, the value that mode ipvs sets, and another one.
pub(crate) type Setting = (PathBuf, &'static str, &'static str);

/// Returns those of [`SETTINGS`] that this kernel has.
pub(crate) fn those_there(stage: &Stage) -> Result<Vec<Setting>> {
    let folder = Path::new(CONNTRACK).parent().context("it is in a folder")?;
    let all = SETTINGS.map(|(name, set, other)| (folder.join(name), set, other));
    let there = |setting: &Setting| setting.0.exists();
    let there = stage
        .node()?
        .enter(|| all.into_iter().filter(there).collect::<Vec<_>>())?;
    ensure!(there.len() >= 2, "{there:?}");
    Ok(there)
}

/// Sets the other value, as an administrator may.
pub(crate) fn reset(stage: &Stage, settings: &[Setting]) -> Result<()> {
    let write = |(file, _, other): &Setting| fs::write(file, other);
    stage
        .node()?
        .enter(|| settings.iter().try_for_each(write))??;
    Ok(())
}

pub(crate) fn are_set(stage: &Stage, settings: &[Setting]) -> Result<bool> {
    stage.node()?.enter(|| {
        for (file, set, _) in settings {
            if fs::read_to_string(file)?.trim() != *set {
                return anyhow::Ok(false);
            }
        }
        Ok(true)
    })?
}
