//! The page of `kubectl signpost dashboard` while agents fail a rollout.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use crds::condition::reason::{CONNECTION_FAILED, HALTED};
use serde_json::json;
use tests::binaries;
use tests::browser::Browser;
use tests::cluster::{Cluster, DEADLINE, NODES};
use tests::control_plane::ADMINISTRATOR;
use tests::deadline::wait_for;
use tests::network::{Namespace, Process};

use crate::foreign_rules::block_api_service;

/// Failure story T232: new connections through the rules of a change fail on the first node that
/// gets it. The page says so, and the command that it shows takes the change back.
pub(crate) fn failed_rollout(cluster: &mut Cluster) -> Result<()> {
    let network = cluster.topology().other("control")?.clone();
    let plugin = binaries::find("kubectl-signpost")?;
    let mut command = network.command(&plugin);
    command
        .arg("dashboard")
        .arg("--kubeconfig")
        .arg(cluster.control_plane().kubeconfig(ADMINISTRATOR)?)
        .stderr(Stdio::null());
    let mut dashboard = Process::start("kubectl-signpost", command)?;
    let address = dashboard.next_line(DEADLINE)?;
    let browser = Browser::start(Some(&network))?;
    browser.open(&address)?;
    browser.wait_for_text("#rollouts article", &["ProxyProfile default: healthy"])?;

    let nodes = NODES.map(|number| cluster.topology().node(number).cloned());
    let nodes: Vec<Namespace> = nodes.into_iter().collect::<Result<_>>()?;
    let mut each = nodes.iter();
    let blocked = each.try_for_each(|node| block_api_service(cluster, node));
    let failed = blocked.and_then(|()| fail(cluster, &browser));
    for node in &nodes {
        // A node may be without it, if a step before has failed.
        let _ = node.nft(&["delete table ip blocker"]);
    }
    let typed = failed?;

    let words: Vec<&str> = typed.split_whitespace().collect();
    ensure!(
        words.starts_with(&["kubectl", "signpost", "rollout", "undo"]),
        "the page shows {typed:?}"
    );
    let undone = network.command(&plugin).args(&words[2..]).output();
    let undone = undone.context("failed to run kubectl-signpost")?;
    ensure!(undone.status.success(), "{typed}: {undone:?}");
    wait_for("the rollout to go on", DEADLINE, || {
        let text = browser.text("#rollouts article")?;
        Ok((!text.contains("It has stopped")).then_some(()))
    })?;
    let errors = browser.errors()?;
    ensure!(errors.is_empty(), "errors in the browser: {errors:#?}");
    Ok(())
}

/// Changes the profile, and returns the first command that the page shows once the change has
/// failed.
fn fail(cluster: &Cluster, browser: &Browser) -> Result<String> {
    let rollout = json!({"minReady": "30s", "progressDeadline": "10s", "onFailure": "Halt"});
    cluster.patch_profile("default", &json!({"syncPeriod": "37s", "rollout": rollout}))?;
    let text = browser.wait_for_text(
        "#rollouts article",
        &[
            "ProxyProfile default: unhealthy",
            "It has stopped: Halted: 1 of 3 nodes failed: node-",
            CONNECTION_FAILED.name,
            CONNECTION_FAILED.advice,
            HALTED.advice,
        ],
    )?;
    println!("{text}");
    browser.text("#rollouts .commands code")
}
