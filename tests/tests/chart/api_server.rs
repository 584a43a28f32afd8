//! How the chart finds the address of the API server: given, detected, or requested in a helpful
//! error message.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::control_plane::{ADMINISTRATOR, ControlPlane, Options};

use crate::helm::{Cluster, Helm};
use crate::{k3s, manifests};

/// A ConfigMap: its namespace, its name, its only key and the value.
pub(crate) type ConfigMap = (&'static str, &'static str, &'static str, &'static str);

/// The ConfigMap that kubeadm writes for joining nodes.
pub(crate) const CLUSTER_INFO: ConfigMap = (
    "kube-public",
    "cluster-info",
    "kubeconfig",
    "
apiVersion: v1
kind: Config
clusters:
  - name: ''
    cluster: {certificate-authority-data: bm90IG9uZQ==, server: 'https://api.example.com:6443'}
contexts: null
users: null
",
);

/// kubeadm's configuration with a name for all control-plane nodes.
const NAMED: ConfigMap = kubeadm_config("controlPlaneEndpoint: control.example.com:8443");

/// The same without a port.
const PORTLESS: ConfigMap = kubeadm_config("controlPlaneEndpoint: control.example.com");

/// The same with an IPv6 address.
const IPV6: ConfigMap = kubeadm_config("controlPlaneEndpoint: '[2001:db8::10]:6443'");

/// kubeadm's configuration with a single control-plane node and no name.
const NAMELESS: ConfigMap = kubeadm_config("clusterName: kubernetes");

/// The ConfigMap that kubeadm writes for kube-proxy.
const KUBE_PROXY: ConfigMap = (
    "kube-system",
    "kube-proxy",
    "kubeconfig.conf",
    "
apiVersion: v1
kind: Config
clusters:
  - name: default
    cluster: {certificate-authority: /no/such/ca.crt, server: 'https://192.0.2.20:6443'}
",
);

/// The same of a managed control plane, at the port of its scheme.
const MANAGED: ConfigMap = (
    "kube-system",
    "kube-proxy",
    "kubeconfig.conf",
    "
apiVersion: v1
kind: Config
clusters:
  - name: default
    cluster: {certificate-authority: /no/such/ca.crt, server: 'https://managed.example.com'}
",
);

/// The endpoints of the Service kubernetes, which may change.
const ENDPOINTS: &str = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default}
addressType: IPv4
endpoints:
  - addresses: [192.0.2.10]
  - addresses: [192.0.2.11]
ports:
  - {name: https, port: 6443, protocol: TCP}
";

const fn kubeadm_config(text: &'static str) -> ConfigMap {
    (
        "kube-system",
        "kubeadm-config",
        "ClusterConfiguration",
        text,
    )
}

/// Creates a ConfigMap in a cluster.
pub(crate) fn apply(control_plane: &ControlPlane, map: ConfigMap) -> Result<()> {
    let (namespace, name, key, text) = map;
    // The API server creates this namespace itself, but only some time after its start.
    let namespace_object =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    control_plane.apply(&namespace_object.to_string())?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name}, "data": {key: text},
    });
    control_plane.apply(&map.to_string()).map(drop)
}

/// Returns the address of the API server in the agents' and operators' environment.
fn reported(helm: &Helm, arguments: &[&str]) -> Result<String> {
    let rendered = manifests::parse(&helm.render(arguments)?)?;
    let at = |kind: &str, name: &str| {
        let workload = manifests::find(&rendered, kind, name)?;
        let host = manifests::variable(workload, "KUBERNETES_SERVICE_HOST");
        let port = manifests::variable(workload, "KUBERNETES_SERVICE_PORT");
        let (host, port) = host.zip(port).context("host and port")?;
        anyhow::Ok(format!("{host} {port}"))
    };
    let agents = at("DaemonSet", "signpost-agent")?;
    let operators = at("Deployment", "signpost-operator")?;
    ensure!(agents == operators, "{agents} and {operators}");
    Ok(agents)
}

#[test]
fn t442_the_api_server_is_found_where_the_cluster_tells() -> Result<()> {
    let control_plane = ControlPlane::start(Options::default())?;
    let helm = Helm::new(Cluster::Kubeconfig(
        control_plane.kubeconfig(ADMINISTRATOR)?,
    ))?;

    let Err(error) = helm.render(&[""; 0]) else {
        anyhow::bail!("the address is nowhere, and the chart is rendered");
    };
    let said = error.to_string();
    ensure!(said.contains("apiServer.host is required"), "{said}");
    control_plane.apply(ENDPOINTS)?;
    let Err(error) = helm.render(&[""; 0]) else {
        anyhow::bail!("endpoints are taken for an address that stays");
    };
    let said = error.to_string();
    let hint = "The Service kubernetes leads to 192.0.2.10, 192.0.2.11, port 6443.";
    ensure!(said.contains(hint), "{said}");

    // Each takes precedence over those above it.
    for (map, expected) in [
        // Failure story T442.
        (MANAGED, "managed.example.com 443"),
        (KUBE_PROXY, "192.0.2.20 6443"),
        (NAMELESS, "192.0.2.20 6443"),
        (PORTLESS, "control.example.com 6443"),
        (IPV6, "2001:db8::10 6443"),
        (NAMED, "control.example.com 8443"),
        (CLUSTER_INFO, "api.example.com 6443"),
    ] {
        apply(&control_plane, map)?;
        let found = reported(&helm, &[])?;
        ensure!(found == expected, "{} leads to {found}", map.1);
    }
    let given = ["--set=apiServer.host=192.0.2.30,apiServer.port=443"];
    let found = reported(&helm, &given)?;
    ensure!(found == "192.0.2.30 443", "{found}");

    // On each node of these distributions, the API server or a balancer in front of it listens on
    // loopback.
    for (version, expected) in [
        ("v1.34.2+k3s1", "127.0.0.1 6444"),
        ("v1.34.2+rke2r1", "127.0.0.1 6443"),
    ] {
        let server = Cluster::Server(k3s::serve(&control_plane, version)?);
        let found = reported(&Helm::new(server)?, &[])?;
        ensure!(found == expected, "{version} leads to {found}");
    }
    Ok(())
}

#[test]
fn an_address_in_ipv6_is_taken_as_it_is() -> Result<()> {
    let helm = Helm::new(Cluster::None)?;
    let found = reported(&helm, &["--set=apiServer.host=2001:db8::10"])?;
    ensure!(found == "2001:db8::10 6443", "{found}");
    Ok(())
}
