//! Rollouts that fail.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tests::deadline::wait_for;

use crate::cluster::{Cluster, message};
use crate::operator::Operator;
use crate::{DEADLINE, NODES};

pub(crate) fn a_change_the_canary_does_not_survive_goes_back(cluster: &mut Cluster) -> Result<()> {
    let operator = Operator::start(cluster, "operator-1")?;
    let rollout = json!({"progressDeadline": "10s"});
    settle(cluster, &rollout)?;

    // No agent reports on the change.
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

    // The next operator knows that the rollout failed, and that an edit is another attempt.
    let _operator = Operator::start(cluster, "operator-2")?;
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

pub(crate) fn t108_a_node_lost_after_its_change_takes_the_change_back(
    cluster: &mut Cluster,
) -> Result<()> {
    let _operator = Operator::start(cluster, "operator-1")?;
    let rollout = json!({"progressDeadline": "10s", "minReady": "30s"});
    settle(cluster, &rollout)?;
    cluster.put_profile("default", json!({"mode": "iptables", "rollout": rollout}))?;
    let proxy = cluster.wait_for_stamp("n1", "default", "iptables")?;
    let baseline = &proxy["metadata"]["annotations"]["signpost.dev/baseline"];
    assert!(
        baseline
            .as_str()
            .is_some_and(|baseline| baseline.contains(r#""agent":"Ready""#)),
        "{baseline}"
    );
    cluster.report_ready("n1")?;
    cluster.lose_kubelet("n1")?;
    let profile = cluster.wait_for_condition("default", "Progressing", "False/RolledBack")?;
    let said = message(&profile, "Progressing");
    assert!(
        said.starts_with("1 of 3 nodes failed: n1 (its Node"),
        "{said}"
    );
    for node in ["n2", "n3"] {
        let proxy = cluster.get("nodeproxy", node)?.context("it is there")?;
        assert_eq!(proxy["metadata"]["generation"], 1, "{node} had its change");
    }
    Ok(())
}

pub(crate) fn t109_losing_the_api_server_takes_no_change_back(cluster: &mut Cluster) -> Result<()> {
    let _operator = Operator::start(cluster, "operator-1")?;
    let rollout = json!({"progressDeadline": "10s", "minReady": "1s"});
    settle(cluster, &rollout)?;
    cluster.put_profile("default", json!({"mode": "iptables", "rollout": rollout}))?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "iptables")?;
        cluster.report_stale(node)?;
    }
    cluster
        .wait_for_condition("default", "Progressing", "False/Settled")
        .map(drop)
}

pub(crate) fn t112_what_is_deleted_and_made_again_changes_one_node_at_first(
    cluster: &mut Cluster,
) -> Result<()> {
    let _operator = Operator::start(cluster, "operator-1")?;
    settle(cluster, &json!({}))?;
    let delete = |arguments: &[&str]| {
        let arguments = [&["delete"], arguments].concat();
        cluster.control_plane.kubectl(&arguments)
    };
    delete(&["proxyprofile", "default"])?;
    for node in NODES {
        wait_for("the NodeProxy to go", DEADLINE, || {
            Ok(cluster.get("nodeproxy", node)?.is_none().then_some(()))
        })?;
    }
    cluster.put_profile("default", json!({"mode": "iptables"}))?;
    expect_one_after_the_other(cluster, "nftables", "iptables")?;

    delete(&["nodeproxies", "--all"])?;
    cluster.put_profile("default", json!({"mode": "nftables"}))?;
    expect_one_after_the_other(cluster, "iptables", "nftables")
}

pub(crate) fn t307_one_field_takes_a_settled_change_back_node_by_node_and_keeps_it_back(
    cluster: &mut Cluster,
) -> Result<()> {
    let operator = Operator::start(cluster, "operator-1")?;
    settle(cluster, &json!({}))?;
    let change = json!({"mode": "iptables"});
    cluster.put_profile("default", change.clone())?;
    expect_one_after_the_other(cluster, "nftables", "iptables")?;
    let profile = cluster
        .get("proxyprofile", "default")?
        .context("it is there")?;
    let [undone, earlier] = [0, 1].map(|at| &profile["status"]["history"][at]["configHash"]);
    let patch = json!({"spec": {"rollout": {"undo": undone}}}).to_string();
    let patch = format!("--patch={patch}");
    let arguments = ["patch", "pxp", "default", "--type=merge", &patch];
    cluster.control_plane.kubectl(&arguments)?;
    expect_one_after_the_other(cluster, "iptables", "nftables")?;
    operator.stop()?;

    // The next operator finds the profile applied again, as a repository has it.
    cluster.put_profile("default", change)?;
    let _operator = Operator::start(cluster, "operator-2")?;
    cluster.put_profile("other", json!({"priority": 9000}))?;
    cluster.wait_for_condition("other", "Conflict", "False/Overridden")?;
    let profile = cluster.wait_for_condition("default", "Progressing", "False/Settled")?;
    assert_eq!(profile["spec"]["mode"], "iptables");
    assert_eq!(profile["status"]["targetHash"], *earlier);
    let said = message(&profile, "Progressing");
    assert!(
        said.contains("; rollout.undo: generation 2 ("),
        "it does not say what is undone: {said}"
    );
    for node in NODES {
        let proxy = cluster.get("nodeproxy", node)?.context("it is there")?;
        assert_eq!(proxy["spec"]["config"]["mode"], "nftables", "{node}");
        assert_eq!(proxy["metadata"]["generation"], 3, "{node} had one more");
    }
    Ok(())
}

/// Asserts that n1 receives the new mode while the others keep the old one until n1 is ready.
fn expect_one_after_the_other(cluster: &Cluster, old: &str, new: &str) -> Result<()> {
    cluster.wait_for_stamp("n1", "default", new)?;
    for node in ["n2", "n3"] {
        cluster.wait_for_stamp(node, "default", old)?;
        cluster.report_ready(node)?;
    }
    for node in ["n2", "n3"] {
        let proxy = cluster.get("nodeproxy", node)?.context("it is there")?;
        assert_eq!(proxy["spec"]["config"]["mode"], old, "{node}");
    }
    for node in NODES {
        cluster.wait_for_stamp(node, "default", new)?;
        cluster.report_ready(node)?;
    }
    let settled = "False/Settled";
    cluster
        .wait_for_condition("default", "Progressing", settled)
        .map(drop)
}

/// Settles three nodes, ready with mode nftables.
fn settle(cluster: &Cluster, rollout: &Value) -> Result<()> {
    cluster.put_profile("default", json!({"rollout": rollout}))?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "nftables")?;
        cluster.report_ready(node)?;
    }
    let all = "True/AllNodesProgrammed";
    cluster
        .wait_for_condition("default", "Ready", all)
        .map(drop)
}
