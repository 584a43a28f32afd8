//! Sockets of SCTP, where the kernel has them.

use std::io;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

/// `IPPROTO_SCTP` of include/uapi/linux/in.h.
const SCTP: i32 = 132;

/// A socket that makes or accepts one association at a time, RFC 6458 section 4: it is bound,
/// connected, read and written as one of TCP. `None` where the kernel knows no SCTP.
pub fn sctp_socket(family: Domain) -> io::Result<Option<Socket>> {
    match Socket::new(family, Type::STREAM, Some(Protocol::from(SCTP))) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::PROTONOSUPPORT) => Ok(None),
        Err(error) => Err(error),
    }
}
