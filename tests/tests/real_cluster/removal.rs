//! The removal: what `helm uninstall` leaves behind, and what is left after the documented cleanup.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use tests::deadline::wait_for;
use tests::real_cluster::Node;

use crate::shop::STEADY;
use crate::stage::{DEADLINE, NAMESPACE, PROMPTLY, Stage};

/// The kinds of objects that Signpost could leave behind, besides its own kinds.
const KINDS: &str = "all,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,\
    poddisruptionbudgets,validatingadmissionpolicies,validatingadmissionpolicybindings,leases,\
    customresourcedefinitions";
/// The ports of agents and operators, and of the test Services.
const PORTS: [&str; 7] = [
    "10249", "10256", "10261", "10262", "10263", "30080", "30081",
];

pub(crate) fn uninstalled(stage: &mut Stage) -> Result<()> {
    let before = observe_rules_of_others(stage)?;
    let connections = stage.connect()?;
    let namespace = format!("--namespace={NAMESPACE}");
    let said = stage
        .helm
        .run(&["uninstall", "signpost", &namespace, "--wait"])?;
    wait_for("the pods of Signpost to go", DEADLINE, || {
        let selector = "--selector=app.kubernetes.io/name=signpost";
        let left = stage.kubectl(&["get", "pods", &namespace, selector, "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })?;
    ensure!(
        said.contains("proxyprofiles.signpost.dev"),
        "kinds are kept, which it tells: {said}"
    );
    // Rules belong to a node, not to a Pod: existing connections continue, and new ones succeed.
    let servers = stage.observe_servers(STEADY)?;
    stage.wait_until_served(STEADY, &servers, PROMPTLY)?;
    connections.finish_unharmed()?;

    clean_up(stage)?;
    for node in stage.cluster.nodes() {
        ensure_clean(node)?;
    }
    let after = observe_rules_of_others(stage)?;
    ensure!(
        after == before,
        "rules of others were {before:#?} and are {after:#?}"
    );
    // The agents' Leases are deleted with the NodeProxies that own them, but not with their
    // definition: the garbage collector may have stopped watching the kind by then.
    stage.kubectl(&["delete", "nodeproxies", "--all"])?;
    stage.kubectl(&["delete", "lease", "signpost-operator", &namespace])?;
    let kinds = ["nodeproxies.signpost.dev", "proxyprofiles.signpost.dev"];
    let kept = kinds.map(|kind| format!("customresourcedefinition.apiextensions.k8s.io/{kind}"));
    let mut left = Vec::new();
    let all_but_kept = wait_for("all but the kinds to be gone", DEADLINE, || {
        left = observe_objects(stage)?;
        Ok((left == kept).then_some(()))
    });
    all_but_kept.with_context(|| format!("left in the API: {left:?}"))?;
    ensure!(
        stage
            .kubectl(&["get", "proxyprofiles", "--output=name"])?
            .contains("/default"),
        "the profile is kept"
    );

    stage.kubectl(&[&["delete", "crd"], &kinds[..]].concat())?;
    wait_for("nothing to be left in the API", DEADLINE, || {
        Ok(observe_objects(stage)?.is_empty().then_some(()))
    })
}

/// Runs the cleanup of the chart's README on every node.
fn clean_up(stage: &Stage) -> Result<()> {
    let image = format!(
        "--image=ghcr.io/signpost/signpost-agent:{}",
        env!("CARGO_PKG_VERSION")
    );
    for node in stage.cluster.nodes() {
        let node = format!("node/{}", node.name());
        stage.kubectl(&[
            "debug",
            &node,
            "--profile=sysadmin",
            &image,
            "--",
            "signpost-agent",
            "cleanup",
            "--state=/host/var/lib/signpost",
            "--xtables-lock=/host/run/xtables.lock",
        ])?;
    }
    let label = "--selector=app.kubernetes.io/managed-by=kubectl-debug";
    wait_for("the clean-up on every node", DEADLINE, || {
        let phases = [
            "get",
            "pods",
            label,
            "--output=jsonpath={.items[*].status.phase}",
        ];
        let phases = stage.kubectl(&phases)?;
        let ended = phases.split(' ').all(|phase| phase == "Succeeded");
        Ok(ended.then_some(()))
    })?;
    stage.kubectl(&["delete", "pods", label]).map(drop)
}

fn ensure_clean(node: &Node) -> Result<()> {
    let tables = node.namespace().nft(&["list", "tables"])?;
    ensure!(!tables.contains("signpost"), "{}: {tables}", node.name());
    let files = node.run(&["find", "/var/lib", "-maxdepth", "2", "-path", "*signpost*"])?;
    ensure!(files.is_empty(), "{}: {files}", node.name());
    let listeners = node.run(&[
        "ss",
        "--no-header",
        "--listening",
        "--numeric",
        "--tcp",
        "--udp",
    ])?;
    let mut ports = listeners
        .split_whitespace()
        .filter_map(|word| word.rsplit_once(':'));
    let own = ports.find(|(_, port)| PORTS.contains(port));
    ensure!(own.is_none(), "{}: {listeners}", node.name());
    Ok(())
}

/// Returns the names of Signpost's objects, recognized by label or name.
fn observe_objects(stage: &Stage) -> Result<Vec<String>> {
    let all = stage.kubectl(&["get", KINDS, "--all-namespaces", "--output=name"])?;
    let own = all.lines().filter(|name| name.contains("signpost"));
    Ok(own.map(str::to_owned).collect())
}

/// Returns all rules on each node except Signpost's, without counters.
fn observe_rules_of_others(stage: &Stage) -> Result<BTreeMap<String, String>> {
    let rules = |node: &Node| -> Result<(String, String)> {
        let all = node.namespace().nft(&["--stateless", "list", "ruleset"])?;
        let tables = all.split_inclusive("\n}\n");
        let others = tables.filter(|table| {
            !table
                .lines()
                .next()
                .is_some_and(|line| line.contains("signpost"))
        });
        Ok((node.name(), others.collect()))
    };
    let all = stage
        .cluster
        .nodes()
        .map(rules)
        .collect::<Result<BTreeMap<_, _>>>()?;
    let some = all.values().any(|rules| !rules.is_empty());
    some.then_some(all)
        .context("kubelets and plugins have rules of their own")
}
