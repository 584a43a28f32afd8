//! Repeats Kubernetes' test of a restarted API server, for clusters whose API server is not a Pod.
//!
//! The steps are those of "should work after restarting apiserver [Disruptive]" in Kubernetes'
//! test/e2e/network/service.go, which deletes the API server's Pod and skips itself if there is
//! none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::{Group, Outcome};
use crate::control_plane::ControlPlane;
use crate::deadline::wait_for;
use crate::real_cluster::{Built, RealCluster};

/// The explanation for readers of the results.
pub const EXPLANATION: &str = "\
Of the disruptive ones two concern a service proxy. \"should work after restarting kube-proxy\" is run after all others; it finds Signpost's
agents by the label `k8s-app: kube-proxy`, which the run sets with `agent.podLabels`. \"should work after restarting apiserver\" deletes the
Pod of an API server, which here is none: `tests/src/conformance/api_server_restart.rs` takes the same steps and kills the process.";

const NAMESPACE: &str = "api-server-restart";
/// The number of endpoints of each Service.
const REPLICAS: usize = 3;
/// How long Pods may take to run, and a Service to be programmed.
const DEADLINE: Duration = Duration::from_secs(120);

/// Restarts the API server while Services exist and before another one is created; returns the name
/// and outcome of the test.
pub fn restart(cluster: &mut RealCluster) -> BTreeMap<Group, BTreeMap<String, Outcome>> {
    let steps = take_steps(cluster);
    let arguments = [
        "delete",
        "namespace",
        NAMESPACE,
        "--ignore-not-found",
        "--timeout=2m",
    ];
    let removed = cluster.control_plane().kubectl(&arguments);
    let outcome = match steps.and(removed) {
        Ok(_) => Outcome::Passed,
        Err(error) => Outcome::Failed {
            message: format!("{error:#}").replace('\n', " "),
        },
    };
    let group = Group("[sig-network] Services, by steps of this project".to_owned());
    let name = "should work after restarting apiserver".to_owned();
    BTreeMap::from([(group, BTreeMap::from([(name, outcome)]))])
}

fn take_steps(cluster: &mut RealCluster) -> Result<()> {
    let image = Built::cluster()?.image("agnhost")?;
    let control_plane = cluster.control_plane();
    control_plane.kubectl(&["create", "namespace", NAMESPACE])?;
    control_plane.apply(&clients(&image))?;
    let before = start_service(control_plane, &image, "before")?;
    expect_all_answer(control_plane, &before)?;

    cluster.control_plane_mut().stop_api_server();
    cluster.control_plane_mut().start_api_server()?;

    let control_plane = cluster.control_plane();
    expect_all_answer(control_plane, &before)?;
    let after = start_service(control_plane, &image, "after")?;
    ensure!(
        before.address != after.address,
        "both Services have the address {}",
        before.address
    );
    expect_all_answer(control_plane, &before)?;
    expect_all_answer(control_plane, &after)
}

/// A Service and its Pods.
#[derive(Debug)]
struct Served {
    address: String,
    pods: BTreeSet<String>,
}

/// Returns two client Pods, one of them on the host network.
fn clients(image: &str) -> String {
    let pod = |name: &str, host_network: bool| {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "hostNetwork": host_network,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "client", "image": image, "args": ["pause"]}],
            },
        })
    };
    let pods = CLIENTS.map(|(name, host_network)| pod(name, host_network));
    json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string()
}

const CLIENTS: [(&str, bool); 2] = [("in-a-pod", false), ("on-a-node", true)];

/// Creates a Service and waits until its Pods run.
fn start_service(control_plane: &ControlPlane, image: &str, name: &str) -> Result<Served> {
    let labels = json!({"app": name});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "server", "image": image, "args": ["serve-hostname"]}],
                },
            },
        },
    });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 9376}]},
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [deployment, service]});
    control_plane.apply(&list.to_string())?;
    let namespace = format!("--namespace={NAMESPACE}");
    let timeout = format!("--timeout={}s", DEADLINE.as_secs());
    let deployment = format!("deployment/{name}");
    control_plane.kubectl(&["rollout", "status", &deployment, &namespace, &timeout])?;
    let get = |arguments: &[&str]| {
        let mut all = vec!["get", &namespace];
        all.extend(arguments);
        control_plane.kubectl(&all)
    };
    let address = get(&["service", name, "--output=jsonpath={.spec.clusterIP}"])?;
    let selector = format!("--selector=app={name}");
    let pods = get(&[
        "pods",
        &selector,
        "--output=jsonpath={.items[*].metadata.name}",
    ])?;
    let pods = pods.split_whitespace().map(str::to_owned).collect();
    Ok(Served { address, pods })
}

/// Waits until every Pod of a Service has answered each client.
fn expect_all_answer(control_plane: &ControlPlane, service: &Served) -> Result<()> {
    let ask = format!(
        "for i in $(seq 1 {}); do wget -q -T 1 -O - http://{}/ || true; echo; done",
        10 * REPLICAS,
        service.address
    );
    let namespace = format!("--namespace={NAMESPACE}");
    for (client, _) in CLIENTS {
        let what = format!("all Pods behind {} to answer {client}", service.address);
        let mut answered = BTreeSet::new();
        wait_for(&what, DEADLINE, || {
            let arguments = ["exec", client, &namespace, "--", "sh", "-c", &ask];
            // The command fails until the client Pod runs and the restarted API server answers.
            let answers = control_plane.kubectl(&arguments).unwrap_or_default();
            answered.extend(answers.split_whitespace().map(str::to_owned));
            Ok(answered.is_superset(&service.pods).then_some(()))
        })?;
    }
    Ok(())
}
