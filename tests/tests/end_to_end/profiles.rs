//! Profiles: applied, edited, rejected, conflicting.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::condition::reason::{ALL_HONOURED, MODE_NOT_HONOURED, OVERRIDDEN, SAME_PRIORITY};
use crds::condition::{CONFLICT, FEATURES_HONOURED, Status};
use crds::profile::mode::Mode;
use crds::{NodeProxy, ProxyProfile};
use serde_json::json;
use tests::cluster::resources::{is_node_ready, is_ready, says};
use tests::cluster::shop::{Readiness, WEB};
use tests::cluster::{Cluster, DEADLINE, NODES};
use tests::network::Process;

/// How long the decision must stay stable.
const STABLE: Duration = Duration::from_secs(5);

const RIVAL: &str = "
apiVersion: signpost.dev/v1alpha1
kind: ProxyProfile
metadata: {name: rival}
spec: {priority: 500, syncPeriod: 31s, rollout: {minReady: 0s}}
";

/// The profile has been applied before every test; this checks what a user sees.
pub(crate) fn applied(cluster: &mut Cluster) -> Result<()> {
    // The initial objects are not a change. Latency exists only after the first change.
    cluster.set_readiness(WEB[1], Readiness::NotReady)?;
    cluster.set_readiness(WEB[1], Readiness::Ready)?;
    let profile = cluster.wait_for_profile("default", "a sync latency", DEADLINE, |profile| {
        profile
            .status
            .as_ref()
            .is_some_and(|status| status.sync_latency.is_some())
    })?;
    for kind in ["proxyprofiles", "nodeproxies"] {
        println!(
            "$ kubectl get {kind}\n{}",
            cluster.control_plane().kubectl(&["get", kind])?
        );
    }
    let table = cluster.control_plane().kubectl(&["get", "proxyprofiles"])?;
    let row = table.lines().find(|line| line.starts_with("default"));
    let row: Vec<&str> = row
        .context("the profile is listed")?
        .split_whitespace()
        .collect();
    let status = profile.status.context("it has a status")?;
    // NAME MODE PRIORITY NODES UPDATED READY-NODES DEGRADED-NODES AVAILABLE PROGRESSING READY REASON
    // SYNC-P99 AGE
    let expected = [
        "nftables", "500", "3", "3", "3", "0", "True", "False", "True",
    ];
    ensure!(row[1..10] == expected, "{table}");
    ensure!(
        row[11].ends_with('s'),
        "no latency, such as 5ms, in\n{table}"
    );
    ensure!(
        says(
            &status.conditions,
            FEATURES_HONOURED,
            Status::True,
            ALL_HONOURED
        ),
        "{status:#?}"
    );
    for program in ["operator", "agent-node-1", "agent-node-2", "agent-node-3"] {
        let log = cluster.observe_log(program)?;
        let denied = log
            .lines()
            .find(|line| line.to_lowercase().contains("forbidden"));
        ensure!(
            denied.is_none(),
            "the manifests lack a permission of {program}: {denied:?}"
        );
    }
    Ok(())
}

pub(crate) fn edited(cluster: &mut Cluster) -> Result<()> {
    let before = cluster.observe_node_proxies()?;
    let ids = cluster.agent_ids();
    let clients = cluster.start_clients(Duration::from_millis(10))?;
    let start = Instant::now();
    cluster.patch_profile(
        "default",
        &json!({"minSyncPeriod": "20ms", "masquerade": {"all": true}}),
    )?;
    let after = cluster.wait_for_node_proxies("the edit on every node", DEADLINE, |proxies| {
        proxies.values().all(|proxy| {
            is_node_ready(proxy)
                && proxy.spec.config.masquerade.all
                && proxy.spec.config.min_sync_period.duration() == Duration::from_millis(20)
        })
    })?;
    println!("    on {} nodes after {:.1?}", after.len(), start.elapsed());
    for (name, proxy) in &after {
        let generation = |proxy: &NodeProxy| proxy.metadata.generation.unwrap_or_default();
        let (now, then) = (generation(proxy), before.get(name).map_or(0, generation));
        ensure!(
            now == then + 1,
            "{name} was given {} configurations",
            now - then
        );
    }
    let profile = cluster.wait_until_ready(DEADLINE)?;
    let of_nodes: BTreeSet<i64> = after.values().map(|p| p.spec.profile_generation).collect();
    let of_profile = profile
        .metadata
        .generation
        .context("the API server counts")?;
    ensure!(
        of_nodes == [of_profile].into(),
        "the nodes have {of_nodes:?} of {of_profile}"
    );
    clients.finish_unharmed()?;
    ensure!(cluster.agent_ids() == ids, "agents were started again");
    cluster.ensure_agents_run()
}

pub(crate) fn refused(cluster: &mut Cluster) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/tests/bad-profiles");
    let mut all = String::new();
    let mut expected = Vec::new();
    for entry in fs::read_dir(&folder).context("failed to list the bad profiles")? {
        let file = entry?.path();
        let text = fs::read_to_string(&file)?;
        let message = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let message = message.with_context(|| format!("{} expects nothing", file.display()))?;
        let name = file
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        expected.push((name, message.to_owned()));
        all.push_str("---\n");
        all.push_str(&text);
    }
    ensure!(
        expected.len() > 10,
        "there are bad profiles in {}",
        folder.display()
    );
    let refusal = cluster.control_plane().apply(&all);
    let refusal = format!("{:#}", refusal.err().context("none of them was refused")?);
    for (name, message) in &expected {
        let (_, said) = refusal
            .split_once(&format!("{name:?} is invalid:"))
            .with_context(|| format!("{name} was not refused:\n{refusal}"))?;
        // Cut off the message about the next object.
        let said = said.split("\" is invalid:").next().unwrap_or_default();
        ensure!(
            said.contains(message.as_str()),
            "{name} was not refused with {message:?}: {said}"
        );
    }
    println!("    {} profiles refused", expected.len());
    let left = cluster
        .control_plane()
        .kubectl(&["get", "proxyprofiles", "--output=name"])?;
    ensure!(
        left.trim() == "proxyprofile.signpost.dev/default",
        "accepted: {left}"
    );
    Ok(())
}

pub(crate) fn another_mode(cluster: &mut Cluster) -> Result<()> {
    let clients = cluster.start_clients(Duration::from_millis(10))?;
    let ipvs = json!({"mode": "ipvs", "loadBalancer": {"scheduler": null}});
    cluster.patch_profile("default", &ipvs)?;
    let answered = |proxy: &NodeProxy| {
        is_node_ready(proxy)
            && proxy.spec.config.mode == Mode::Ipvs
            && proxy.status.as_ref().is_some_and(|status| {
                let reason = MODE_NOT_HONOURED;
                status.mode == Some(Mode::Nftables)
                    && says(&status.conditions, FEATURES_HONOURED, Status::False, reason)
            })
    };
    cluster.wait_for_node_proxies("every node to answer the mode", DEADLINE, |proxies| {
        proxies.len() == NODES.len() && proxies.values().all(answered)
    })?;
    cluster.wait_for_profile("default", "the profile to say so", DEADLINE, |profile| {
        profile.status.as_ref().is_some_and(|status| {
            says(
                &status.conditions,
                FEATURES_HONOURED,
                Status::False,
                MODE_NOT_HONOURED,
            )
        })
    })?;
    cluster.wait_until_ready(DEADLINE)?;
    clients.finish_unharmed()
}

pub(crate) fn mode_of_every_node(cluster: &mut Cluster) -> Result<()> {
    let clients = cluster.start_clients(Duration::from_millis(10))?;
    for (word, mode) in [("iptables", Mode::Iptables), ("nftables", Mode::Nftables)] {
        cluster.patch_profile("default", &json!({"mode": word}))?;
        let carried_out = |proxy: &NodeProxy| {
            let status = proxy.status.as_ref();
            is_node_ready(proxy) && status.is_some_and(|status| status.mode == Some(mode))
        };
        let what = format!("every node to forward by {word}");
        cluster.wait_for_node_proxies(&what, DEADLINE, |proxies| {
            proxies.len() == NODES.len() && proxies.values().all(carried_out)
        })?;
        cluster.wait_until_ready(DEADLINE)?;
    }
    clients.finish_unharmed()
}

pub(crate) fn rivals(cluster: &mut Cluster) -> Result<()> {
    let outcome = meet(cluster);
    let gone = cluster
        .control_plane()
        .kubectl(&["delete", "proxyprofile", "rival"]);
    outcome?;
    gone?;
    // The conflicting profile is gone.
    cluster.wait_until_ready(DEADLINE)?;
    wait_until_decided_by(cluster, "default")
}

fn meet(cluster: &Cluster) -> Result<()> {
    cluster.control_plane().apply(RIVAL)?;
    let clash = |profile: &ProxyProfile| conflict(profile, Status::True, "SamePriority");
    let rival = cluster.wait_for_profile("rival", "the loser to say so", DEADLINE, clash)?;
    ensure!(matched(&rival) == 0, "the younger decides: {rival:#?}");
    let winner = cluster.wait_for_profile("default", "the winner to say so", DEADLINE, clash)?;
    ensure!(
        matched(&winner) == 3,
        "the older does not decide: {winner:#?}"
    );
    let deciders = watch_deciders(cluster)?;
    ensure!(
        deciders == ["default".to_owned()].into(),
        "deciding in turn: {deciders:?}"
    );

    cluster.patch_profile("rival", &json!({"priority": 1}))?;
    wait_until_decided_by(cluster, "rival")?;
    cluster.wait_for_profile("rival", "the rival to be Ready", DEADLINE, |profile| {
        is_ready(profile) && matched(profile) == 3
    })?;
    cluster.wait_for_profile("default", "the loser to say so", DEADLINE, |profile| {
        conflict(profile, Status::False, "Overridden") && matched(profile) == 0
    })?;
    Ok(())
}

/// Whether a profile reports this about others that select the same nodes.
fn conflict(profile: &ProxyProfile, status: Status, reason: &str) -> bool {
    let reasons = [SAME_PRIORITY, OVERRIDDEN];
    let reason = reasons.into_iter().find(|known| known.name == reason);
    profile
        .status
        .as_ref()
        .zip(reason)
        .is_some_and(|(said, reason)| {
            said.observed_generation == profile.metadata.generation
                && says(&said.conditions, CONFLICT, status, reason)
        })
}

fn matched(profile: &ProxyProfile) -> u32 {
    profile
        .status
        .as_ref()
        .map_or(0, |status| status.matched_nodes)
}

fn wait_until_decided_by(cluster: &Cluster, profile: &str) -> Result<()> {
    let what = format!("{profile} to decide for every node");
    let decided = cluster.wait_for_node_proxies(&what, DEADLINE, |proxies| {
        proxies
            .values()
            .all(|proxy| proxy.spec.profile_name == profile && is_node_ready(proxy))
    });
    decided.map(drop)
}

/// Returns all profiles that decided for any node at any time during a period.
fn watch_deciders(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let kubeconfig = cluster.control_plane().kubeconfig("admin")?;
    let mut command = cluster.control_plane().kubectl_command(&kubeconfig);
    let column = "--output=custom-columns=:.spec.profileName";
    command.args(["get", "nodeproxies", "--watch", "--no-headers", column]);
    let mut watch = Process::start("kubectl get --watch", command)?;
    let mut deciders = BTreeSet::new();
    for _ in NODES {
        deciders.insert(watch.next_line(DEADLINE)?.trim().to_owned());
    }
    let end = Instant::now() + STABLE;
    // No further line is the best result.
    while let Ok(line) = watch.next_line(end.saturating_duration_since(Instant::now())) {
        deciders.insert(line.trim().to_owned());
    }
    ensure!(Instant::now() >= end, "kubectl has stopped watching");
    Ok(deciders)
}
