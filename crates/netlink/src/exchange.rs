//! Sends requests to the kernel and receives replies, for every subsystem.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, recv, sendto};

/// The longest wait for a reply. The kernel normally replies within milliseconds; a minute is a
/// hang.
const ANSWER_DEADLINE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// Sends `bytes` to the kernel.
pub(crate) fn send(descriptor: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    // Port 0 and no groups address the kernel.
    let kernel = SocketAddrNetlink::new(0, 0);
    loop {
        match sendto(descriptor, bytes, SendFlags::empty(), &kernel) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => return Ok(()),
        }
    }
}

/// Waits for the next datagram from the kernel and returns its length in `datagram`. Fails with
/// `TimedOut` if none arrives within a minute, and with `FileTooLarge` if it does not fit. After
/// any error, the reply to the request may still arrive.
pub(crate) fn receive(descriptor: &OwnedFd, datagram: &mut [u8]) -> io::Result<usize> {
    loop {
        match receive_arrived(descriptor, datagram)? {
            Some(length) => return Ok(length),
            // Rare: the kernel answers a transaction before `sendto` returns, and continues a dump
            // whenever part of it is read.
            None => wait(descriptor)?,
        }
    }
}

/// Like [`receive`], but returns `None` instead of waiting if no datagram has arrived.
pub(crate) fn receive_arrived(
    descriptor: &OwnedFd,
    datagram: &mut [u8],
) -> io::Result<Option<usize>> {
    loop {
        match recv(
            descriptor,
            &mut *datagram,
            RecvFlags::TRUNC | RecvFlags::DONTWAIT,
        ) {
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok((_, length)) if length > datagram.len() => {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            Ok((_, length)) => return Ok(Some(length)),
        }
    }
}

/// Waits until the socket is readable.
fn wait(descriptor: &OwnedFd) -> io::Result<()> {
    let mut ready = [PollFd::new(descriptor, PollFlags::IN)];
    match poll(&mut ready, Some(&ANSWER_DEADLINE)) {
        Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
