//! SCTP sockets, if the kernel supports them.

use std::io;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

/// `IPPROTO_SCTP` of include/uapi/linux/in.h.
const SCTP: i32 = 132;

/// Creates a one-to-one style socket (RFC 6458, section 4): it is bound, connected, read and
/// written like a TCP socket. Returns `None` if the kernel does not support SCTP.
pub fn sctp_socket(family: Domain) -> io::Result<Option<Socket>> {
    match Socket::new(family, Type::STREAM, Some(Protocol::from(SCTP))) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::PROTONOSUPPORT) => Ok(None),
        Err(error) => Err(error),
    }
}
