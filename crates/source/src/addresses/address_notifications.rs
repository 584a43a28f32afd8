//! Kernel notifications of added and removed addresses and interfaces.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use super::WatchScope;

/// `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR` (include/uapi/linux/rtnetlink.h).
const ADDRESSES: u32 = 0x10 | 0x100;
/// `RTMGRP_LINK`.
const INTERFACES: u32 = 0x1;
/// How long notifications are gathered into one: an interface gets several addresses at once, and a
/// pod's link also gets a link-local one.
const GATHERED: Duration = Duration::from_millis(50);

/// Receives a notification for every address, and if asked for every interface, added, changed or removed
/// in the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct AddressNotifications(AsyncFd<OwnedFd>);

// === impl AddressNotifications ===

impl AddressNotifications {
    /// Subscribes to the notifications. Needs no privilege.
    pub(super) fn open(asked: WatchScope) -> io::Result<AddressNotifications> {
        let groups = match asked {
            WatchScope::Addresses => ADDRESSES,
            WatchScope::AddressesAndInterfaces => ADDRESSES | INTERFACES,
        };
        // NETLINK_ROUTE has no name in rustix: its number is 0.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        #[expect(
            deprecated,
            reason = "unsound with what does not keep its descriptor, which this does; what took its \
                      place is unsafe to call"
        )]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE)?;
        Ok(AddressNotifications(socket))
    }

    /// Waits until what was asked for has changed, and [`GATHERED`] longer. Does not return what: the kernel
    /// may have dropped notifications. Cancel safe.
    pub(super) async fn arrive(&mut self) -> io::Result<()> {
        loop {
            let mut readable = self.0.readable().await?;
            sleep(GATHERED).await;
            let is_notified = take(self.0.get_ref())?;
            readable.clear_ready();
            if is_notified {
                return Ok(());
            }
        }
    }
}

/// Reads every pending notification; returns whether there were any.
fn take(socket: &OwnedFd) -> io::Result<bool> {
    // The content is not used, so the buffer may be too small for it.
    let mut datagram = [0; 16];
    let mut is_notified = false;
    loop {
        match recv(socket, &mut datagram, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return Ok(is_notified),
            Err(Errno::INTR) => {}
            // `NOBUFS`: the kernel dropped notifications.
            Ok(_) | Err(Errno::NOBUFS) => is_notified = true,
            Err(errno) => return Err(errno.into()),
        }
    }
}
