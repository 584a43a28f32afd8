//! Access to the API server from outside the cluster's network.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};

use super::RealCluster;
use crate::control_plane::ADMINISTRATOR;
use crate::network::Namespace;

/// Forwards a loopback port into the network of the control plane until the process ends.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
}

// === impl Gateway ===

impl Gateway {
    /// Opens the port.
    pub fn open(cluster: &RealCluster) -> Result<Gateway> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .context("failed to listen on loopback for the API server")?;
        let address = listener.local_addr()?;
        let network = cluster.lan().control().clone();
        let server = cluster.control_plane().address();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let network = network.clone();
                // The client notices a failed connection itself.
                thread::spawn(move || carry(&client, &network, server.into()));
            }
        });
        Ok(Gateway { address })
    }

    /// Writes a self-contained kubeconfig of the administrator that uses this port.
    pub fn save_kubeconfig(&self, cluster: &RealCluster, file: &Path) -> Result<()> {
        let control_plane = cluster.control_plane();
        let kubeconfig = control_plane.kubeconfig(ADMINISTRATOR)?;
        let set = |arguments: &[&str]| -> Result<()> {
            let all = ["config", "set-cluster", "test"].iter().chain(arguments);
            let mut command = control_plane.kubectl_command(file);
            command.args(all);
            let output = command.output().context("failed to run kubectl")?;
            anyhow::ensure!(output.status.success(), "kubectl config failed: {output:?}");
            Ok(())
        };
        fs::copy(&kubeconfig, file)
            .with_context(|| format!("failed to write {}", file.display()))?;
        let authority = control_plane.certificate_authority();
        set(&[
            &format!("--server=https://{}", self.address),
            // The certificate contains the address in the cluster's network, not this one.
            "--tls-server-name=kubernetes",
            &format!("--certificate-authority={}", authority.display()),
            "--embed-certs=true",
        ])
    }
}

/// Forwards a connection until both sides have finished sending.
fn carry(client: &TcpStream, network: &Namespace, server: SocketAddr) -> Result<()> {
    let server = network.enter(|| TcpStream::connect(server))??;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let upward = thread::spawn(move || {
        let carried = io::copy(&mut from_client, &mut to_server);
        // An error means that the other side has closed the connection.
        drop(to_server.shutdown(Shutdown::Write));
        carried
    });
    let (mut from_server, mut to_client) = (server, client.try_clone()?);
    let downward = io::copy(&mut from_server, &mut to_client);
    drop(to_client.shutdown(Shutdown::Both));
    drop(upward.join());
    downward.map(drop).context("the connection broke")
}
