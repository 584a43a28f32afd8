//! A way to the API server for those who are not in the cluster's network.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};

use super::RealCluster;
use crate::control_plane::ADMINISTRATOR;
use crate::network::Namespace;

/// A port on loopback whose connections come out in the network of the control plane. It lasts as
/// long as the process.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
}

// === impl Gateway ===

impl Gateway {
    /// Opens it.
    pub fn open(cluster: &RealCluster) -> Result<Gateway> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .context("failed to listen on loopback for the API server")?;
        let address = listener.local_addr()?;
        let network = cluster.lan().control().clone();
        let server = cluster.control_plane().address();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let network = network.clone();
                // A connection that fails is its client's to notice.
                thread::spawn(move || carry(&client, &network, server.into()));
            }
        });
        Ok(Gateway { address })
    }

    /// Writes a kubeconfig of the administrator that goes through here. It has everything in it.
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
            // The certificate names the address in the cluster's network, not this one.
            "--tls-server-name=kubernetes",
            &format!("--certificate-authority={}", authority.display()),
            "--embed-certs=true",
        ])
    }
}

/// Carries a connection until both sides have said all.
fn carry(client: &TcpStream, network: &Namespace, server: SocketAddr) -> Result<()> {
    let server = network.enter(|| TcpStream::connect(server))??;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let upward = thread::spawn(move || {
        let carried = io::copy(&mut from_client, &mut to_server);
        // An error is that the other side has ended it.
        drop(to_server.shutdown(Shutdown::Write));
        carried
    });
    let (mut from_server, mut to_client) = (server, client.try_clone()?);
    let downward = io::copy(&mut from_server, &mut to_client);
    drop(to_client.shutdown(Shutdown::Both));
    drop(upward.join());
    downward.map(drop).context("the connection broke")
}
