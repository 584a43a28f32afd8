//! The DNS of the cluster: CoreDNS next to the control plane, behind an ordinary Service.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::lan::{self, Lan};
use super::node_files::{DNS, DOMAIN};
use crate::cluster::Program;
use crate::control_plane::{ADMINISTRATOR, ControlPlane};

/// Starts CoreDNS and creates its Service, which Pods can use as soon as a proxy programs it.
pub(super) fn start(
    program: &Path,
    folder: &Path,
    lan: &Lan,
    control_plane: &ControlPlane,
) -> Result<Program> {
    let [ipv4, ipv6] = lan::control_addresses();
    let kubeconfig = control_plane.kubeconfig(ADMINISTRATOR)?;
    let configuration = folder.join("Corefile");
    let text = format!(
        "{DOMAIN}:53 in-addr.arpa:53 ip6.arpa:53 {{\n\
         \x20   bind {ipv4} {ipv6}\n\
         \x20   errors\n\
         \x20   kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{\n\
         \x20       kubeconfig {}\n\
         \x20       ttl 5\n\
         \x20   }}\n\
         }}\n",
        kubeconfig.display()
    );
    fs::write(&configuration, text).context("failed to write the Corefile")?;
    let mut command = lan.control().command(program);
    command.arg("-conf").arg(&configuration);
    let program = Program::start("DNS", command, &folder.join("dns.log"))?;
    control_plane.apply(&objects(&ipv4.to_string()))?;
    Ok(program)
}

fn objects(endpoint: &str) -> String {
    format!(
        "\
apiVersion: v1
kind: Service
metadata: {{name: kube-dns, namespace: kube-system, labels: {{k8s-app: kube-dns}}}}
spec:
  clusterIP: {DNS}
  ports:
    - {{name: dns, port: 53, protocol: UDP}}
    - {{name: dns-tcp, port: 53, protocol: TCP}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: kube-dns
  namespace: kube-system
  labels: {{kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports:
  - {{name: dns, port: 53, protocol: UDP}}
  - {{name: dns-tcp, port: 53, protocol: TCP}}
endpoints:
  - addresses: [{endpoint}]
    conditions: {{ready: true}}
"
    )
}
