//! A control plane on this machine, for tests that run in an emulated one.

use std::path::Path;

use anyhow::Result;

use crate::control_link::API_SERVER;
use crate::control_plane::{ControlPlane, KUBE_PROXY, Options, User};
use crate::network::{Namespace, Network};

/// A control plane in a namespace in which nothing else runs, other than the emulated machine.
#[derive(Debug)]
pub struct HostControlPlane {
    // Dropped in this order: the programs run in the namespace.
    control_plane: ControlPlane,
    namespace: Namespace,
    #[expect(dead_code, reason = "held for the sake of its end")]
    network: Network,
}

// === impl HostControlPlane ===

impl HostControlPlane {
    /// Starts it at [`API_SERVER`], with the user of kube-proxy.
    pub fn start() -> Result<HostControlPlane> {
        let mut network = Network::new()?;
        let [namespace] = network.add_namespaces(["host"])?;
        namespace.configure(&format!("addr add {API_SERVER}/32 dev lo\n"))?;
        let control_plane = ControlPlane::start(Options {
            bind: API_SERVER,
            network: Some(namespace.clone()),
            users: vec![User::named(KUBE_PROXY)],
            ..Options::default()
        })?;
        Ok(HostControlPlane {
            control_plane,
            namespace,
            network,
        })
    }

    /// Returns the namespace of the API server, in which to run the emulated machine.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the folder of its files.
    pub fn folder(&self) -> &Path {
        self.control_plane.folder()
    }
}
