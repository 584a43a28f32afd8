//! Interruptible waits for the agent.

use std::path::Path;

use anyhow::Result;
use crds::NodeProxyStatus;

use super::interruption::Interruption;
use crate::lone_agent::LoneAgent;

/// Waits until the agent reports that everything is programmed.
pub(super) fn wait_until_ready(agent: &LoneAgent, interruption: &Interruption) -> Result<()> {
    agent.wait_for("the agent to be ready", |agent| {
        interruption.check()?;
        Ok(agent.is_ready().then_some(()))
    })
}

/// Waits until `expected` accepts its status, and returns it.
pub(super) fn wait_for_status(
    agent: &LoneAgent,
    interruption: &Interruption,
    what: &str,
    expected: impl Fn(&NodeProxyStatus) -> bool,
) -> Result<NodeProxyStatus> {
    agent.wait_for(what, |agent| {
        interruption.check()?;
        Ok(agent.status()?.filter(&expected))
    })
}

/// Whether a process with this ID exists.
pub(super) fn runs(process_id: u32) -> bool {
    Path::new("/proc").join(process_id.to_string()).exists()
}
