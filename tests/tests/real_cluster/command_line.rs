//! `kubectl signpost` as a new user runs it, from the check before the installation to an archive
//! for a report of a problem. Agents, rules and kubelets are real.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::deadline::wait_for;
use tests::sysdump::unpack;

use crate::first_hour::expect_as_documented;
use crate::page::FLUSH;
use crate::plugin::Ran;
use crate::shop::{STEADY, client};
use crate::stage::{DEADLINE, NAMESPACE, NODES, PROMPTLY, Stage};

/// A Service without endpoints.
const DESERTED: &str = "deserted";
/// A node port that no Service has.
const FREE_PORT: u16 = 31_999;
/// The sender of packets from outside the cluster.
const OUTSIDE: &str = "outside 203.0.113.9";
/// The value of a Secret, as it is stored and as it is.
const PRIVATE: [&str; 2] = ["b3BlbiBzZXNhbWU", "open sesame"];

/// Without Signpost.
pub(crate) fn before_the_installation(stage: &Stage) -> Result<()> {
    let checked = stage.signpost(0, &["check", "--pre"])?;
    expect(
        &checked.text,
        &[
            &format!("ok     {NODES} Linux nodes"),
            "ok     you may create",
        ],
    )?;
    expect_as_documented(&checked, "check --pre")?;
    let checked = stage.signpost(3, &["check"])?;
    let missing = [
        "fault  0 of 2 CustomResourceDefinitions are established",
        "next: install the chart",
    ];
    expect(&checked.text, &missing)?;
    let refused = stage.signpost(1, &["status"])?;
    expect(&refused.errors, &["next: ", "install Signpost"])
}

/// With Signpost, in the order in which a new user looks at things.
pub(crate) fn story(stage: &mut Stage) -> Result<()> {
    state(stage).context("state of profiles and nodes")?;
    rollout(stage).context("a rollout")?;
    service(stage).context("a Service")?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": DESERTED},
        "spec": {"selector": {"app": DESERTED}, "ports": [{"port": 80}]},
    });
    stage.apply(&service)?;
    let traced = packets(stage).context("packets");
    stage.kubectl(&["delete", "service", DESERTED])?;
    traced?;
    disagreement(stage).context("rules that another program changes")?;

    let private = ["Secret", "ConfigMap"].map(|kind| {
        let data = json!({"password": format!("{}=", PRIVATE[0])});
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "private", "namespace": NAMESPACE}, "data": data})
    });
    for object in &private {
        stage.apply(object)?;
    }
    let reported = report(stage).context("a report of a problem");
    let namespace = format!("--namespace={NAMESPACE}");
    stage.kubectl(&["delete", &namespace, "secret/private", "configmap/private"])?;
    reported
}

/// check, status, nodes, config.
fn state(stage: &Stage) -> Result<()> {
    let checked = stage.signpost(0, &["check"])?;
    let agents = format!("ok     an agent is ready on each of {NODES} Linux nodes");
    expect(&checked.text, &[&agents, "ok     2 ready operators"])?;
    expect_as_documented(&checked, "check")?;
    // What another test has done to a node may show for some seconds.
    let timeout = format!("--timeout={}s", DEADLINE.as_secs());
    let waited = stage.signpost(0, &["status", "--wait", &timeout])?;
    let nodes = format!("nodes    {NODES}: {NODES} updated, {NODES} ready, 0 degraded");
    expect(&waited.text, &["ProxyProfile default: healthy", &nodes])?;

    let status = parse(&stage.signpost(0, &["status", "--output=json"])?)?;
    let profile = &status["profiles"][0];
    let counts = json!({"matched": NODES, "updated": NODES, "ready": NODES, "degraded": 0});
    ensure!(
        status["health"] == "healthy"
            && status["nodesWithoutConfiguration"] == json!([])
            && profile["name"] == "default"
            && profile["mode"] == "nftables"
            && profile["nodes"] == counts,
        "{status:#}"
    );
    let yaml = stage.signpost(0, &["status", "default", "--output=yaml"])?;
    let yaml: Value = serde_saphyr::from_str(&yaml.text)?;
    ensure!(yaml["profiles"][0]["nodes"] == counts, "{yaml:#}");
    let wide = stage.signpost(0, &["status", "--output=wide"])?;
    expect(&wide.text, &["ProxyProfile default", "KERNEL", "node-1"])?;

    let text = stage.signpost(0, &["nodes"])?.text;
    let nodes = text.lines().filter(|line| line.starts_with("node-"));
    let programmed = nodes.filter(|line| line.contains("Programmed"));
    ensure!(programmed.count() == usize::from(NODES), "{text}");
    let listing = parse(&stage.signpost(0, &["nodes", "--output=json"])?)?;
    for number in 1..=NODES {
        let node = &listing["nodes"][usize::from(number - 1)];
        ensure!(
            node["name"] == format!("node-{number}")
                && node["ready"] == "True"
                && node["mode"] == "nftables"
                && node["services"].as_u64() > Some(0)
                && node["kernelVersion"].as_str() > Some(""),
            "{listing:#}"
        );
    }
    let text = stage.signpost(0, &["nodes", "--not-ready"])?.text;
    ensure!(text == "no nodes\n", "{text}");

    let effective =
        parse(&stage.signpost(0, &["config", "effective", "node-2", "--output=json"])?)?;
    ensure!(
        effective["profile"] == "default"
            && effective["applied"] == true
            && effective["config"]["mode"] == "nftables",
        "{effective:#}"
    );
    let same = stage.signpost(0, &["config", "diff", "default"])?;
    expect(&same.text, &["default changes nothing on any node"])
}

/// A change is followed to its end and taken back.
fn rollout(stage: &Stage) -> Result<()> {
    let timeout = format!("--timeout={}s", DEADLINE.as_secs());
    let follow = ["rollout", "status", "default", &timeout];
    let ended = format!("Settled, {NODES} of {NODES} nodes updated, {NODES} ready");
    stage.patch_profile(&json!({"spec": {"syncPeriod": "29s"}}).to_string())?;
    let followed = stage.signpost(0, &follow)?.text;
    expect(&followed, &[&ended])?;
    // No terminal, no control sequences.
    ensure!(!followed.contains('\u{1b}'), "{followed:?}");
    let history = stage.signpost(0, &["rollout", "history", "default"])?.text;
    let newest = history.lines().nth(1).unwrap_or_default();
    expect(newest, &["Settled", "syncPeriod: ", "-> \"29s\""])?;
    let undone = stage.signpost(0, &["rollout", "undo", "default"])?;
    expect(&undone.text, &["syncPeriod: \"29s\" -> "])?;
    expect(&stage.signpost(0, &follow)?.text, &[&ended])
}

/// explain, of one node and of all.
fn service(stage: &Stage) -> Result<()> {
    let about = format!("svc/{}", STEADY.name);
    let explained = stage.signpost(0, &["explain", &about, "--node=node-2"])?;
    expect(&explained.errors, &["node node-2:"])?;
    expect(
        &explained.text,
        &[&format!("Service default/{}", STEADY.name)],
    )?;
    for endpoint in endpoints(stage)? {
        expect(&explained.text, &[&endpoint])?;
    }
    ensure!(!explained.text.contains("! "), "{}", explained.text);
    let explained = parse(&stage.signpost(0, &["explain", &about, "--output=json"])?)?;
    ensure!(
        explained["node"] == "node-1"
            && explained["services"][0]["service"] == format!("default/{}", STEADY.name),
        "{explained:#}"
    );
    let text = stage.signpost(0, &["explain", &about, "--all-nodes"])?.text;
    ensure!(
        text == format!("no differences on {NODES} nodes\n"),
        "{text}"
    );

    let unknown = stage.signpost(1, &["explain", "svc/no-such"])?;
    expect(
        &unknown.errors,
        &["does not know Service default/no-such", "next: "],
    )
}

/// trace, of packets that arrive and of packets that do not.
fn packets(stage: &Stage) -> Result<()> {
    let (from, to) = (
        format!("pod/{}", client(1)),
        format!("svc/{}:tcp", STEADY.name),
    );
    let traced = stage.signpost(0, &["trace", &from, &to])?;
    expect(&traced.errors, &["node node-1:"])?;
    expect(&traced.text, &["they agree", "dnat to "])?;
    for endpoint in endpoints(stage)?
        .iter()
        .filter(|address| !address.contains(':'))
    {
        expect(&traced.text, &[endpoint])?;
    }
    let traced = parse(&stage.signpost(0, &["trace", &from, &to, "--output=json"])?)?;
    ensure!(
        traced["agree"] == true && traced["paths"][0].is_object(),
        "{traced:#}"
    );

    let deserted = format!("svc/{DESERTED}");
    let refused = wait_for("the packet to be rejected", PROMPTLY, || {
        let ran = stage.run_plugin(&["trace", &from, &deserted])?;
        Ok(ran.errors.contains("rejects the packet").then_some(ran))
    })?;
    ensure!(refused.code == Some(3), "{refused:?}");
    expect(&refused.text, &["desired: reject", "they agree"])?;
    let next = format!("next: `kubectl signpost explain svc/{DESERTED} -n default --node node-1`");
    expect(&refused.errors, &[&next])?;

    // The node that has the port is asked, which is not the first one.
    let port = |port| format!("node/node-2:{port}");
    let served = port(STEADY.node_address(2, dataplane::Family::Ipv4).port());
    let traced = stage.signpost(0, &["trace", OUTSIDE, &served])?;
    expect(&traced.errors, &["node node-2:"])?;
    expect(&traced.text, &["they agree", "masqueraded"])?;
    let missing = stage.signpost(3, &["trace", OUTSIDE, &port(FREE_PORT)])?;
    expect(&missing.text, &["desired: untouched", "they agree"])?;
    expect_as_documented(&missing, "trace 'outside 203.0.113.9' node/node-1:30080")?;
    expect(
        &missing.errors,
        &["no Service has this port of node node-2", "next: "],
    )?;
    let passed_on = stage.signpost(0, &["trace", &from, &served, "--node=node-1"])?;
    expect(&passed_on.errors, &["next: --node node-2 follows it"])
}

/// A node whose rules another program removes is named, with what it lacks, until its agent has
/// repaired them.
fn disagreement(stage: &Stage) -> Result<()> {
    let about = format!("svc/{}", STEADY.name);
    let explain = || stage.run_plugin(&["explain", &about, "--all-nodes"]);
    let network = stage.cluster.node(2)?.namespace();
    // Each repair is later than the one before it, so that one of the answers comes first.
    let differing = wait_for("node-2 to differ", DEADLINE, || {
        network.nft(&FLUSH)?;
        let ran = explain()?;
        Ok((ran.code != Some(0)).then_some(ran))
    })?;
    ensure!(differing.code == Some(3), "{differing:?}");
    let summary = format!(
        "{} nodes without differences, 1 with, 0 without an answer",
        NODES - 1
    );
    expect(&differing.text, &["node-2\n", "! ", &summary])?;
    wait_for("node-2 to be repaired", DEADLINE, || {
        Ok((explain()?.code == Some(0)).then_some(()))
    })
}

/// An archive has what one node has, and nothing private.
fn report(stage: &Stage) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("dump.tar.gz");
    let file = file.to_str().context("the path is text")?;
    let service = format!("--service=default/{}", STEADY.name);
    let written = stage.signpost(0, &["sysdump", "--node=node-2", &service, "--file", file])?;
    expect(
        &written.text,
        &["agents asked: node-2\n", "Review it before you share it"],
    )?;
    let files = unpack(Path::new(file))?;
    let names: Vec<&String> = files.keys().collect();
    for (name, words) in [
        ("proxyprofiles.yaml", "name: default"),
        ("nodeproxies.yaml", "name: node-3"),
        ("nodes.yaml", "name: node-1"),
        ("services.yaml", STEADY.name),
        ("endpointslices.yaml", "addresses"),
        ("daemonsets.yaml", "name: signpost-agent"),
        ("deployments.yaml", "name: signpost-operator"),
        ("pods.yaml", "nodeName: node-2"),
        ("nodes/node-2/rules.txt", "table ip signpost"),
        ("nodes/node-2/dataplane.txt", STEADY.name),
        ("nodes/node-2/syncs.txt", "IPv4 sync "),
        ("nodes/node-2/status.yaml", "appliedHash: "),
        ("nodes/node-2/metrics.txt", "signpost_syncs_total"),
        (
            "nodes/node-2/explain/default_steady.txt",
            "Service default/steady",
        ),
    ] {
        let text = files.get(name);
        let text = text.with_context(|| format!("no {name} in {names:#?}"))?;
        ensure!(text.contains(words), "no {words:?} in {name}:\n{text}");
    }
    ensure!(files.get("missing.txt").is_some_and(String::is_empty));
    for component in ["agent", "operator"] {
        for pod in stage.observe_component(component)? {
            let log = files.get(&format!("logs/{}/{component}.log", pod.name));
            ensure!(
                log.is_some_and(|log| !log.is_empty()),
                "{pod:?}: {names:#?}"
            );
        }
    }
    ensure!(
        !names.iter().any(|name| name.starts_with("nodes/node-1/")),
        "{names:#?}"
    );
    for (name, text) in &files {
        let private = PRIVATE.iter().find(|private| text.contains(**private));
        ensure!(private.is_none(), "{name} has {private:?}");
    }
    Ok(())
}

/// Returns the addresses of the endpoints of the Service whose servers stay.
fn endpoints(stage: &Stage) -> Result<Vec<String>> {
    let selector = format!("--selector=kubernetes.io/service-name={}", STEADY.name);
    let slices: Value = stage.get(&["endpointslices", &selector])?;
    let slices = slices["items"].as_array().context("a list")?.iter();
    let endpoints = slices.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
    let addresses = endpoints.filter_map(|endpoint| endpoint["addresses"][0].as_str());
    let addresses: Vec<String> = addresses.map(str::to_owned).collect();
    ensure!(!addresses.is_empty(), "{selector} selects nothing");
    Ok(addresses)
}

fn parse(ran: &Ran) -> Result<Value> {
    serde_json::from_str(&ran.text).with_context(|| format!("no JSON: {ran:?}"))
}

/// Expects all of these words in a text.
fn expect(text: &str, expected: &[&str]) -> Result<()> {
    for words in expected {
        ensure!(text.contains(words), "no {words:?} in:\n{text}");
    }
    Ok(())
}
