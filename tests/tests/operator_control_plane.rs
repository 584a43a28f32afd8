//! The operator as a program, with the permissions of its manifests, against a real API server.
//!
//! Nodes are made by hand, and the tests report for their agents, each with the token of its own
//! node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use crds::node_proxy::NodeProxy;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests::binaries;
use tests::control_plane::{ControlPlane, Options, ServiceAccount};
use tests::deadline::wait_for;
use tests::network::Process;

/// Everything happens within a second or two; the rest is for a machine with other work.
const DEADLINE: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "signpost-system";

const MANIFESTS: [&str; 6] = [
    "deploy/namespace.yaml",
    "crds/generated/proxyprofiles.yaml",
    "crds/generated/nodeproxies.yaml",
    "deploy/rbac-operator.yaml",
    "deploy/rbac-agent.yaml",
    "deploy/admission-policy.yaml",
];

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Runs a program until our end of its input is closed, however we end, says which process it is,
/// and says how it ended.
const LEASH: &str = r#"
exec 3<&0 </dev/null
"$@" 3<&- >&2 &
program=$!
echo "$program"
{ read -r _ <&3; kill -KILL "$program"; } 2>/dev/null &
guard=$!
exec 3<&-
wait "$program" 2>/dev/null
echo "ended $?"
kill -KILL "$guard" 2>/dev/null
"#;

/// A cluster with everything applied and three nodes.
struct Cluster {
    control_plane: ControlPlane,
    operator: PathBuf,
}

/// A running operator.
struct Operator {
    leash: Process,
    pid: Pid,
}

// === impl Cluster ===

impl Cluster {
    fn start() -> Result<Cluster> {
        let operator = binaries::find("signpost-operator")?;
        let control_plane = ControlPlane::start(Options::default())?;
        for file in MANIFESTS {
            control_plane.apply(&manifest(file)?)?;
        }
        let established = "--for=condition=Established";
        control_plane.kubectl(&["wait", "crd", "--all", established, "--timeout=60s"])?;
        for node in NODES {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
            control_plane.apply(&node.to_string())?;
        }
        Ok(Cluster {
            control_plane,
            operator,
        })
    }

    fn start_operator(&self, identity: &str) -> Result<Operator> {
        let account = ServiceAccount::new(NAMESPACE, "signpost-operator");
        let kubeconfig = self.control_plane.kubeconfig_of_account(&account)?;
        let mut command = Command::new("sh");
        command.args(["-c", LEASH, "sh"]).arg(&self.operator);
        command.args([
            "run",
            "--metrics-address=127.0.0.1:0",
            "--log=info,kube=error",
        ]);
        command
            .arg(format!("--identity={identity}"))
            .arg("--kubeconfig")
            .arg(kubeconfig);
        let mut leash = Process::start(identity, command)?;
        let pid = leash
            .next_line(DEADLINE)?
            .parse()
            .ok()
            .and_then(Pid::from_raw);
        Ok(Operator {
            leash,
            pid: pid.context("a process id")?,
        })
    }

    fn put_profile(&self, name: &str, spec: Value) -> Result<()> {
        let kind = "ProxyProfile";
        let profile = json!({
            "apiVersion": "signpost.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        self.control_plane.apply(&profile.to_string()).map(drop)
    }

    /// The object, or nothing when there is none.
    fn get(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        let text = self.control_plane.kubectl(&[
            "get",
            kind,
            name,
            "--ignore-not-found",
            "--output=json",
        ])?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text)
            .map(Some)
            .context("kubectl prints JSON")
    }

    /// The NodeProxy of `node` once it has this profile and mode.
    fn wait_for_stamp(&self, node: &str, profile: &str, mode: &str) -> Result<Value> {
        wait_for(
            &format!("node {node} to be given {profile} with {mode}"),
            DEADLINE,
            || {
                let proxy = self.get("nodeproxy", node)?;
                Ok(proxy.filter(|proxy| {
                    proxy["spec"]["profileName"] == profile
                        && proxy["spec"]["config"]["mode"] == mode
                }))
            },
        )
    }

    /// The status of a profile once it has this condition, given as `True/Reason`.
    fn wait_for_condition(&self, profile: &str, kind: &str, wanted: &str) -> Result<Value> {
        let mut seen = Value::Null;
        let found = wait_for(
            &format!("profile {profile} to be {kind} {wanted}"),
            DEADLINE,
            || {
                seen = self
                    .get("proxyprofile", profile)?
                    .context("the profile is there")?;
                Ok((condition(&seen, kind) == wanted).then(|| seen.clone()))
            },
        );
        found.with_context(|| format!("its last status: {:#}", seen["status"]))
    }

    /// Writes the status of `reported` as the agent of `node` would.
    fn report_as(&self, node: Option<&str>, reported: &str, status: &Value) -> Result<()> {
        let mut account = ServiceAccount::new(NAMESPACE, "signpost-agent");
        if let Some(node) = node {
            account = account.on_node(node);
        }
        let kubeconfig = self.control_plane.kubeconfig_of_account(&account)?;
        // Not with kubectl: it reads the subresource before, which agents may not.
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(patch_status(&kubeconfig, reported, status))
    }

    /// The agent of `node` has programmed what it was given, with nftables, which is all it can do.
    fn report_ready(&self, node: &str) -> Result<()> {
        let proxy = self
            .get("nodeproxy", node)?
            .context("the node was given something")?;
        let (generation, mode) = (
            &proxy["metadata"]["generation"],
            &proxy["spec"]["config"]["mode"],
        );
        let honoured = if mode == "nftables" {
            (
                "True",
                "AllHonoured",
                "everything asked for is carried out".to_owned(),
            )
        } else {
            (
                "False",
                "ModeNotHonoured",
                format!("mode {mode} is not available yet"),
            )
        };
        let quantiles =
            json!({"p50Microseconds": 900, "p99Microseconds": 4000, "maxMicroseconds": 5000});
        let condition = |kind: &str, (status, reason, message): (&str, &str, String)| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        self.report_as(
            Some(node),
            node,
            &json!({
                "observedGeneration": generation,
                "appliedHash": proxy["spec"]["configHash"],
                "mode": "nftables",
                "syncLatency": {
                    "window": "5m", "decode": quantiles, "compile": quantiles, "commit": quantiles,
                    "total": quantiles, "p99": "4ms",
                },
                "counts": {"services": 3, "endpoints": 5, "elements": 40},
                "conditions": [
                    condition("Ready", ("True", "Programmed", "3 services".to_owned())),
                    condition("FeaturesHonoured", honoured),
                ],
            }),
        )
    }

    /// The versions of everything the operator writes.
    fn versions(&self) -> Result<String> {
        let version = "jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}{\"\\n\"}{end}";
        let output = format!("--output={version}");
        self.control_plane
            .kubectl(&["get", "proxyprofiles,nodeproxies", &output])
    }

    fn holder(&self) -> Result<String> {
        let path = "--output=jsonpath={.spec.holderIdentity}";
        let namespace = format!("--namespace={NAMESPACE}");
        self.control_plane.kubectl(&[
            "get",
            "lease",
            "signpost-operator",
            "--ignore-not-found",
            &namespace,
            path,
        ])
    }

    fn wait_for_holder(&self, wanted: &str) -> Result<()> {
        wait_for(&format!("{wanted} to hold the lease"), DEADLINE, || {
            Ok((self.holder()? == wanted).then_some(()))
        })
    }
}

// === impl Operator ===

impl Operator {
    /// Asks it to end, and waits until it has, with success.
    fn stop(mut self) -> Result<()> {
        kill_process(self.pid, Signal::TERM)?;
        self.leash.wait_for_line("ended 0", DEADLINE)
    }

    /// Ends it as a crash does, and waits until it has.
    fn crash(mut self) -> Result<()> {
        kill_process(self.pid, Signal::KILL)?;
        self.leash.wait_for_line("ended 137", DEADLINE)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // By its input, so that no other process that has come by the number since is hit.
        drop(self.leash.write_line("end"));
        drop(self.leash.next_line(DEADLINE));
    }
}

async fn patch_status(kubeconfig: &Path, node: &str, status: &Value) -> Result<()> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let resource = ApiResource::erase::<NodeProxy>(&());
    let proxies = Api::<DynamicObject>::all_with(Client::try_from(config)?, &resource);
    let patch = Patch::Merge(json!({"status": status}));
    proxies
        .patch_status(node, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

fn manifest(file: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    fs::read_to_string(&path).with_context(|| format!("failed to read {file}"))
}

fn condition(profile: &Value, kind: &str) -> String {
    let conditions = profile["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind);
    found.map_or_else(String::new, |condition| {
        format!(
            "{}/{}",
            condition["status"].as_str().unwrap_or("?"),
            condition["reason"].as_str().unwrap_or("?")
        )
    })
}

fn message(profile: &Value, kind: &str) -> String {
    let conditions = profile["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind);
    found
        .and_then(|condition| condition["message"].as_str())
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn nodes_are_stamped_and_what_their_agents_say_is_summed_up() -> Result<()> {
    let cluster = Cluster::start()?;
    let _operator = cluster.start_operator("operator-1")?;
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
    assert_eq!(
        (&status["degradedNodes"], &status["syncLatency"]["p99"]),
        (&json!(0), &json!("4ms"))
    );
    assert_eq!(status["currentHash"], status["targetHash"]);
    assert_eq!(condition(&profile, "Progressing"), "False/Settled");

    // T4: another mode goes node by node, and what is not honoured is said where people look.
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
        "the configuration of nodes nobody decides for to go",
        DEADLINE,
        || Ok(cluster.get("nodeproxy", "n1")?.is_none().then_some(())),
    )
}

#[test]
fn t5_of_two_profiles_one_decides_and_both_say_so() -> Result<()> {
    let cluster = Cluster::start()?;
    let operator = cluster.start_operator("operator-1")?;
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
    // Same priority: the older decides. Made in one second, they would be ordered by name.
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
    let told = format!("same priority, same nodes: {winner} decides for 1 node");
    assert_eq!(message(&profile, "Conflict"), told);
    cluster.wait_for_condition(winner, "Conflict", "True/SamePriority")?;
    operator.stop()?;

    // It does not matter who looks, and when.
    let before = cluster.versions()?;
    let _operator = cluster.start_operator("operator-2")?;
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

#[test]
fn t6_an_operator_that_comes_back_does_nothing_twice() -> Result<()> {
    let cluster = Cluster::start()?;
    let operator = cluster.start_operator("operator-1")?;
    let spare = cluster.start_operator("operator-2")?;
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

    // Crashed, it cannot give the lease back: the other one waits until it is over.
    acting.crash()?;
    cluster.wait_for_holder(standby_name)?;
    // That it has looked at everything shows in what it does about a new profile.
    cluster.put_profile("other", json!({"priority": 9000}))?;
    cluster.wait_for_condition("other", "Conflict", "False/Overridden")?;
    cluster
        .control_plane
        .kubectl(&["delete", "proxyprofile", "other"])?;
    assert_eq!(before, cluster.versions()?);

    // While none runs, a profile changes; who comes goes on in waves.
    standby.stop()?;
    assert_eq!(cluster.holder()?, "", "it was given back");
    cluster.put_profile("default", json!({"syncPeriod": "1m"}))?;
    let _operator = cluster.start_operator("operator-3")?;
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

#[test]
fn a_profile_stored_without_validation_is_named_and_disturbs_no_other() -> Result<()> {
    let cluster = Cluster::start()?;
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
    let _operator = cluster.start_operator("operator-1")?;
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

#[test]
fn a_change_the_canary_does_not_survive_goes_back() -> Result<()> {
    let cluster = Cluster::start()?;
    let operator = cluster.start_operator("operator-1")?;
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
    let _operator = cluster.start_operator("operator-2")?;
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

#[test]
fn every_manifest_is_one_the_api_server_takes() -> Result<()> {
    let cluster = Cluster::start()?;
    for file in MANIFESTS
        .into_iter()
        .chain(["deploy/operator.yaml", "deploy/agent.yaml"])
    {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
        let from = format!("--filename={}", path.display());
        let arguments = ["apply", "--dry-run=server", "--validate=strict", &from];
        cluster
            .control_plane
            .kubectl(&arguments)
            .with_context(|| file.to_owned())?;
    }
    Ok(())
}

#[test]
fn an_operator_that_loses_the_lease_ends() -> Result<()> {
    let cluster = Cluster::start()?;
    let mut operator = cluster.start_operator("operator-1")?;
    cluster.wait_for_holder("operator-1")?;
    let namespace = format!("--namespace={NAMESPACE}");
    let patch = json!({"spec": {"holderIdentity": "somebody"}}).to_string();
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
    operator.leash.wait_for_line("ended 1", DEADLINE)?;
    assert_eq!(
        cluster.holder()?,
        "somebody",
        "what is not ours is not given back"
    );
    Ok(())
}

#[test]
fn an_agent_writes_about_its_own_node_alone() -> Result<()> {
    let cluster = Cluster::start()?;
    let _operator = cluster.start_operator("operator-1")?;
    cluster.put_profile("default", json!({}))?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "nftables")?;
    }
    let lie = json!({"kernelVersion": "9.9"});
    // The API server takes a moment to know the policy.
    let refusal = wait_for("the policy to be in force", DEADLINE, || {
        Ok(cluster
            .report_as(Some("n1"), "n2", &lie)
            .err()
            .map(|error| format!("{error:#}")))
    })?;
    assert!(
        refusal.contains("the agent of node n1 may not write NodeProxy n2"),
        "{refusal}"
    );
    let refusal = cluster
        .report_as(None, "n1", &lie)
        .expect_err("the token is for no node");
    assert!(
        refusal
            .to_string()
            .contains("must say which node it is for"),
        "{refusal:#}"
    );
    cluster.report_as(Some("n2"), "n2", &json!({"kernelVersion": "6.1"}))?;

    let kubeconfig = cluster
        .control_plane
        .kubeconfig_of_account(&ServiceAccount::new(NAMESPACE, "signpost-agent").on_node("n2"))?;
    let patch = json!({"spec": {"profileName": "mine"}}).to_string();
    let mut command = cluster.control_plane.kubectl_command(&kubeconfig);
    let output = command
        .args([
            "patch",
            "nodeproxy",
            "n2",
            "--type=merge",
            "--patch",
            &patch,
        ])
        .output()?;
    let refusal = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        refusal.contains("cannot patch resource \"nodeproxies\""),
        "{refusal}"
    );
    Ok(())
}
