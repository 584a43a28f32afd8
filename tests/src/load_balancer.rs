//! A load balancer on loopback in front of several API servers, whose connections a test can cut.
//!
//! ```text
//!   operator --TCP--> load balancer --TCP--> kube-apiserver (each connection to the next one)
//! ```

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail};

/// A running load balancer. Dropping it ends all connections.
#[derive(Debug)]
pub struct LoadBalancer {
    address: SocketAddrV4,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    servers: Vec<SocketAddrV4>,
    accepted: AtomicUsize,
    /// The two ends of each connection since the last cut.
    ends: Mutex<Vec<[TcpStream; 2]>>,
    is_over: AtomicBool,
}

// === impl LoadBalancer ===

impl LoadBalancer {
    /// Listens on a free port of the loopback address and forwards to `servers` in turn.
    pub fn start(servers: &[SocketAddrV4]) -> Result<LoadBalancer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("failed to listen")?;
        let SocketAddr::V4(address) = listener.local_addr()? else {
            bail!("the address is of another family")
        };
        let shared = Arc::new(Shared {
            servers: servers.to_vec(),
            accepted: AtomicUsize::new(0),
            ends: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.is_over.load(Ordering::SeqCst) {
                    return;
                }
                // If the server does not listen, the client finds its connection closed.
                drop(accepting.forward(client));
            }
        });
        Ok(LoadBalancer { address, shared })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// Returns how many connections it has accepted.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Cuts all present connections: neither end hears anything more.
    pub fn cut(&self) {
        let mut ends = self.shared.lock();
        for end in ends.drain(..).flatten() {
            // An error means that the connection has ended already.
            drop(end.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Its thread waits for a connection.
        drop(TcpStream::connect(self.address));
        self.cut();
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<[TcpStream; 2]>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forward(&self, client: TcpStream) -> io::Result<()> {
        let turn = self.accepted.load(Ordering::SeqCst) % self.servers.len();
        let server = TcpStream::connect(self.servers[turn])?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        let ends = [client.try_clone()?, server.try_clone()?];
        self.lock().push(ends);
        // A connection that counts can be cut.
        self.accepted.fetch_add(1, Ordering::SeqCst);
        for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
            thread::spawn(move || copy(from, to));
        }
        Ok(())
    }
}

/// Copies until `from` ends, and then ends `to`.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    drop(io::copy(&mut from, &mut to));
    drop(to.shutdown(Shutdown::Both));
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn connections_go_to_each_server_in_turn_until_they_are_cut() -> Result<()> {
        let servers = [0, 1].map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let [first, second] = servers;
        let servers = [first?, second?];
        let mut addresses = Vec::new();
        for server in &servers {
            if let SocketAddr::V4(address) = server.local_addr()? {
                addresses.push(address);
            }
        }
        let load_balancer = LoadBalancer::start(&addresses)?;
        for server in &servers {
            let mut client = TcpStream::connect(load_balancer.address())?;
            client.write_all(b"?")?;
            let (mut connection, _) = server.accept()?;
            let mut question = [0];
            connection.read_exact(&mut question)?;
            load_balancer.cut();
            assert_eq!(client.read(&mut question)?, 0);
            assert_eq!(connection.read(&mut question)?, 0);
        }
        assert_eq!(load_balancer.accepted(), 2);
        Ok(())
    }
}
