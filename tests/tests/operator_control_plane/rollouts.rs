//! A change that fails on its way.

use anyhow::Result;
use serde_json::json;
use tests::deadline::wait_for;

use crate::cluster::Cluster;
use crate::operator::Operator;
use crate::{DEADLINE, NODES};

#[test]
fn a_change_the_canary_does_not_survive_goes_back() -> Result<()> {
    let cluster = Cluster::start()?;
    let operator = Operator::start(&cluster, "operator-1")?;
    let rollout = json!({"progressDeadline": "10s"});
    cluster.put_profile("default", json!({"rollout": rollout}))?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "nftables")?;
        cluster.report_ready(node)?;
    }
    cluster.wait_for_condition("default", "Ready", "True/AllNodesProgrammed")?;

    // Nobody reports about the change.
    cluster.put_profile("default", json!({"mode": "iptables", "rollout": rollout}))?;
    cluster.wait_for_stamp("n1", "default", "iptables")?;
    cluster.wait_for_condition("default", "Progressing", "False/RolledBack")?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "nftables")?;
    }
    cluster.report_ready("n1")?;
    wait_for("the event", DEADLINE, || {
        let fields = "--field-selector=reason=RolledBack";
        let events =
            cluster
                .control_plane
                .kubectl(&["get", "events", "--namespace=default", fields])?;
        Ok(events.contains("proxyprofile/default").then_some(()))
    })?;
    operator.stop()?;

    // Whoever comes next knows that it failed, and that an edit is another attempt.
    let _operator = Operator::start(&cluster, "operator-2")?;
    cluster.put_profile("other", json!({"priority": 9000}))?;
    cluster.wait_for_condition("other", "Conflict", "False/Overridden")?;
    cluster.wait_for_condition("default", "Progressing", "False/RolledBack")?;
    cluster.wait_for_stamp("n1", "default", "nftables")?;
    cluster.put_profile(
        "default",
        json!({"mode": "iptables", "priority": 500, "rollout": rollout}),
    )?;
    cluster
        .wait_for_stamp("n1", "default", "iptables")
        .map(drop)
}
