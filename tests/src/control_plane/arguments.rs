//! The command line arguments of each program.

use std::net::SocketAddrV4;

use super::folder::{Folder, argument};
use super::{ADMINISTRATOR, Kubelets, Options};

/// The ranges of cluster IPs: IPv4, the primary family of Services, and IPv6.
pub const SERVICE_CIDRS: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];

/// The issuer of service account tokens.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The controllers that tests depend on if the test acts as the kubelets. The node lifecycle
/// controller is not among them: it would declare all nodes dead.
const CONTROLLERS: [&str; 8] = [
    "daemonset-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "root-ca-certificate-publisher-controller",
    "service-cidr-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
];

pub(super) fn of_etcd(folder: &Folder) -> Vec<String> {
    vec![
        argument("data-dir", &folder.etcd_data()),
        format!(
            "--listen-client-urls=unix://{}",
            folder.etcd_socket().display()
        ),
        // etcd requires an advertised address, but nothing uses it.
        "--advertise-client-urls=http://localhost:2379".to_owned(),
        format!(
            "--listen-peer-urls=unix://{}",
            folder.etcd_peer_socket().display()
        ),
        // The data need not survive a power failure.
        "--unsafe-no-fsync=true".to_owned(),
        "--log-level=warn".to_owned(),
    ]
}

pub(super) fn of_api_server(
    folder: &Folder,
    address: SocketAddrV4,
    options: &Options,
) -> Vec<String> {
    let (ip, port) = (address.ip(), address.port());
    // A Service must not have a loopback address as its endpoint.
    let endpoints = if ip.is_loopback() { "none" } else { "lease" };
    let who_runs_pods = match options.kubelets {
        // With this plugin, Pods in a new namespace are rejected until a controller has created the
        // service account.
        Kubelets::Acted => vec![
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
        ],
        Kubelets::Real => vec![
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            // The names of the nodes are not in DNS.
            "--kubelet-preferred-address-types=InternalIP",
        ],
    };
    let mut arguments = vec![
        format!("--etcd-servers=unix://{}", folder.etcd_socket().display()),
        format!("--bind-address={ip}"),
        format!("--advertise-address={ip}"),
        format!("--secure-port={port}"),
        format!("--endpoint-reconciler-type={endpoints}"),
        format!("--apiserver-count={}", options.api_server_count),
        argument("cert-dir", &folder.certificates()),
        argument("token-auth-file", &folder.tokens()),
        format!("--service-cluster-ip-range={}", SERVICE_CIDRS.join(",")),
        format!("--service-account-issuer={ISSUER}"),
        argument("service-account-key-file", &folder.verifying_key()),
        argument("service-account-signing-key-file", &folder.signing_key()),
        // Agents run in privileged Pods.
        "--allow-privileged=true".to_owned(),
    ];
    arguments.extend(who_runs_pods.into_iter().map(str::to_owned));
    arguments
}

pub(super) fn of_controller_manager(folder: &Folder, kubelets: Kubelets) -> Vec<String> {
    let controllers = match kubelets {
        Kubelets::Acted => CONTROLLERS.join(","),
        Kubelets::Real => "*".to_owned(),
    };
    vec![
        argument("kubeconfig", &folder.kubeconfig(ADMINISTRATOR)),
        format!("--controllers={controllers}"),
        argument("root-ca-file", &folder.certificate_authority()),
        argument("service-account-private-key-file", &folder.signing_key()),
        "--leader-elect=false".to_owned(),
        // On a busy machine a kubelet may renew its lease late. With the default of 50 seconds the
        // controllers would then mark the servers on its node as not ready.
        "--node-monitor-grace-period=300s".to_owned(),
        // It serves nothing, and the port would conflict with a second control plane.
        "--secure-port=0".to_owned(),
        // With the defaults of 20 a second, a test with hundreds of Services has to wait.
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ]
}

pub(super) fn of_scheduler(folder: &Folder) -> Vec<String> {
    vec![
        argument("kubeconfig", &folder.kubeconfig(ADMINISTRATOR)),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
        // Like for the controllers: the default of 50 a second is too low for tests.
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ]
}
