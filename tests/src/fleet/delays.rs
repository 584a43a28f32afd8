//! How soon a profile's status counts what an agent has reported.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{sleep, timeout};

use super::course::{Cluster, PATIENCE, node_name};

/// The pause before each report, and after the last one. The operator writes a profile's status at
/// most once a second, so an earlier change would wait for the one before it.
const PAUSE: Duration = Duration::from_secs(2);

/// The times from the API server's answer to an agent's report, that its node is not ready or that
/// it is ready again, until the profile's status counts it.
#[derive(Debug, Clone, Copy)]
pub struct Delays {
    /// The middle one of all times.
    pub median: Duration,
    /// The longest time.
    pub longest: Duration,
}

// === impl Cluster ===

impl Cluster {
    /// Lets the kernel of one node after another refuse changes, and then accept them, and measures
    /// how soon the profile's status counts each report.
    pub(super) async fn measure_delays(&self) -> Result<Delays> {
        let mut times = Vec::new();
        let tries = usize::try_from(self.settings.tries)?.max(1);
        for number in 0..tries {
            let name = node_name(number * self.settings.nodes / tries);
            for (failing, count) in [(Some(name), 1), (None, 0)] {
                sleep(PAUSE).await;
                times.push(self.measure_delay(failing, count).await?);
            }
        }
        sleep(PAUSE).await;
        times.sort();
        let delays = Delays {
            median: times[times.len() / 2],
            longest: times[times.len() - 1],
        };
        eprintln!("from a report until the status counts it: {delays:.2?}");
        Ok(delays)
    }

    /// Measures until `count` nodes are counted as degraded and not ready, which are `failing` from
    /// now on.
    async fn measure_delay(&self, failing: Option<String>, count: u32) -> Result<Duration> {
        let mut turned = self.agents.turned();
        self.agents.fail(failing);
        let accepted = timeout(PATIENCE, turned.changed()).await;
        accepted.context("the agent has not reported")??;
        let accepted = *turned.borrow();
        let ready = u32::try_from(self.settings.nodes)? - count;
        self.wait("the report to be counted", |profile| {
            let status = profile.status.as_ref()?;
            ([status.ready_nodes, status.degraded_nodes] == [ready, count]).then_some(())
        })
        .await?;
        let accepted = accepted.context("it says when it was accepted")?;
        Ok(accepted.elapsed())
    }
}
