//! A control plane in its own network namespace serves nodes in other namespaces.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Arguments;
use tests::control_plane::{ADMINISTRATOR, ControlPlane, Options, build_programs};
use tests::deadline::wait_for;
use tests::network::{Outsider, Plan, Topology, enter_private_namespaces};
use tests::trial::trial;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 123, 0, 1);
const DEADLINE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    build_programs()?;
    enter_private_namespaces()?;
    let trial = trial(
        "a_node_reaches_the_api_server_and_trusts_its_certificate",
        serves_nodes,
    );
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit();
}

fn serves_nodes() -> Result<()> {
    let topology = Topology::build(&Plan {
        others: vec![Outsider {
            name: "control".to_owned(),
            addresses: vec![ADDRESS.into()],
        }],
        ..Plan::standard()
    })?;
    let control_plane = ControlPlane::start(Options {
        bind: ADDRESS,
        network: Some(topology.other("control")?.clone()),
        ..Options::default()
    })?;
    let kubeconfig = control_plane.kubeconfig(ADMINISTRATOR)?;

    let mut on_node = topology
        .node(1)?
        .command(control_plane.programs().join("kubectl"));
    on_node
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .args(["get", "--raw=/readyz"]);
    let answer = on_node
        .output()
        .context("failed to run kubectl on the node")?;
    let complaint = String::from_utf8_lossy(&answer.stderr);
    ensure!(
        answer.stdout == b"ok",
        "the node was not served: {complaint}"
    );

    // The address to which clients of the Service `kubernetes` are forwarded.
    let selector = "--selector=kubernetes.io/service-name=kubernetes";
    let slices = [
        "get",
        "endpointslices",
        selector,
        "--output=jsonpath={..addresses}{..port}",
    ];
    wait_for("the endpoint of the Service kubernetes", DEADLINE, || {
        let endpoint = control_plane.kubectl(&slices)?;
        Ok(endpoint
            .contains(&format!(
                r#"["{ADDRESS}"]{}"#,
                control_plane.address().port()
            ))
            .then_some(()))
    })
}
