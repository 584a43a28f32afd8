//! Leader election when operators start and end.

use anyhow::{Context, Result, bail};
use serde_json::json;
use tests::deadline::wait_for;

use crate::cluster::Cluster;
use crate::operator::Operator;
use crate::{DEADLINE, NAMESPACE, NODES};

pub(crate) fn t6_an_operator_that_comes_back_does_nothing_twice(
    cluster: &mut Cluster,
) -> Result<()> {
    let operator = Operator::start(cluster, "operator-1")?;
    let spare = Operator::start(cluster, "operator-2")?;
    cluster.put_profile("default", json!({}))?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "nftables")?;
        cluster.report_ready(node)?;
    }
    cluster.wait_for_condition("default", "Ready", "True/AllNodesProgrammed")?;
    let holder = cluster.holder()?;
    let (acting, standby, standby_name) = match holder.as_str() {
        "operator-1" => (operator, spare, "operator-2"),
        "operator-2" => (spare, operator, "operator-1"),
        other => bail!("{other:?} holds the lease"),
    };
    let before = cluster.versions()?;

    // A crashed operator cannot release the lease: the other one waits until it expires.
    acting.crash()?;
    cluster.wait_for_holder(standby_name)?;
    // Its reaction to a new profile proves that it has read everything.
    cluster.put_profile("other", json!({"priority": 9000}))?;
    cluster.wait_for_condition("other", "Conflict", "False/Overridden")?;
    cluster
        .control_plane
        .kubectl(&["delete", "proxyprofile", "other"])?;
    assert_eq!(before, cluster.versions()?);

    // A profile changes while no operator runs; the next operator continues in waves.
    standby.stop()?;
    assert_eq!(cluster.holder()?, "", "it was given back");
    cluster.put_profile("default", json!({"syncPeriod": "1m"}))?;
    let _operator = Operator::start(cluster, "operator-3")?;
    cluster.wait_for_condition("default", "Progressing", "True/RollingOut")?;
    let proxies = cluster.control_plane.kubectl(&[
        "get",
        "nodeproxies",
        "--output=jsonpath={.items[*].spec.config.syncPeriod}",
    ])?;
    assert!(
        proxies.split(' ').filter(|period| *period == "1m").count() <= 1,
        "{proxies}"
    );
    for node in NODES {
        wait_for(
            &format!("node {node} to be given the change"),
            DEADLINE,
            || {
                let proxy = cluster
                    .get("nodeproxy", node)?
                    .context("it was given something")?;
                Ok((proxy["spec"]["config"]["syncPeriod"] == "1m").then_some(()))
            },
        )?;
        cluster.report_ready(node)?;
    }
    cluster
        .wait_for_condition("default", "Ready", "True/AllNodesProgrammed")
        .map(drop)
}

pub(crate) fn an_operator_that_loses_the_lease_ends(cluster: &mut Cluster) -> Result<()> {
    let mut operator = Operator::start(cluster, "operator-1")?;
    cluster.wait_for_holder("operator-1")?;
    let namespace = format!("--namespace={NAMESPACE}");
    let patch = json!({"spec": {"holderIdentity": "operator-2"}}).to_string();
    let arguments = [
        "patch",
        "lease",
        "signpost-operator",
        &namespace,
        "--type=merge",
        "--patch",
        &patch,
    ];
    cluster.control_plane.kubectl(&arguments)?;
    operator.wait_for_end(1)?;
    assert_eq!(
        cluster.holder()?,
        "operator-2",
        "another holder's lease is not given back"
    );
    Ok(())
}
