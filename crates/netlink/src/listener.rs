//! A socket on which the kernel sends notifications of every transaction.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, bind, recv};

use crate::descriptor::{self, OpenError, Subsystem};
use crate::interruption::Interruption;
use crate::notification::{Notification, NotificationCollector, Watched};
use crate::socket::SocketPort;

/// `NFNLGRP_NFTABLES` as a bit of `nl_groups` (include/uapi/linux/netfilter/nfnetlink.h).
const GROUP: u32 = 1 << 6;
/// The kernel joins notifications up to about 8 KiB; the largest single one is that of a rule.
const DATAGRAM: usize = 64 << 10;

/// Receives notifications of other programs' changes to Signpost's objects in the network namespace
/// in which it was opened. While any program on the machine listens, the kernel writes a message
/// for each element of each transaction, Signpost's included.
#[derive(Debug)]
pub struct Listener {
    descriptor: OwnedFd,
    port: u32,
    datagram: Vec<u8>,
    collector: NotificationCollector,
    interruption: Interruption,
}

// === impl Listener ===

impl Listener {
    /// Opens a listener for changes of `watched` objects in families `ip` and `ip6`. It receives
    /// nothing before it [joins](Listener::join), and ignores transactions of the sockets with the
    /// ports `own`.
    pub fn open(watched: Watched, own: Vec<SocketPort>) -> Result<Listener, OpenError> {
        let (descriptor, port) = descriptor::open(Subsystem::Netfilter)?;
        let interruption = Interruption::new().map_err(failed("prepare the interruption of"))?;
        Ok(Listener {
            descriptor,
            port,
            datagram: vec![0; DATAGRAM],
            collector: NotificationCollector::new(
                watched,
                own.into_iter().map(|SocketPort(port)| port).collect(),
            ),
            interruption,
        })
    }

    /// Returns a handle that ends the listener's waiting, from any thread.
    pub fn interruption(&self) -> Interruption {
        self.interruption.clone()
    }

    /// Subscribes to notifications. Needs `CAP_NET_ADMIN` in the network namespace.
    pub fn join(&mut self) -> Result<(), OpenError> {
        // Binding again, to the same port, changes the groups.
        let address = SocketAddrNetlink::new(self.port, GROUP);
        bind(&self.descriptor, &address).map_err(failed("join the group of"))
    }

    /// Waits at most `wait` (without a limit if `None`) and returns other programs' changes,
    /// possibly none. Returns after each datagram, including those about Signpost's own
    /// transactions, and whenever it is interrupted.
    pub fn receive(&mut self, wait: Option<Duration>) -> io::Result<Vec<Notification>> {
        let wait = wait.map(Timespec::try_from).transpose();
        let wait = wait.map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut waited = false;
        loop {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            match recv(&self.descriptor, &mut self.datagram, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => self.collector.overrun(),
                Err(Errno::AGAIN) => {
                    let missed = self.collector.quiet();
                    if waited || missed.is_some() {
                        return Ok(missed.into_iter().collect());
                    }
                    let mut ready = [
                        PollFd::new(&self.descriptor, PollFlags::IN),
                        PollFd::new(&self.interruption, PollFlags::IN),
                    ];
                    match poll(&mut ready, wait.as_ref()) {
                        Err(Errno::INTR) | Ok(_) => waited = true,
                        Err(errno) => return Err(errno.into()),
                    }
                }
                Err(errno) => return Err(errno.into()),
                Ok((_, length)) if length > self.datagram.len() => self.collector.illegible(),
                Ok((_, length)) => return Ok(self.collector.take(&self.datagram[..length])),
            }
        }
    }
}

fn failed(step: &'static str) -> impl Fn(Errno) -> OpenError {
    descriptor::failed(Subsystem::Netfilter, step)
}
