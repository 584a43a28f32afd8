//! The kernel's tables of sockets: `/proc/net/tcp` and its siblings (Documentation/networking of
//! Linux, proc_net_tcp).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::net::{IpAddr, SocketAddr};

/// The tables of the calling thread's network namespace. A kernel without IPv6 has two of them.
const TABLES: [&str; 4] = ["tcp", "tcp6", "udp", "udp6"];
/// `TCP_TIME_WAIT` (include/net/tcp_states.h): the connection has ended.
const ENDED: &str = "06";

/// Returns the addresses that sockets of this thread's network namespace have as their own, except
/// those of TCP connections that have ended.
pub fn observe_own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let mut own = BTreeSet::new();
    for table in TABLES {
        let file = match File::open(format!("/proc/thread-self/net/{table}")) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened?,
        };
        for line in BufReader::new(file).lines() {
            own.extend(own_address(&line?));
        }
    }
    Ok(own)
}

fn own_address(line: &str) -> Option<IpAddr> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (own, _, state) = (fields.next()?, fields.next()?, fields.next()?);
    let own = parse_address(own)?.ip();
    (state != ENDED && !own.is_unspecified()).then_some(own)
}

/// Parses an address and port of such a table: 32-bit words in host byte order, and a number. An
/// IPv4 address of an IPv6 socket is returned as an IPv4 address.
pub fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = address.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[at * 4..at * 4 + 4].copy_from_slice(&word(at)?);
            }
            IpAddr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn an_address_counts_while_a_socket_has_it() {
        // An address of the loopback range that no other program uses.
        let own = Ipv4Addr::new(127, 83, 19, 7);
        let is_counted = || {
            let counted = observe_own_addresses().expect("the tables");
            counted.contains(&IpAddr::V4(own))
        };
        assert!(!is_counted());
        let listener = TcpListener::bind((own, 0)).expect("any port");
        assert!(is_counted());
        let address = listener.local_addr().expect("it is bound");
        let client = TcpStream::connect(address).expect("it listens");
        let (server, _) = listener.accept().expect("the connection");
        drop(listener);
        assert!(is_counted());
        // The side that closes first keeps the address until no packet to it can arrive any more.
        drop(server);
        drop(client);
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_counted() {
            assert!(Instant::now() < deadline, "it still counts");
            std::thread::yield_now();
        }
    }

    #[test]
    fn ended_connections_and_headings_have_no_address() {
        let line = |state: &str| format!("   1: 0A006009:2810 0101000A:0050 {state} 0:0 0:0 0 0");
        let address = u32::from_str_radix("0A006009", 16).expect("a number");
        let expected = IpAddr::from(address.to_ne_bytes());
        assert_eq!(own_address(&line("01")), Some(expected));
        assert_eq!(own_address(&line(ENDED)), None);
        assert_eq!(own_address("  sl  local_address rem_address   st"), None);
        assert_eq!(own_address("   1: 00000000:2810 00000000:0000 0A"), None);
    }
}
