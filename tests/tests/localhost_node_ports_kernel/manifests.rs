//! The agent's directory of manifests.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use dataplane::Family;
use testkit::address_plan as addresses;

use crate::stage::{NODE_PORT, SERVER_PORT, SERVERS};

/// The directory, which contains only files written here.
#[derive(Debug)]
pub(crate) struct Manifests {
    directory: PathBuf,
}

/// The value of `nodePorts.localhost` in the profile.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Localhost {
    Omitted,
    None,
    Userspace,
}

/// The external traffic policy of the Service.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Policy {
    Cluster,
    Local,
}

// === impl Manifests ===

impl Manifests {
    /// Creates a Node, and a Service with all endpoints.
    pub(crate) fn create_in(folder: &Path) -> Result<Manifests> {
        let directory = folder.join("manifests");
        fs::create_dir(&directory)?;
        let manifests = Manifests { directory };
        manifests.commit("node.yaml", &node())?;
        manifests.commit_service(Policy::Cluster)?;
        manifests.commit_endpoints(&SERVERS.map(|(name, _, _)| name).into())?;
        Ok(manifests)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn commit_profile(&self, localhost: Localhost) -> Result<()> {
        let node_ports = match localhost {
            Localhost::Omitted => "{}",
            Localhost::None => "{localhost: none}",
            Localhost::Userspace => "{localhost: userspace}",
        };
        let profile = format!(
            "apiVersion: signpost.dev/v1alpha1\n\
             kind: ProxyProfile\n\
             metadata: {{name: default}}\n\
             spec: {{nodePorts: {node_ports}}}\n"
        );
        self.commit("profile.yaml", &profile)
    }

    pub(crate) fn commit_service(&self, policy: Policy) -> Result<()> {
        let policy = match policy {
            Policy::Cluster => "Cluster",
            Policy::Local => "Local",
        };
        let [ipv4, ipv6] = Family::ALL.map(|family| addresses::cluster_ip(10, family));
        let service = format!(
            "apiVersion: v1\n\
             kind: Service\n\
             metadata: {{namespace: shop, name: web}}\n\
             spec:\n  \
               type: NodePort\n  \
               externalTrafficPolicy: {policy}\n  \
               clusterIP: {ipv4}\n  \
               clusterIPs: [{ipv4}, \"{ipv6}\"]\n  \
               ipFamilies: [IPv4, IPv6]\n  \
               ports:\n  \
               - {{name: http, protocol: TCP, port: 80, nodePort: {NODE_PORT}}}\n  \
               - {{name: quic, protocol: UDP, port: 80, nodePort: {NODE_PORT}}}\n"
        );
        self.commit("service.yaml", &service)
    }

    pub(crate) fn commit_endpoints(&self, servers: &BTreeSet<&str>) -> Result<()> {
        let mut slices = String::new();
        for family in Family::ALL {
            write!(
                slices,
                "---\n\
                 apiVersion: discovery.k8s.io/v1\n\
                 kind: EndpointSlice\n\
                 metadata:\n  \
                   namespace: shop\n  \
                   name: web-{}\n  \
                   labels: {{kubernetes.io/service-name: web}}\n\
                 addressType: {family}\n\
                 ports:\n\
                 - {{name: http, protocol: TCP, port: {SERVER_PORT}}}\n\
                 - {{name: quic, protocol: UDP, port: {SERVER_PORT}}}\n\
                 endpoints:{}\n",
                family.to_string().to_lowercase(),
                if servers.is_empty() { " []" } else { "" },
            )?;
            for (name, node, pod) in SERVERS {
                if servers.contains(name) {
                    writeln!(
                        slices,
                        "- {{addresses: [\"{}\"], nodeName: {}, conditions: {{ready: true}}}}",
                        addresses::pod_address(node, pod, family),
                        addresses::node_name(node),
                    )?;
                }
            }
        }
        self.commit("endpoints.yaml", &slices)
    }

    /// Replaces a file atomically.
    fn commit(&self, file: &str, text: &str) -> Result<()> {
        // Next to the directory: inside it, a partial file could be read as a manifest.
        let new = self.directory.with_extension("new");
        let failed = || format!("failed to write {file}");
        fs::write(&new, text).with_context(failed)?;
        fs::rename(&new, self.directory.join(file)).with_context(failed)
    }
}

fn node() -> String {
    let [ipv4, ipv6] = Family::ALL.map(|family| addresses::node_address(1, family));
    let [pods_ipv4, pods_ipv6] = Family::ALL.map(|family| addresses::pod_cidr(1, family));
    format!(
        "apiVersion: v1\n\
         kind: Node\n\
         metadata: {{name: {}}}\n\
         spec: {{podCIDR: {pods_ipv4}, podCIDRs: [{pods_ipv4}, \"{pods_ipv6}\"]}}\n\
         status:\n  \
           addresses:\n  \
           - {{type: InternalIP, address: {ipv4}}}\n  \
           - {{type: InternalIP, address: \"{ipv6}\"}}\n",
        addresses::NODE
    )
}
