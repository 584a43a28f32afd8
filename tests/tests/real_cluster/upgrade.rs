//! `helm upgrade`.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::stage::{NODES, Running, Stage};

/// Another log format changes the environment, so every Pod is replaced.
pub(crate) fn every_pod(stage: &mut Stage) -> Result<()> {
    let before: Vec<Running> = observe_all(stage)?;
    let old: BTreeSet<&str> = before.iter().map(|pod| pod.uid.as_str()).collect();
    let connections = stage.connect()?;
    let began = Instant::now();
    stage.run_helm("upgrade", &["--reuse-values", "--set=log.format=text"])?;
    for (component, count) in [("agent", usize::from(NODES)), ("operator", 2)] {
        stage.wait_for_component(
            component,
            &format!("a new {component} everywhere"),
            |pods| pods.len() == count && pods.iter().all(|pod| !old.contains(pod.uid.as_str())),
        )?;
    }
    stage.wait_until_ready()?;
    println!(
        "    {} pods replaced after {:.1?}",
        before.len(),
        began.elapsed()
    );
    connections.finish_unharmed()?;
    let restarted = observe_all(stage)?;
    ensure!(
        restarted.iter().all(|pod| pod.restarts == 0),
        "{restarted:?}"
    );
    Ok(())
}

/// Returns Signpost's Pods of both components.
pub(crate) fn observe_all(stage: &Stage) -> Result<Vec<Running>> {
    let mut pods = stage.observe_component("agent")?;
    pods.extend(stage.observe_component("operator")?);
    Ok(pods)
}
