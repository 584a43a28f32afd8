//! What the demo waits for of its agent, no longer than the person wants to.

use std::path::Path;

use anyhow::Result;
use crds::NodeProxyStatus;

use super::interruption::Interruption;
use crate::lone_agent::LoneAgent;

/// Waits until it says that everything is programmed.
pub(super) fn wait_until_ready(agent: &LoneAgent, interruption: &Interruption) -> Result<()> {
    agent.wait_for("the agent to be ready", |agent| {
        interruption.check()?;
        Ok(agent.is_ready().then_some(()))
    })
}

/// Waits until its status is as `wanted`, and returns it.
pub(super) fn wait_for_status(
    agent: &LoneAgent,
    interruption: &Interruption,
    what: &str,
    wanted: impl Fn(&NodeProxyStatus) -> bool,
) -> Result<NodeProxyStatus> {
    agent.wait_for(what, |agent| {
        interruption.check()?;
        Ok(agent.status()?.filter(&wanted))
    })
}

/// Whether a process with this id runs.
pub(super) fn runs(process_id: u32) -> bool {
    Path::new("/proc").join(process_id.to_string()).exists()
}
