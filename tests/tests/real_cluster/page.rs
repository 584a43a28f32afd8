//! The page of `kubectl signpost dashboard`, of agents that run and a kernel that another program changes.

use anyhow::{Context, Result, ensure};
use crds::condition::reason::advice;
use dataplane::Family;
use serde_json::{Value, json};
use tests::browser::Browser;
use tests::deadline::wait_for;
use tests::network::Process;

use crate::shop::{STEADY, client};
use crate::stage::{DEADLINE, NODES, Stage};

/// A Service that asks for the cluster IP of another one, which no agent gives it.
const CLAIMANT: &str = "claimant";

/// What removes all Services from the rules of a node.
pub(crate) const FLUSH: [&str; 5] = ["flush", "map", "ip", "signpost", "services"];

/// In each view what is there before, and what agents say once Services are refused and rules are removed.
pub(crate) fn faults(stage: &mut Stage) -> Result<()> {
    let network = stage.cluster.lan().control().clone();
    let mut command = stage.plugin()?;
    command.arg("dashboard");
    let mut dashboard = Process::start("kubectl-signpost", command)?;
    let address = dashboard.next_line(DEADLINE)?;
    let browser = Browser::start(Some(&network))?;
    browser.open(&address)?;

    browser.wait_for_text("#connection", &["live"])?;
    browser.wait_for_text("#rollouts article", &["ProxyProfile default: healthy"])?;
    go_to(&browser, "nodes")?;
    let healthy = ".group[data-group='healthy'] .cell";
    browser.wait_for_count(healthy, NODES.into())?;

    // Asked of the agents themselves, in their Pods.
    go_to(&browser, &format!("service/default%2F{}", STEADY.name))?;
    let agreement = format!("no differences on {NODES} nodes");
    browser.wait_for_text("#service-answer", &[&agreement])?;
    follow(&browser)?;
    let expected = ["It goes where it should.", "node-1", "dnat to "];
    browser.wait_for_text("#packet-answer", &expected)?;

    stage.apply(&claimant()?)?;
    let shown = contest(stage, &browser);
    stage.kubectl(&["delete", "service", CLAIMANT])?;
    shown?;
    // Once nothing more is changed, the agent repairs it.
    go_to(&browser, "service")?;
    wait_for("the rules to be repaired", DEADLINE, || {
        ask(&browser, "service")?;
        let answer = browser.wait_for_text("#service-answer", &["differences"])?;
        Ok(answer.contains(&agreement).then_some(()))
    })?;
    let errors = browser.errors()?;
    ensure!(errors.is_empty(), "errors in the browser: {errors:#?}");
    Ok(())
}

/// Shows a view as its link does, and waits until it is there.
fn go_to(browser: &Browser, view: &str) -> Result<()> {
    browser.evaluate(&format!("location.hash = {}", json!(view)))?;
    let name = view.split('/').next().unwrap_or(view);
    browser.wait_for_count(&format!("section#{name}:not([hidden])"), 1)
}

/// Asks for the way of a packet from a Pod of the first node to a Service.
fn follow(browser: &Browser) -> Result<()> {
    go_to(browser, "packet")?;
    for (field, text) in [
        ("from", format!("pod/{}", client(1))),
        ("to", format!("svc/{}:tcp", STEADY.name)),
    ] {
        let field = format!("document.querySelector('#packet-question [name={field}]')");
        browser.evaluate(&format!("void ({field}.value = {})", json!(text)))?;
    }
    ask(browser, "packet")
}

/// Presses the button of a view's question.
fn ask(browser: &Browser, view: &str) -> Result<()> {
    let form = format!("document.getElementById('{view}-question')");
    browser
        .evaluate(&format!("void {form}.requestSubmit()"))
        .map(drop)
}

/// A Service that asks for the cluster IP of another one.
fn claimant() -> Result<Value> {
    let address = STEADY.cluster_address(Family::Ipv4)?.ip();
    Ok(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": CLAIMANT},
        "spec": {"externalIPs": [address], "ports": [{"port": 8443}]},
    }))
}

/// Removes rules of the second node again and again, until its agent holds its repairs back. It says so at once, and what
/// it rejects with it.
fn contest(stage: &Stage, browser: &Browser) -> Result<()> {
    let network = stage.cluster.node(2)?.namespace();
    let held_back = "the page to show that repairs are held back";
    go_to(browser, "drift")?;
    wait_for(held_back, DEADLINE, || {
        network.nft(&FLUSH)?;
        let drift = browser.text("#drift article")?;
        Ok(drift.contains("keeps changing them").then_some(()))
    })?;
    let advice = advice("RepairsHeldBack").context("advice")?;
    browser.wait_for_text("#drift article", &["nft", "node-2", advice])?;
    go_to(browser, "rejections")?;
    let object = format!("Service default/{CLAIMANT}");
    let expected = [object.as_str(), "spec.externalIPs", "node-2"];
    browser.wait_for_text("#rejections", &expected)?;

    go_to(browser, "service")?;
    wait_for("the page to show what node-2 lacks", DEADLINE, || {
        network.nft(&FLUSH)?;
        ask(browser, "service")?;
        let answer = browser.wait_for_text("#service-answer", &["differences"])?;
        let is_shown = ["1 node with differences", "node-2", "! "];
        let is_shown = is_shown.iter().all(|expected| answer.contains(expected));
        Ok(is_shown.then_some(()))
    })
}
