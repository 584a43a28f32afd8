//! The limits and timeouts of the relays.

use std::time::Duration;

/// More simultaneous connections, or sessions, than this are a fault of some program, and no normal
/// use of localhost. A TCP connection has two buffers of 8 KiB, so that all of them use 64 MiB; a
/// session has no separate buffer, and [`Limits::udp_bytes`] limits what all sessions queue.
const MOST: usize = 4096;

/// The limits and timeouts of the relays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of open ports.
    pub listeners: usize,
    /// The maximum number of TCP connections, over all ports.
    pub connections: usize,
    /// The maximum number of UDP sessions, over all ports.
    pub sessions: usize,
    /// The maximum number of bytes of queued datagrams, over all UDP sessions, including their
    /// overhead.
    pub udp_bytes: usize,
    /// How many endpoints are tried for a TCP connection.
    pub attempts: usize,
    /// How long an endpoint has to accept a TCP connection.
    pub connect: Duration,
    /// How long a TCP connection may be idle; it ends after between one and two of these.
    pub tcp_idle: Duration,
    /// The idle timeout of a UDP session with at most one request, with or without an answer.
    pub udp_idle: Duration,
    /// The idle timeout of a UDP session with traffic in both directions.
    pub udp_stream_idle: Duration,
    /// The time until a port that could not be opened is tried again. It doubles with each attempt
    /// as long as nothing changes.
    pub retry: Duration,
    /// The maximum of that time.
    pub retry_at_most: Duration,
}

// === impl Limits ===

impl Limits {
    /// Limits that leave more than a third of `descriptors` to the rest of the process: an agent
    /// that cannot open a file or a socket any more would be too high a price for a convenience.
    pub fn within(descriptors: u64) -> Limits {
        let eighth = usize::try_from(descriptors / 8).unwrap_or(usize::MAX);
        Limits {
            listeners: eighth.saturating_mul(2),
            // Each has two sockets.
            connections: eighth.min(MOST),
            sessions: eighth.min(MOST),
            // Datagrams wait only until a task is woken: this is more than 10,000 of those that fit
            // into a packet.
            udp_bytes: 16 << 20,
            attempts: 4,
            // A lost SYN is retransmitted after one second (RFC 6298): one may be lost.
            connect: Duration::from_secs(3),
            // The conntrack timeout that kube-proxy sets for established connections through the
            // kernel.
            tcp_idle: Duration::from_secs(24 * 3600),
            // nf_conntrack_udp_timeout and nf_conntrack_udp_timeout_stream by default
            // (Linux, net/netfilter/nf_conntrack_proto_udp.c).
            udp_idle: Duration::from_secs(30),
            udp_stream_idle: Duration::from_secs(120),
            retry: Duration::from_secs(5),
            // kube-proxy's default syncPeriod, after which it would try again, too.
            retry_at_most: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_may_open_little_keeps_a_third_of_it_for_itself() {
        for descriptors in [64, 1024, 524_288] {
            let limits = Limits::within(descriptors);
            let taken = limits.listeners + 2 * limits.connections + limits.sessions;
            assert!(u64::try_from(taken).expect("fits") <= descriptors * 2 / 3);
            assert!(limits.connections > 0 && limits.sessions > 0);
        }
    }
}
