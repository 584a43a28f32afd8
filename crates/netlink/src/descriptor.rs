//! Opens netlink sockets.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, NETFILTER, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};
use thiserror::Error;

/// The size of the send buffer. The largest transaction is under 4 MiB; with the default buffer the
/// kernel refuses 3 MiB with EMSGSIZE.
const SEND_BUFFER: usize = 16 << 20;
/// The size of the receive buffer. The kernel queues the errors of a large batch, one message each,
/// before any of them is read; likewise the notifications of a large transaction.
const RECEIVE_BUFFER: usize = 16 << 20;

/// Why a socket could not be opened.
#[derive(Debug, Error)]
#[error("failed to {step} a {subsystem} netlink socket")]
pub struct OpenError {
    pub(crate) subsystem: Subsystem,
    pub(crate) step: &'static str,
    pub(crate) source: std::io::Error,
}

/// A kernel subsystem with a netlink interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subsystem {
    /// nfnetlink: nf_tables and connection tracking.
    Netfilter,
    /// Generic netlink: IPVS.
    Generic,
    /// rtnetlink: routes and rules.
    Route,
}

/// Opens a socket with large buffers. Returns it with the port that the kernel assigned.
pub(crate) fn open(subsystem: Subsystem) -> Result<(OwnedFd, u32), OpenError> {
    let protocol = match subsystem {
        Subsystem::Netfilter => Some(NETFILTER),
        Subsystem::Generic => Some(GENERIC),
        // NETLINK_ROUTE is 0, which stands for no protocol.
        Subsystem::Route => None,
    };
    let failed = |step| failed(subsystem, step);
    let descriptor = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        protocol,
    )
    .map_err(failed("open"))?;
    bind(&descriptor, &SocketAddrNetlink::new(0, 0)).map_err(failed("bind"))?;
    let address = getsockname(&descriptor).map_err(failed("name"))?;
    let address = SocketAddrNetlink::try_from(address).map_err(failed("name"))?;
    // In a user namespace, CAP_NET_ADMIN does not allow exceeding the limits. The default buffer
    // then has to suffice; it does for small clusters.
    let _ = sockopt::set_socket_send_buffer_size_force(&descriptor, SEND_BUFFER)
        .or_else(|_| sockopt::set_socket_send_buffer_size(&descriptor, SEND_BUFFER));
    let _ = sockopt::set_socket_recv_buffer_size_force(&descriptor, RECEIVE_BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&descriptor, RECEIVE_BUFFER));
    Ok((descriptor, address.pid()))
}

/// The network namespace of this thread; `None` without `/proc`.
pub(crate) fn observe_namespace() -> Option<PathBuf> {
    std::fs::read_link("/proc/thread-self/ns/net").ok()
}

pub(crate) fn failed(subsystem: Subsystem, step: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError {
        subsystem,
        step,
        source: errno.into(),
    }
}

impl fmt::Display for Subsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subsystem::Netfilter => "netfilter",
            Subsystem::Generic => "generic",
            Subsystem::Route => "route",
        })
    }
}
