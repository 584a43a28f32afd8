//! A fresh installation of Signpost.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use dataplane::{Family, Protocol};
use serde_json::{Value, json};
use tests::control_plane::ADMINISTRATOR;
use tests::real_cluster::Part;

use crate::command_line::before_the_installation;
use crate::shop::{STEADY, client};
use crate::stage::{NODES, PROMPTLY, Stage};
use crate::ways::Place;

/// The capability needed to program the kernel's network, as a bit (linux/capability.h).
const CAP_NET_ADMIN: u64 = 1 << 12;

pub(crate) fn on_an_empty_cluster(stage: &mut Stage) -> Result<()> {
    before_the_installation(stage).context("the command line before the installation")?;
    let began = Instant::now();
    let notes = stage.install()?;
    let waited = began.elapsed();
    let profile = stage.wait_until_ready()?;
    println!(
        "    pods were ready after {waited:.1?}, all nodes after {:.1?}",
        began.elapsed()
    );
    ensure!(
        notes.contains("It reaches the API server at 172.30.0.1, port 6443."),
        "{notes}"
    );
    println!(
        "$ kubectl get proxyprofiles,nodeproxies\n{}",
        stage.kubectl(&["get", "proxyprofiles,nodeproxies"])?
    );
    ensure!(profile.metadata.name.as_deref() == Some("default"));
    for (component, count) in [("agent", usize::from(NODES)), ("operator", 2)] {
        let pods = stage.observe_component(component)?;
        ensure!(pods.len() == count, "{component}: {pods:?}");
        ensure!(
            pods.iter().all(|pod| pod.restarts == 0),
            "{component}: {pods:?}"
        );
    }
    let servers = stage.observe_servers(STEADY)?;
    stage.wait_until_served(STEADY, &servers, PROMPTLY)
}

/// Names are resolved through the Service kube-dns, and the API server's certificate contains its
/// DNS name.
pub(crate) fn by_name(stage: &mut Stage) -> Result<()> {
    let ask_api_server = "account=/var/run/secrets/kubernetes.io/serviceaccount; \
        curl --silent --show-error --fail --max-time 10 --cacert $account/ca.crt \
        --header \"Authorization: Bearer $(cat $account/token)\" https://kubernetes.default/version";
    for node in 1..=NODES {
        let pod = client(node);
        let run = |script: &str| stage.kubectl(&["exec", &pod, "--", "sh", "-c", script]);
        for family in ["-4", "-6"] {
            let answer = run(&format!(
                "nc {family} -N -w 10 {} 80 </dev/null",
                STEADY.name
            ))?;
            ensure!(
                answer.starts_with(STEADY.name),
                "node-{node}, nc {family}: {answer:?}"
            );
        }
        let version = run(ask_api_server)?;
        ensure!(version.contains("\"gitVersion\""), "node-{node}: {version}");
    }
    Ok(())
}

pub(crate) fn everywhere(stage: &mut Stage) -> Result<()> {
    let servers = stage.observe_servers(STEADY)?;
    let mut ways = 0;
    for node in 1..=NODES {
        for place in [Place::Outside(node), Place::Node(node), Place::Pod(node)] {
            for family in Family::ALL {
                for protocol in [Protocol::Tcp, Protocol::Udp] {
                    let way = stage.way(place, STEADY, (protocol, family))?;
                    way.wait_for_servers(&servers, PROMPTLY)?;
                    ways += 1;
                }
            }
        }
    }
    println!("    {ways} ways, each to all {} servers", servers.len());
    Ok(())
}

/// Reads the privileges from the kernel, independent of the Pods' specs.
pub(crate) fn privileges(stage: &mut Stage) -> Result<()> {
    for agent in stage.observe_component("agent")? {
        let node = stage.cluster.nodes().find(|node| node.name() == agent.node);
        let node = node.with_context(|| format!("{agent:?} is on a node"))?;
        let process = node.observe_pod_process(&agent.name, Part::Container)?;
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            let mask = status
                .lines()
                .find_map(|line| line.strip_prefix(set)?.strip_prefix(":\t"));
            let mask = mask.with_context(|| format!("the kernel tells {set}"))?;
            let mask = u64::from_str_radix(mask, 16)?;
            ensure!(
                mask == CAP_NET_ADMIN,
                "{set} of {} is {mask:#x}",
                agent.name
            );
        }
        let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo"))?;
        let root = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let root = root.into_iter().find(|words| words.get(4) == Some(&"/"));
        let options = root.and_then(|words| words.get(5).copied());
        let options = options.context("a container has a root")?;
        ensure!(
            options.split(',').any(|option| option == "ro"),
            "{}: {options}",
            agent.name
        );
    }
    Ok(())
}

/// What an attacker can do with a stolen token of one node, which is the Pod's own.
pub(crate) fn token(stage: &mut Stage) -> Result<()> {
    let agents = stage.observe_component("agent")?;
    let agent = agents
        .iter()
        .find(|pod| pod.node == "node-1")
        .context("node-1 has an agent")?;
    let process = stage
        .cluster
        .node(1)?
        .observe_pod_process(&agent.name, Part::Container)?;
    let token = format!("/proc/{process}/root/var/run/secrets/kubernetes.io/serviceaccount/token");
    let token = fs::read_to_string(&token).with_context(|| format!("failed to read {token}"))?;
    let control_plane = stage.cluster.control_plane();
    let kubeconfig = control_plane.kubeconfig(ADMINISTRATOR)?;
    let mut settings: Value = serde_json::from_str(&fs::read_to_string(&kubeconfig)?)?;
    // Replace the administrator's credentials.
    settings["users"][0]["user"] = json!({"token": token.trim()});
    let folder = tempfile::tempdir()?;
    let own = folder.path().join("kubeconfig");
    fs::write(&own, settings.to_string())?;
    // Written as by the agent, but without the result, which stays as the agent wrote it.
    let attempt = |node: &str| -> Result<(bool, String)> {
        let status = json!({
            "apiVersion": "signpost.dev/v1alpha1",
            "kind": "NodeProxy",
            "metadata": {"name": node},
            "status": {"kernelVersion": "written by another"},
        });
        let file = folder.path().join(node);
        fs::write(&file, status.to_string())?;
        let mut command = control_plane.kubectl_command(&own);
        command
            .args([
                "apply",
                "--server-side",
                "--force-conflicts",
                "--subresource=status",
            ])
            .args(["--dry-run=server", "--validate=false", "--filename"])
            .arg(&file);
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((output.status.success(), said))
    };
    let (written, said) = attempt("node-1")?;
    ensure!(written, "its own status: {said}");
    let (written, said) = attempt("node-2")?;
    ensure!(!written, "it wrote another node's status");
    let message = "the agent of node node-1 may not write NodeProxy node-2";
    ensure!(said.contains(message), "refused with {said}");
    Ok(())
}
