//! What each program is started with.

use std::net::SocketAddrV4;

use super::folder::{Folder, argument};
use super::{ADMINISTRATOR, Kubelets, Options};

/// Where cluster IPs are taken from: IPv4, the first family of Services, and IPv6.
pub const SERVICE_CIDRS: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];

/// Who signs the tokens of service accounts.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The controllers whose work tests see where they act for the kubelets. Not the one that watches
/// nodes: it would declare all of them dead.
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
        // It wants an address to advertise; nobody asks for it.
        "--advertise-client-urls=http://localhost:2379".to_owned(),
        format!(
            "--listen-peer-urls=unix://{}",
            folder.etcd_peer_socket().display()
        ),
        // The data goes with the test: there is no power cut that it must survive.
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
    // No Service may have a loopback address as its endpoint.
    let endpoints = if ip.is_loopback() { "none" } else { "lease" };
    let who_runs_pods = match options.kubelets {
        // With the plugin, a Pod in a new namespace is refused until a controller has made the account.
        Kubelets::Acted => vec![
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
        ],
        Kubelets::Real => vec![
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            // No DNS knows the names of the nodes.
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
        // Agents are privileged Pods.
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
        // Once the API server was away, these controllers ask it again a minute and more after kubelets
        // do, on a busy machine. By the default of 50 seconds they then take nodes for dead that renewed
        // their leases all the time, and call the servers there not ready.
        "--node-monitor-grace-period=300s".to_owned(),
        // It serves nothing, so it takes no port that a second control plane would want.
        "--secure-port=0".to_owned(),
        // The defaults of 20 a second make a test with hundreds of Services wait for them.
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ]
}

pub(super) fn of_scheduler(folder: &Folder) -> Vec<String> {
    vec![
        argument("kubeconfig", &folder.kubeconfig(ADMINISTRATOR)),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
        // As for the controllers: the default of 50 a second is for machines with other work.
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ]
}
