//! The effects of profiles on nodes, and their statuses.

use anyhow::{Context, Result};
use serde_json::json;
use tests::deadline::wait_for;

use crate::cluster::{Cluster, condition, message};
use crate::operator::Operator;
use crate::{DEADLINE, NAMESPACE, NODES};

pub(crate) fn nodes_are_stamped_and_what_their_agents_say_is_summed_up(
    cluster: &mut Cluster,
) -> Result<()> {
    let _operator = Operator::start(cluster, "operator-1")?;
    cluster.put_profile("default", json!({}))?;
    for node in NODES {
        let proxy = cluster.wait_for_stamp(node, "default", "nftables")?;
        assert_eq!(proxy["metadata"]["ownerReferences"][0]["name"], node);
        assert_eq!(
            proxy["metadata"]["labels"],
            json!({"signpost.dev/node": node, "signpost.dev/profile": "default"})
        );
    }
    let selected = [
        "get",
        "nodeproxies",
        "--field-selector=spec.profileName=default",
        "--output=name",
    ];
    assert_eq!(cluster.control_plane.kubectl(&selected)?.lines().count(), 3);
    cluster.wait_for_condition("default", "Ready", "False/NodesNotReady")?;

    for node in NODES {
        cluster.report_ready(node)?;
    }
    let profile = cluster.wait_for_condition("default", "Ready", "True/AllNodesProgrammed")?;
    let status = &profile["status"];
    for count in ["matchedNodes", "updatedNodes", "readyNodes"] {
        assert_eq!(status[count], 3, "{count}");
    }
    // The nodes reported 4 ms; a profile rounds up.
    assert_eq!(
        (&status["degradedNodes"], &status["syncLatency"]["p99"]),
        (&json!(0), &json!("5ms"))
    );
    assert_eq!(status["currentHash"], status["targetHash"]);
    assert_eq!(condition(&profile, "Progressing"), "False/Settled");

    // T4: a change of the mode proceeds node by node, and unsupported settings are reported in the
    // status.
    cluster.put_profile("default", json!({"mode": "ipvs"}))?;
    let mut waiting = NODES.to_vec();
    while let Some(node) = waiting.first().copied() {
        cluster.wait_for_stamp(node, "default", "ipvs")?;
        for other in &waiting[1..] {
            let proxy = cluster
                .get("nodeproxy", other)?
                .context("it was given something")?;
            assert_eq!(
                proxy["spec"]["config"]["mode"], "nftables",
                "one node at a time"
            );
        }
        cluster.report_ready(node)?;
        waiting.remove(0);
    }
    let profile =
        cluster.wait_for_condition("default", "FeaturesHonoured", "False/ModeNotHonoured")?;
    assert!(
        message(&profile, "FeaturesHonoured").contains("ipvs"),
        "{}",
        message(&profile, "FeaturesHonoured")
    );
    let proxy = cluster
        .get("nodeproxy", "n1")?
        .context("it was given something")?;
    assert_eq!(
        (&proxy["spec"]["config"]["mode"], &proxy["status"]["mode"]),
        (&json!("ipvs"), &json!("nftables"))
    );

    cluster.control_plane.kubectl(&["delete", "node", "n3"])?;
    wait_for(
        "the configuration of a deleted node to go",
        DEADLINE,
        || Ok(cluster.get("nodeproxy", "n3")?.is_none().then_some(())),
    )?;
    cluster
        .control_plane
        .kubectl(&["delete", "proxyprofile", "default"])?;
    wait_for(
        "the configuration of nodes without a profile to go",
        DEADLINE,
        || Ok(cluster.get("nodeproxy", "n1")?.is_none().then_some(())),
    )
}

/// The operator reads the DaemonSet with the permissions of its manifests.
pub(crate) fn t186_nodes_without_a_pod_of_the_agents_daemon_set_are_left_out_and_named(
    cluster: &mut Cluster,
) -> Result<()> {
    let labels =
        json!({"app.kubernetes.io/name": "signpost", "app.kubernetes.io/component": "agent"});
    let daemon_set = |tolerations| {
        let container = json!({"name": "agent", "image": "none"});
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "signpost-agent", "namespace": NAMESPACE, "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "tolerations": tolerations},
            }},
        })
    };
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n3"},
        "spec": {"taints": [{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]},
    });
    cluster.control_plane.apply(&node.to_string())?;
    cluster
        .control_plane
        .apply(&daemon_set(json!([])).to_string())?;
    let _operator = Operator::start(cluster, "operator-1")?;
    cluster.put_profile("default", json!({}))?;
    for node in ["n1", "n2"] {
        cluster.wait_for_stamp(node, "default", "nftables")?;
        cluster.report_ready(node)?;
    }
    let profile = cluster.wait_for_condition("default", "Ready", "True/AllNodesProgrammed")?;
    let ready = message(&profile, "Ready");
    let expected = "n3 (DaemonSet signpost-agent does not tolerate taint dedicated=db:NoSchedule)";
    assert!(ready.ends_with(expected), "{ready}");
    assert_eq!(cluster.get("nodeproxy", "n3")?, None);

    let all = daemon_set(json!([{"operator": "Exists"}]));
    cluster.control_plane.apply(&all.to_string())?;
    cluster
        .wait_for_stamp("n3", "default", "nftables")
        .map(drop)
}

/// As after an upgrade of the program without that of its role.
pub(crate) fn t186_an_operator_that_may_not_read_daemon_sets_works_without_them(
    cluster: &mut Cluster,
) -> Result<()> {
    let without_rule = json!([
        {"op": "test", "path": "/rules/2/resources", "value": ["daemonsets"]},
        {"op": "remove", "path": "/rules/2"},
    ]);
    let namespace = format!("--namespace={NAMESPACE}");
    let patch = format!("--patch={without_rule}");
    cluster.control_plane.kubectl(&[
        "patch",
        "role",
        "signpost-operator",
        &namespace,
        "--type=json",
        &patch,
    ])?;
    let delete = [
        "delete",
        "rolebinding",
        "signpost-operator-kube-proxy",
        "--namespace=kube-system",
    ];
    cluster.control_plane.kubectl(&delete)?;
    let _operator = Operator::start_with_ready_nodes(cluster)?;
    // Failure story T294.
    cluster.put_profile("default", json!({"handover": "Takeover"}))?;
    cluster.wait_until_it_waits_for("the operator may not read DaemonSet kube-system/kube-proxy")
}

pub(crate) fn t5_of_two_profiles_one_decides_and_both_say_so(cluster: &mut Cluster) -> Result<()> {
    let operator = Operator::start(cluster, "operator-1")?;
    cluster.put_profile(
        "a",
        json!({"priority": 100, "nodeSelector": {"matchLabels": {"role": "edge"}}}),
    )?;
    cluster.put_profile("b", json!({"priority": 100}))?;
    for node in NODES {
        cluster.wait_for_stamp(node, "b", "nftables")?;
        cluster.report_ready(node)?;
    }
    cluster.wait_for_condition("b", "Ready", "True/AllNodesProgrammed")?;
    // With the same priority the older profile decides. Profiles created within the same second are
    // ordered by name.
    let first = |name: &str| -> Result<String> {
        let profile = cluster
            .get("proxyprofile", name)?
            .context("the profile is there")?;
        Ok(format!(
            "{} {name}",
            profile["metadata"]["creationTimestamp"]
        ))
    };
    let winner = if first("a")? < first("b")? { "a" } else { "b" };
    let loser = if winner == "a" { "b" } else { "a" };
    cluster
        .control_plane
        .kubectl(&["label", "node", "n1", "role=edge"])?;
    cluster.wait_for_stamp("n1", winner, "nftables")?;
    cluster.report_ready("n1")?;
    let profile = cluster.wait_for_condition(loser, "Conflict", "True/SamePriority")?;
    let reported = format!("same priority, same nodes: {winner} applies to 1 node");
    assert_eq!(message(&profile, "Conflict"), reported);
    cluster.wait_for_condition(winner, "Conflict", "True/SamePriority")?;
    // A status is written at most once a second: the report of n1 may have to wait.
    cluster.wait_for_condition(winner, "Ready", "True/AllNodesProgrammed")?;
    operator.stop()?;

    // The result must not depend on which operator evaluates it, and when.
    let before = cluster.versions()?;
    let _operator = Operator::start(cluster, "operator-2")?;
    cluster.wait_for_holder("operator-2")?;
    cluster.put_profile("c", json!({"priority": 9000}))?;
    cluster.wait_for_condition("c", "Conflict", "False/Overridden")?;
    let others = |versions: &str| {
        versions
            .lines()
            .filter(|line| !line.contains("/c "))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(others(&before), others(&cluster.versions()?));
    Ok(())
}

pub(crate) fn a_profile_stored_without_validation_is_named_and_disturbs_no_other(
    cluster: &mut Cluster,
) -> Result<()> {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let patch = json!([{
        "op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec", "value": open,
    }]);
    let name = "proxyprofiles.signpost.dev";
    cluster.control_plane.kubectl(&[
        "patch",
        "crd",
        name,
        "--type=json",
        "--patch",
        &patch.to_string(),
    ])?;
    let unreadable = json!({"mode": "teleport", "priority": 1});
    let invalid = json!({"minSyncPeriod": "1h", "priority": 2});
    wait_for("the API server to accept anything", DEADLINE, || {
        Ok(cluster.put_profile("unreadable", unreadable.clone()).ok())
    })?;
    cluster.put_profile("invalid", invalid)?;
    cluster.put_profile("default", json!({}))?;
    let _operator = Operator::start(cluster, "operator-1")?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "nftables")?;
        cluster.report_ready(node)?;
    }
    cluster.wait_for_condition("default", "Ready", "True/AllNodesProgrammed")?;
    let profile = cluster.wait_for_condition("unreadable", "Accepted", "False/Unreadable")?;
    assert!(
        message(&profile, "Accepted").starts_with("spec.mode: "),
        "{}",
        message(&profile, "Accepted")
    );
    let profile = cluster.wait_for_condition("invalid", "Accepted", "False/InvalidField")?;
    assert!(
        message(&profile, "Accepted").starts_with("spec.minSyncPeriod: "),
        "{}",
        message(&profile, "Accepted")
    );
    Ok(())
}

/// Failure story T220. The definition is of an older version than the operator: it has no history.
pub(crate) fn t220_with_an_older_definition_the_rest_of_the_status_is_written(
    cluster: &mut Cluster,
) -> Result<()> {
    let _operator = Operator::start(cluster, "operator-1")?;
    cluster.put_profile("default", json!({}))?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "nftables")?;
        cluster.report_ready(node)?;
    }
    cluster.wait_for_condition("default", "Progressing", "False/Settled")?;
    let history = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/history";
    let patch = json!([{"op": "remove", "path": history}]).to_string();
    cluster.control_plane.kubectl(&[
        "patch",
        "crd",
        "proxyprofiles.signpost.dev",
        "--type=json",
        &format!("--patch={patch}"),
    ])?;
    wait_for("the definition to be in force", DEADLINE, || {
        let profile = cluster.get("proxyprofile", "default")?;
        let profile = profile.context("it is there")?;
        Ok(profile["status"]["history"].is_null().then_some(()))
    })?;
    cluster.put_profile("default", json!({"mode": "iptables"}))?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "iptables")?;
        cluster.report_ready(node)?;
    }
    let profile = cluster.wait_for_condition("default", "Ready", "True/AllNodesProgrammed")?;
    assert_eq!(profile["status"]["rollout"]["generation"], 2);
    assert!(profile["status"]["history"].is_null(), "{profile}");
    Ok(())
}
