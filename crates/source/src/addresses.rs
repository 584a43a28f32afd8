//! This node's own interfaces and their addresses.

mod address_notifications;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use netlink::link::LinkSocket;
use nix::ifaddrs::getifaddrs;
use runtime::{CancellationToken, chain};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::{Delivery, EngineGone, deliver};
use address_notifications::AddressNotifications;

/// How often the addresses are listed while notifications work. Costs two netlink dumps, well under
/// a millisecond.
const SELDOM: Duration = Duration::from_secs(300);
/// How often they are listed without notifications, or while listing fails. A node port on a new
/// address may be this late.
const OFTEN: Duration = Duration::from_secs(2);

/// Returns every address of every interface of this network namespace, of both families, including
/// loopback and link-local addresses and those of interfaces that are down.
///
/// # Errors
///
/// The kernel's error, if it does not list them.
pub fn observe() -> io::Result<BTreeSet<IpAddr>> {
    let addresses = getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let ipv4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        ipv4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    Ok(addresses.collect())
}

/// Delivers this node's interfaces and addresses at once, and again whenever they change, until `stop`.
///
/// While the kernel does not list them, the last known ones stay in force.
///
/// # Errors
///
/// Fails only if the engine has ended.
pub async fn watch(
    deliveries: mpsc::Sender<Delivery>,
    stop: CancellationToken,
) -> Result<(), EngineGone> {
    // Opened before the first list, so that no change in between is missed.
    let mut address_notifications = open();
    let mut known = None;
    let mut known_interfaces = None;
    let mut listed = true;
    loop {
        // Before the first addresses, which the engine waits for.
        deliver_interfaces(&deliveries, &mut known_interfaces).await?;
        match observe() {
            Ok(addresses) => {
                listed = true;
                if known.as_ref() != Some(&addresses) {
                    debug!(count = addresses.len(), "listed the addresses of this node");
                    known = Some(addresses.clone());
                    deliver(&deliveries, Delivery::Addresses(addresses)).await?;
                }
            }
            Err(error) => {
                if listed {
                    warn!(error = %chain(&error), "unable to list this node's addresses");
                }
                listed = false;
            }
        }
        let longest = if listed { SELDOM } else { OFTEN };
        // Both arms are cancel safe.
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = next_change(&mut address_notifications, longest) => {}
        }
    }
}

/// Delivers the interfaces on which packets of others may arrive, if they differ from `known`.
async fn deliver_interfaces(
    deliveries: &mpsc::Sender<Delivery>,
    known: &mut Option<BTreeSet<Arc<str>>>,
) -> Result<(), EngineGone> {
    let listed = LinkSocket::open().map_err(|error| chain(&error).to_string());
    let listed = listed.and_then(|mut socket| {
        let interfaces = socket.observe_receiving();
        interfaces.map_err(|error| chain(&error).to_string())
    });
    match listed {
        Ok(interfaces) if known.as_ref() != Some(&interfaces) => {
            *known = Some(interfaces.clone());
            deliver(deliveries, Delivery::Interfaces(interfaces)).await
        }
        Ok(_) => Ok(()),
        Err(error) => {
            warn!(%error, "unable to list this node's interfaces");
            Ok(())
        }
    }
}

/// Returns when addresses or interfaces may have changed, or after `longest`.
async fn next_change(address_notifications: &mut Option<AddressNotifications>, longest: Duration) {
    let Some(notifications) = address_notifications else {
        sleep(OFTEN).await;
        *address_notifications = open();
        return;
    };
    if let Ok(Err(error)) = timeout(longest, notifications.arrive()).await {
        warn!(error = %chain(&error), "notifications of address changes have ended: polling instead");
        *address_notifications = None;
    }
}

fn open() -> Option<AddressNotifications> {
    let opened = AddressNotifications::open();
    let opened = opened.inspect_err(|error| {
        warn!(error = %chain(error), "unable to receive notifications of address changes: polling instead");
    });
    opened.ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn loopback_is_an_own_address() {
        let addresses = observe().expect("the kernel lists them");
        assert!(
            addresses.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)),
            "{addresses:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_come_at_start_and_not_again_while_nothing_changes() {
        let (sender, mut deliveries) = mpsc::channel(4);
        let stop = CancellationToken::new();
        let stopper = stop.clone();
        let watch = tokio::spawn(watch(sender, stop));
        let interfaces = deliveries.recv().await.expect("a first delivery");
        let Delivery::Interfaces(interfaces) = interfaces else {
            panic!("no interfaces: {interfaces:?}");
        };
        assert!(!interfaces.contains("lo"), "{interfaces:?}");
        let first = deliveries.recv().await.expect("a second delivery");
        assert_eq!(
            first,
            Delivery::Addresses(observe().expect("the kernel lists them"))
        );
        let again = timeout(20 * SELDOM, deliveries.recv()).await;
        assert!(again.is_err(), "delivered again: {again:?}");
        stopper.cancel();
        assert_eq!(watch.await.expect("no panic"), Ok(()));
    }
}
