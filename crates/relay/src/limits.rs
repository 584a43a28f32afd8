//! How much is relayed at once, and how long nothing may happen.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More connections, or sessions, than this at once are a fault of some program, and no normal use of localhost.
/// A TCP connection has two buffers of 8 KiB, so that all of them have 64 MiB; a session has none of
/// its own, and what waits for all of them together is [`Limits::udp_bytes`].
const MOST: usize = 4096;

/// What relays may take, and how long they wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Ports listened on.
    pub listeners: usize,
    /// TCP connections at once, over all ports.
    pub connections: usize,
    /// UDP sessions at once, over all ports.
    pub sessions: usize,
    /// Bytes of datagrams that wait to be sent on, over all UDP sessions, with what it takes to keep
    /// them.
    pub udp_bytes: usize,
    /// Endpoints a TCP connection is offered to before it is given up.
    pub attempts: usize,
    /// How long an endpoint has to accept a TCP connection.
    pub connect: Duration,
    /// How long a TCP connection may carry nothing; it ends between one and two of these.
    pub tcp_idle: Duration,
    /// How long a UDP session of one question, with or without an answer, may carry nothing.
    pub udp_idle: Duration,
    /// How long a UDP session with traffic both ways may carry nothing.
    pub udp_stream_idle: Duration,
    /// The time until a port that is refused is tried again. It doubles from one attempt to the next
    /// for as long as nothing changes.
    pub retry: Duration,
    /// What that time never grows beyond.
    pub retry_at_most: Duration,
}

// === impl Limits ===

impl Limits {
    /// What leaves more than a third of `descriptors` to the rest of the process: an agent that
    /// cannot open a file or a socket any more would be the higher price for a convenience.
    pub fn within(descriptors: u64) -> Limits {
        let eighth = usize::try_from(descriptors / 8).unwrap_or(usize::MAX);
        Limits {
            listeners: eighth.saturating_mul(2),
            // Each has two sockets.
            connections: eighth.min(MOST),
            sessions: eighth.min(MOST),
            // Datagrams wait for as long as a task takes to be woken: this is more than 10,000 of
            // those that fit into a packet.
            udp_bytes: 16 << 20,
            attempts: 4,
            // A lost SYN is sent again after one second (RFC 6298): one may be lost.
            connect: Duration::from_secs(3),
            // What kube-proxy asks of conntrack for connections that pass through the kernel.
            tcp_idle: Duration::from_secs(24 * 3600),
            // nf_conntrack_udp_timeout and nf_conntrack_udp_timeout_stream by default
            // (Linux, net/netfilter/nf_conntrack_proto_udp.c).
            udp_idle: Duration::from_secs(30),
            udp_stream_idle: Duration::from_secs(120),
            retry: Duration::from_secs(5),
            // kube-proxy's syncPeriod by default, after which it would try again too.
            retry_at_most: Duration::from_secs(30),
        }
    }
}

/// Raises the soft limit of descriptors to the hard limit, and returns it. By default, a process may
/// open 1024 and raise that to half a million; Go programs, kube-proxy among them, do so at their start.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let granted = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    granted.unwrap_or(u64::MAX)
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
