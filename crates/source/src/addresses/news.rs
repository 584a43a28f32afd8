//! The kernel's word that addresses have come or gone.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

/// `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR` (include/uapi/linux/rtnetlink.h).
const GROUPS: u32 = 0x10 | 0x100;
/// For how long what belongs together is gathered: an interface comes with several addresses, and a
/// pod's link with a link-local one of its own.
const GATHERED: Duration = Duration::from_millis(50);

/// Hears of every address that comes or goes in the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct News(AsyncFd<OwnedFd>);

// === impl News ===

impl News {
    /// Begins to hear. Needs no privilege.
    pub(super) fn open() -> io::Result<News> {
        // NETLINK_ROUTE is the protocol that has no name there: its number is 0.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        #[expect(
            deprecated,
            reason = "unsound with what does not keep its descriptor, which this does; what took its \
                      place is unsafe to call"
        )]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE)?;
        Ok(News(socket))
    }

    /// Waits for addresses to come or go, and a moment longer. Does not return which: the kernel may have
    /// dropped notifications. Cancel safe.
    pub(super) async fn arrive(&mut self) -> io::Result<()> {
        loop {
            let mut readable = self.0.readable().await?;
            sleep(GATHERED).await;
            let heard = take(self.0.get_ref())?;
            readable.clear_ready();
            if heard {
                return Ok(());
            }
        }
    }
}

/// Takes everything that is there; whether there was anything.
fn take(socket: &OwnedFd) -> io::Result<bool> {
    // Its content is not read, so it need not fit.
    let mut datagram = [0; 16];
    let mut heard = false;
    loop {
        match recv(socket, &mut datagram, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return Ok(heard),
            Err(Errno::INTR) => {}
            // Some were dropped.
            Ok(_) | Err(Errno::NOBUFS) => heard = true,
            Err(errno) => return Err(errno.into()),
        }
    }
}
