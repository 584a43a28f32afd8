//! Requests to the kernel and its answers, for every subsystem.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, recv, sendto};

/// The kernel answers when it is done, and it is done in milliseconds; a minute is a hang.
const ANSWER_DEADLINE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// Sends `bytes` to the kernel.
pub(crate) fn send(descriptor: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    // To the kernel: port 0, no groups.
    let kernel = SocketAddrNetlink::new(0, 0);
    loop {
        match sendto(descriptor, bytes, SendFlags::empty(), &kernel) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => return Ok(()),
        }
    }
}

/// Waits for the next datagram of the kernel and returns how much of `datagram` it fills. Fails with
/// `TimedOut` when none comes within a minute, and with `FileTooLarge` when it does not fit; after
/// any error, what was asked may still be answered.
pub(crate) fn receive(descriptor: &OwnedFd, datagram: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(
            descriptor,
            &mut *datagram,
            RecvFlags::TRUNC | RecvFlags::DONTWAIT,
        ) {
            // Seldom: the kernel answers a transaction before `sendto` returns, and writes more of a
            // dump whenever some of it is read.
            Err(Errno::AGAIN) => wait(descriptor)?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok((_, length)) if length > datagram.len() => {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            Ok((_, length)) => return Ok(length),
        }
    }
}

/// Until there is something to receive.
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
