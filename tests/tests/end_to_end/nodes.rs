//! Nodes and their agents: permissions, the first report, joining and leaving.

use std::fs;

use anyhow::{Context, Result, ensure};
use dataplane::{Family, Protocol};
use serde_json::json;
use tests::cluster::resources::is_node_ready;
use tests::cluster::shop::{WEB, node_port_address};
use tests::cluster::{CONTROL_ADDRESS, Cluster, DEADLINE, NEWCOMER, NODES};
use tests::deadline::wait_for;
use tests::tcp_connections::connections_to;

pub(crate) fn own_object(cluster: &mut Cluster) -> Result<()> {
    let kubeconfig = cluster.kubeconfig_of_agent(1)?;
    let attempt = |arguments: &[&str]| -> Result<Result<String, String>> {
        let mut command = cluster.control_plane().kubectl_command(&kubeconfig);
        let output = command.args(arguments).output()?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(match output.status.success() {
            true => Ok(said(&output.stdout)),
            false => Err(said(&output.stderr)),
        })
    };
    let folder = tempfile::tempdir()?;
    // Written as by the agent, but without the result, which stays as the agent wrote it.
    let apply_status = |node: &str| {
        let status = json!({
            "apiVersion": "signpost.dev/v1alpha1",
            "kind": "NodeProxy",
            "metadata": {"name": node},
            "status": {"kernelVersion": "written by another"},
        });
        let file = folder.path().join(node);
        fs::write(&file, status.to_string())?;
        let file = format!("--filename={}", file.display());
        let how = ["--server-side", "--force-conflicts", "--subresource=status"];
        attempt(
            &[
                &["apply", &file, "--dry-run=server", "--validate=false"],
                &how[..],
            ]
            .concat(),
        )
    };
    let refusal = apply_status("node-2")?
        .err()
        .context("it wrote another node's status")?;
    let message = "the agent of node node-1 may not write NodeProxy node-2";
    ensure!(refusal.contains(message), "refused with {refusal}");
    let own = apply_status("node-1")?;
    ensure!(own.is_ok(), "its own status: {own:?}");
    let rest: [&[&str]; 4] = [
        &["delete", "nodeproxy", "node-1"],
        &[
            "patch",
            "nodeproxy",
            "node-1",
            "--type=merge",
            "--patch={\"spec\":{}}",
        ],
        &["patch", "node", "node-1", "--type=merge", "--patch={}"],
        &["get", "secrets", "--all-namespaces"],
    ];
    for arguments in rest {
        let outcome = attempt(arguments)?;
        let refused = outcome
            .as_ref()
            .is_err_and(|said| said.contains("Forbidden"));
        ensure!(refused, "kubectl {}: {outcome:?}", arguments.join(" "));
    }
    Ok(())
}

/// Checks the output of `kubectl events` for an agent, which writes Events with its own
/// permissions.
pub(crate) fn events(cluster: &mut Cluster) -> Result<()> {
    for node in NODES {
        let name = format!("node-{node}");
        let about = format!("involvedObject.kind=Node,involvedObject.name={name},reason=Starting");
        let columns = "--output=jsonpath={range .items[*]}{.reportingComponent} \
                       {.reportingInstance} {.type} {.message}{\"\\n\"}{end}";
        let arguments = [
            "get",
            "events",
            "--namespace=default",
            "--field-selector",
            &about,
            columns,
        ];
        let reported = wait_for(
            &format!("the start of {name} to be reported"),
            DEADLINE,
            || {
                let reported = cluster.control_plane().kubectl(&arguments)?;
                Ok((!reported.trim().is_empty()).then_some(reported))
            },
        )?;
        let expected = format!("signpost-agent {name} Normal signpost-agent ");
        ensure!(reported.starts_with(&expected), "{reported}");
    }
    Ok(())
}

/// Each program uses a single connection to the API server for all of its watches and writes.
pub(crate) fn connections(cluster: &mut Cluster) -> Result<()> {
    let server = cluster.control_plane().address();
    let agents = cluster.agent_ids().into_iter();
    let mut programs: Vec<(String, u32)> = agents
        .map(|(node, id)| (format!("the agent of node-{node}"), id))
        .collect();
    programs.push(("the operator".to_owned(), cluster.operator_id()?));
    for (program, id) in programs {
        // Concurrent first requests each open a connection, and only the first is kept.
        wait_for(
            &format!("one connection to the API server from {program}"),
            DEADLINE,
            || Ok((connections_to(id, server)? == 1).then_some(())),
        )?;
    }
    Ok(())
}

pub(crate) fn never_synced(cluster: &mut Cluster) -> Result<()> {
    // Nothing listens on this port, so connections are refused at once.
    let kubeconfig = fs::read_to_string(cluster.kubeconfig_of_agent(1)?)?;
    let served = cluster.control_plane().address().to_string();
    let elsewhere = kubeconfig.replace(&served, &format!("{CONTROL_ADDRESS}:1"));
    ensure!(elsewhere != kubeconfig, "the kubeconfig names {served}");
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("kubeconfig");
    fs::write(&file, elsewhere)?;
    let mut agent = cluster.start_agent_with(NEWCOMER, &file)?;
    for missing in [
        "list of Services",
        "list of EndpointSlices",
        "list of Nodes",
    ] {
        wait_for(&format!("/readyz to name the {missing}"), DEADLINE, || {
            agent.ensure_runs()?;
            // The request fails until the agent listens.
            let Ok((code, answer)) = cluster.ask_agent(NEWCOMER, "/readyz") else {
                return Ok(None);
            };
            ensure!(
                code == 503,
                "an agent that has read nothing answers {code}: {answer}"
            );
            Ok(answer.contains(missing).then_some(()))
        })?;
    }
    let (code, answer) = cluster.ask_agent(NEWCOMER, "/readyz")?;
    println!("    {code}: {}", answer.trim());
    ensure!(
        cluster.ask_agent(NEWCOMER, "/livez")?.0 == 200,
        "waiting is no reason to be killed"
    );
    let tables = cluster
        .topology()
        .node(NEWCOMER)?
        .command("nft")
        .args(["list", "tables"])
        .output()?;
    let tables = String::from_utf8_lossy(&tables.stdout).into_owned();
    ensure!(
        tables.is_empty(),
        "it has programmed what it cannot know:\n{tables}"
    );
    agent.kill()
}

pub(crate) fn join_and_leave(cluster: &mut Cluster) -> Result<()> {
    let all = WEB.map(|pod| pod.name);
    let name = format!("node-{NEWCOMER}");
    cluster.join(NEWCOMER)?;
    let joined = cluster.wait_until_ready(DEADLINE);
    let served = joined.and_then(|_| cluster.wait_until_served_by(&all, DEADLINE));
    let table = cluster.control_plane().kubectl(&["get", "proxyprofiles"])?;
    let owner = [
        "nodeproxy",
        &name,
        "--output=jsonpath={.metadata.ownerReferences[*].kind}",
    ];
    let owner = cluster
        .control_plane()
        .kubectl(&[&["get"][..], &owner].concat());
    let mut agent = cluster.leave(NEWCOMER)?;
    served?;
    println!("$ kubectl get proxyprofiles\n{table}");
    ensure!(owner?.trim() == "Node", "its NodeProxy is not the Node's");
    cluster.wait_for_node_proxies("its NodeProxy to go", DEADLINE, |proxies| {
        let left: Vec<String> = proxies.keys().cloned().collect();
        left == NODES.map(|number| format!("node-{number}")) && proxies.values().all(is_node_ready)
    })?;
    cluster.wait_until_ready(DEADLINE)?;
    // The agent keeps serving until it is reconfigured, as on a node that the API server has lost.
    agent.ensure_runs()?;
    let way = (Protocol::Tcp, node_port_address(NEWCOMER, Family::Ipv4));
    cluster.wait_for_servers(cluster.topology().outside()?, way, &all, DEADLINE)
}
