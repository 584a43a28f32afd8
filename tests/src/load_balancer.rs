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
    /// The connections that were not cut.
    connections: Mutex<Vec<Connection>>,
    is_over: AtomicBool,
}

/// A connection of a client to a server.
#[derive(Debug)]
struct Connection {
    server: SocketAddrV4,
    /// Its two ends.
    ends: [TcpStream; 2],
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
            connections: Mutex::default(),
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
        for connection in self.shared.lock().drain(..) {
            connection.cut();
        }
    }

    /// Cuts the present connections to the server of the newest one; those to others stay.
    pub fn cut_one_server(&self) {
        let mut connections = self.shared.lock();
        if let Some(server) = connections.last().map(|connection| connection.server) {
            for connection in connections.extract_if(.., |it| it.server == server) {
                connection.cut();
            }
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
    fn lock(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn forward(&self, client: TcpStream) -> io::Result<()> {
        let turn = self.accepted.load(Ordering::SeqCst) % self.servers.len();
        let address = self.servers[turn];
        let server = TcpStream::connect(address)?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        let ends = [client.try_clone()?, server.try_clone()?];
        self.lock().push(Connection {
            server: address,
            ends,
        });
        // A connection that counts can be cut.
        self.accepted.fetch_add(1, Ordering::SeqCst);
        for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
            thread::spawn(move || copy(from, to));
        }
        Ok(())
    }
}

// === impl Connection ===

impl Connection {
    fn cut(self) {
        for end in self.ends {
            // An error means that the connection has ended already.
            drop(end.shutdown(Shutdown::Both));
        }
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

    use std::time::Duration;

    use super::*;
    use crate::deadline::wait_for;

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

    #[test]
    fn one_server_cuts_its_connections_and_the_other_keeps_its_own() -> Result<()> {
        let servers = [
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
        ];
        let mut addresses = Vec::new();
        for server in &servers {
            if let SocketAddr::V4(address) = server.local_addr()? {
                addresses.push(address);
            }
        }
        let load_balancer = LoadBalancer::start(&addresses)?;
        let mut ends = Vec::new();
        for server in &servers {
            let client = TcpStream::connect(load_balancer.address())?;
            let (connection, _) = server.accept()?;
            ends.push((client, connection));
            let is_counted = || Ok((load_balancer.accepted() == ends.len()).then_some(()));
            wait_for(
                "the connection to count",
                Duration::from_secs(10),
                is_counted,
            )?;
        }
        load_balancer.cut_one_server();
        let mut question = [0];
        let (second, first) = (ends.pop().context("two")?, ends.pop().context("two")?);
        let (mut client, _connection) = second;
        assert_eq!(client.read(&mut question)?, 0);
        let (mut client, mut connection) = first;
        client.write_all(b"?")?;
        connection.read_exact(&mut question)?;
        Ok(())
    }
}
