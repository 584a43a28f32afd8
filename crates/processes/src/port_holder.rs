//! Finds the process that uses a port on which this process cannot listen. The search runs only then,
//! because it reads the sockets of the network namespace and the descriptors of every process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;

use address::Protocol;
use tokio::task::spawn_blocking;

use crate::socket_table::parse_address;
use crate::{Process, View, observe_process, observe_view};

/// An address on which this process must listen. Sockets of SCTP are not searched.
pub type ListenAddress = (Protocol, SocketAddr);

/// How much of a socket table is read, in bytes: some 25,000 sockets. Listening sockets come first.
const LONGEST_TABLE: u64 = 4 << 20;
/// How many file descriptors are checked, which takes some tenths of a second.
const MOST_DESCRIPTORS: usize = 200_000;
/// `TCP_LISTEN` (include/net/tcp_states.h), as in the table.
const LISTENING: &str = "0A";

/// The process that uses a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// This process.
    Process(Process),
    /// A process of this user whose descriptors are hidden.
    Hidden {
        /// The user id of the socket.
        user: u32,
        /// Which processes the search could see.
        view: View,
        /// The address that it uses.
        address: ListenAddress,
    },
}

/// A socket from a table in /proc/net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Socket {
    address: SocketAddr,
    user: u32,
    inode: u64,
    state: State,
}

/// The state of a socket, by how likely it blocks a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// One connection of a client that happens to use this port.
    Other,
    /// Listening.
    Listening,
}

/// Returns whether `error` means that the port is in use.
pub fn is_taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// Returns which process uses each of `addresses`, as far as this process can see. Does not block
/// other tasks; cancel safe.
pub async fn observe_holders(
    addresses: BTreeSet<ListenAddress>,
) -> BTreeMap<ListenAddress, Holder> {
    if addresses.is_empty() {
        return BTreeMap::new();
    }
    match spawn_blocking(move || observe_now(&addresses)).await {
        Ok(holders) => holders,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down, and this task with it.
        Err(_) => std::future::pending().await,
    }
}

/// Returns text to append to the error for `address`: the process that uses it, or nothing.
pub async fn describe_holder(protocol: Protocol, address: SocketAddr) -> String {
    let place = (protocol, address);
    let mut holders = observe_holders([place].into()).await;
    holders
        .remove(&place)
        .map_or_else(String::new, |holder| format!(": {holder}"))
}

fn observe_now(addresses: &BTreeSet<ListenAddress>) -> BTreeMap<ListenAddress, Holder> {
    let tables: BTreeMap<Protocol, Vec<Socket>> = [Protocol::Tcp, Protocol::Udp]
        .into_iter()
        .filter(|protocol| addresses.iter().any(|(other, _)| other == protocol))
        .map(|protocol| (protocol, observe_sockets(protocol, addresses)))
        .collect();
    let found = addresses.iter().filter_map(|address| {
        let sockets = tables.get(&address.0)?;
        Some((*address, choose(address.1, sockets)?))
    });
    let found: BTreeMap<ListenAddress, Socket> = found.collect();
    let inodes = found.values().map(|socket| socket.inode).collect();
    let processes = observe_owners(&inodes);
    let view = observe_view();
    let holder = |(address, socket): (ListenAddress, Socket)| {
        let process = processes.get(&socket.inode).cloned();
        let user = socket.user;
        let hidden = Holder::Hidden {
            user,
            view,
            address,
        };
        (address, process.map_or(hidden, Holder::Process))
    };
    found.into_iter().map(holder).collect()
}

/// Returns the socket that blocks `address`. Prefers a listening socket, then one on exactly that
/// address.
fn choose(address: SocketAddr, sockets: &[Socket]) -> Option<Socket> {
    let in_the_way = sockets.iter().filter(|socket| {
        let (bound, needed) = (socket.address.ip(), address.ip());
        let is_any = bound.is_unspecified() || needed.is_unspecified();
        socket.address.port() == address.port() && (is_any || bound == needed)
    });
    in_the_way
        .max_by_key(|socket| (socket.state, socket.address.ip() == address.ip()))
        .copied()
}

/// Reads the sockets of this network namespace on the ports of `addresses`.
fn observe_sockets(protocol: Protocol, addresses: &BTreeSet<ListenAddress>) -> Vec<Socket> {
    let files: &[&str] = match protocol {
        Protocol::Tcp => &["tcp", "tcp6"],
        Protocol::Udp => &["udp", "udp6"],
        Protocol::Sctp => &[],
    };
    let ports: BTreeSet<u16> = addresses
        .iter()
        .map(|(_, address)| address.port())
        .collect();
    let mut sockets = Vec::new();
    for file in files {
        // A kernel without IPv6 has only one of the files.
        let Ok(file) = File::open(format!("/proc/thread-self/net/{file}")) else {
            continue;
        };
        let lines = BufReader::new(file.take(LONGEST_TABLE)).lines();
        let read = lines
            .map_while(Result::ok)
            .filter_map(|line| parse_socket(protocol, &line));
        sockets.extend(read.filter(|socket| ports.contains(&socket.address.port())));
    }
    sockets
}

/// Parses a line of such a table:
/// `0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 123 …`.
fn parse_socket(protocol: Protocol, line: &str) -> Option<Socket> {
    let mut fields = line.split_ascii_whitespace();
    let (_, address) = (fields.next()?, fields.next()?);
    let (_, state) = (fields.next()?, fields.next()?);
    let mut fields = fields.skip(3);
    let user = fields.next()?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    // A socket without an inode no longer belongs to a process.
    (inode != 0).then_some(Socket {
        address: parse_address(address)?,
        user,
        inode,
        state: match (protocol, state) {
            (Protocol::Tcp, LISTENING) | (Protocol::Udp, _) => State::Listening,
            (Protocol::Tcp | Protocol::Sctp, _) => State::Other,
        },
    })
}

/// Returns the process that has each of these sockets open, if its descriptors are visible.
fn observe_owners(inodes: &BTreeSet<u64>) -> BTreeMap<u64, Process> {
    let mut owners = BTreeMap::new();
    let mut left = MOST_DESCRIPTORS;
    let Ok(processes) = fs::read_dir("/proc") else {
        return owners;
    };
    for entry in processes.flatten() {
        if owners.len() == inodes.len() {
            break;
        }
        let id = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        // The process may have ended, and those of another user may be hidden.
        let (Some(id), Ok(descriptors)) = (id, fs::read_dir(entry.path().join("fd"))) else {
            continue;
        };
        for descriptor in descriptors.flatten().take(left) {
            left -= 1;
            let link = fs::read_link(descriptor.path()).unwrap_or_default();
            let inode = link.to_str().and_then(parse_inode);
            if let Some(inode) = inode.filter(|inode| inodes.contains(inode))
                && let Some(process) = observe_process(id)
            {
                owners.insert(inode, process);
            }
        }
    }
    owners
}

/// Parses `socket:[123]`.
fn parse_inode(link: &str) -> Option<u64> {
    let inode = link.strip_prefix("socket:[")?.strip_suffix(']')?;
    inode.parse().ok()
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Process(process) => write!(f, "{process} uses it"),
            Holder::Hidden {
                user,
                view,
                address,
            } => {
                let (kind, port) = match address {
                    (Protocol::Tcp, address) => ("t", address.port()),
                    (Protocol::Udp, address) => ("u", address.port()),
                    (Protocol::Sctp, address) => ("S", address.port()),
                };
                let from = match view {
                    View::Machine => "here",
                    View::Container => "this container",
                };
                write!(
                    f,
                    "a process of user {user} uses it, which cannot be seen from {from}: \
                     ss -Hl{kind}np 'sport = :{port}' on the node names it"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};

    use super::*;

    /// The test's own process has the ports, and can see itself.
    #[test]
    fn t62_the_process_that_has_a_port_is_named() {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
        let address = |address: io::Result<SocketAddr>| address.expect("it is bound");
        let (tcp_at, udp_at) = (address(tcp.local_addr()), address(udp.local_addr()));
        let taken = TcpListener::bind(tcp_at).expect_err("it is taken");
        assert!(is_taken(&taken), "{taken}");
        // A socket on all addresses blocks each single address, and the other way sync.
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), tcp_at.port());
        let one = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), udp_at.port());
        let address = [
            (Protocol::Tcp, tcp_at),
            (Protocol::Tcp, any),
            (Protocol::Udp, one),
        ];
        let holders = observe_now(&address.into());
        assert_eq!(holders.len(), address.len(), "{holders:?}");
        for holder in holders.values() {
            let text = holder.to_string();
            assert!(
                text.contains(&format!("(process {}) uses it", std::process::id())),
                "{text}"
            );
        }
        drop((tcp, udp));
        assert_eq!(observe_now(&address.into()), BTreeMap::new());
    }

    #[test]
    fn what_cannot_be_seen_is_reported_with_what_names_it() {
        let address = (
            Protocol::Udp,
            SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 53),
        );
        let (user, view) = (101, View::Container);
        assert_eq!(
            Holder::Hidden {
                user,
                view,
                address
            }
            .to_string(),
            "a process of user 101 uses it, which cannot be seen from this container: \
             ss -Hlunp 'sport = :53' on the node names it"
        );
    }

    #[test]
    fn lines_of_the_kernels_tables_are_sockets() {
        let line = "   1: 00000000000000000000000000000000:2810 00000000000000000000000000000000:0000 0A \
                    00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0";
        let socket = parse_socket(Protocol::Tcp, line).expect("it is one");
        let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 10256);
        assert_eq!(
            (socket.address, socket.user, socket.inode),
            (address, 1000, 4711)
        );
        assert_eq!(socket.state, State::Listening);
        let heading =
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid";
        assert_eq!(parse_socket(Protocol::Tcp, heading), None);
        assert_eq!(parse_socket(Protocol::Tcp, "1: 0100007F"), None);
        let gone = line.replace("4711", "0");
        assert_eq!(parse_socket(Protocol::Tcp, &gone), None);
    }
}
