//! Opening a socket.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, NETFILTER, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};
use thiserror::Error;

/// The largest transaction is under 4 MiB; with the default buffer the kernel refuses 3 MiB with
/// EMSGSIZE.
const SEND_BUFFER: usize = 16 << 20;
/// Errors of a large batch come back one message each, all before anyone reads; so do the
/// notifications of a large transaction.
const RECEIVE_BUFFER: usize = 16 << 20;

/// Why a socket could not be opened.
#[derive(Debug, Error)]
#[error("failed to {step} a {subsystem} netlink socket")]
pub struct OpenError {
    pub(crate) subsystem: Subsystem,
    pub(crate) step: &'static str,
    pub(crate) source: std::io::Error,
}

/// A part of the kernel that is spoken to over netlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subsystem {
    /// nfnetlink: nf_tables and connections.
    Netfilter,
    /// Generic netlink: IPVS.
    Generic,
    /// rtnetlink: routes and rules.
    Route,
}

/// A socket with large buffers, and the port the kernel gave it.
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
    // In a user namespace CAP_NET_ADMIN does not reach past the limits; the default buffer then
    // has to do, and small clusters fit it.
    let _ = sockopt::set_socket_send_buffer_size_force(&descriptor, SEND_BUFFER)
        .or_else(|_| sockopt::set_socket_send_buffer_size(&descriptor, SEND_BUFFER));
    let _ = sockopt::set_socket_recv_buffer_size_force(&descriptor, RECEIVE_BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&descriptor, RECEIVE_BUFFER));
    Ok((descriptor, address.pid()))
}

/// Which network namespace this thread is in; `None` where there is no `/proc` to say so.
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
