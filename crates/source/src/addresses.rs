//! This node's own interfaces and their addresses.

mod address_notifications;

use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use netlink::link::LinkSocket;
use netlink::{OpenError, QueryError};
use nix::ifaddrs::getifaddrs;
use runtime::{CancellationToken, chain};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::{Delivery, EngineGone, Interfaces, LocalAddresses, deliver};
use address_notifications::AddressNotifications;

/// How often what is asked for is listed while notifications work. Costs two or three netlink dumps, well
/// under a millisecond.
const SELDOM: Duration = Duration::from_secs(300);
/// How often it is listed without notifications, or while listing fails. A node port on a new address, and
/// a new interface in the flowtable, may be this late.
const OFTEN: Duration = Duration::from_secs(2);

/// The devices to which other service proxies add the addresses of Services: kube-proxy in mode ipvs,
/// and kube-router.
const OF_PROXIES: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

/// What the engine asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchScope {
    /// The addresses.
    Addresses,
    /// The addresses and the interfaces: one more netlink dump for each change of either.
    AddressesAndInterfaces,
}

/// Whether the kernel listed something when it was last asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    Works,
    Fails,
}

/// Why this node's interfaces cannot be listed.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Query(#[from] QueryError),
}

/// Returns every address of every interface of this network namespace, of both families, including
/// loopback and link-local addresses and those of interfaces that are down.
///
/// # Errors
///
/// The kernel's error, if it does not list them.
pub fn observe() -> io::Result<LocalAddresses> {
    let addresses = getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let ipv4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let address = ipv4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))?;
        Some((interface.interface_name, address))
    });
    Ok(by_device(addresses))
}

/// Sorts addresses by the devices that have them.
fn by_device(addresses: impl Iterator<Item = (String, IpAddr)>) -> LocalAddresses {
    let (mut own, mut of_proxies) = (BTreeSet::new(), BTreeSet::new());
    for (device, address) in addresses {
        match OF_PROXIES.contains(&&*device) {
            true => of_proxies.insert(address),
            false => own.insert(address),
        };
    }
    let all = own.union(&of_proxies).copied().collect();
    of_proxies.retain(|address| !own.contains(address));
    LocalAddresses { all, of_proxies }
}

/// Returns the interfaces of this network namespace on which packets of others may arrive.
fn observe_interfaces() -> Result<BTreeSet<Arc<str>>, ListError> {
    Ok(LinkSocket::open()?.observe_receiving()?)
}

/// Delivers this node's addresses at once, and again whenever they change, until `stop`; and its
/// interfaces for as long as `watch_scope` asks for them.
///
/// While the kernel does not list them, the last known ones stay in force.
///
/// # Errors
///
/// Fails only if the engine has ended.
pub async fn watch(
    deliveries: mpsc::Sender<Delivery>,
    watch_scope: watch::Receiver<WatchScope>,
    stop: CancellationToken,
) -> Result<(), EngineGone> {
    watch_lists(observe_interfaces, deliveries, watch_scope, stop).await
}

/// Like [`watch`], with the function that lists the interfaces.
async fn watch_lists(
    mut observe_interfaces: impl FnMut() -> Result<BTreeSet<Arc<str>>, ListError>,
    deliveries: mpsc::Sender<Delivery>,
    mut watch_scope: watch::Receiver<WatchScope>,
    stop: CancellationToken,
) -> Result<(), EngineGone> {
    let mut asked = *watch_scope.borrow_and_update();
    // Opened before the first list, so that no change in between is missed.
    let mut address_notifications = open(asked);
    let mut known = None;
    let mut known_interfaces = None;
    let (mut listing, mut listing_interfaces) = (Listing::Works, Listing::Works);
    loop {
        if asked == WatchScope::AddressesAndInterfaces {
            let interfaces = observe_interfaces();
            listing_interfaces.follow("interfaces", interfaces.as_ref().err());
            deliver_interfaces(&deliveries, &mut known_interfaces, interfaces.ok()).await?;
        }
        let addresses = observe();
        listing.follow("addresses", addresses.as_ref().err());
        if let Ok(addresses) = addresses
            && known.as_ref() != Some(&addresses)
        {
            debug!(
                count = addresses.all.len(),
                "listed the addresses of this node"
            );
            known = Some(addresses.clone());
            deliver(&deliveries, Delivery::Addresses(addresses)).await?;
        }
        let longest = match (listing, listing_interfaces) {
            (Listing::Works, Listing::Works) => SELDOM,
            _ => OFTEN,
        };
        // All arms are cancel safe.
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            Ok(()) = watch_scope.changed() => {
                asked = *watch_scope.borrow_and_update();
                address_notifications = open(asked);
                if asked == WatchScope::Addresses {
                    listing_interfaces = Listing::Works;
                    if known_interfaces.take().is_some() {
                        deliver(&deliveries, Delivery::Interfaces(Interfaces::Unknown)).await?;
                    }
                }
            }
            () = next_change(&mut address_notifications, asked, longest) => {}
        }
    }
}

/// Delivers the interfaces if they differ from the `known` ones, or if none are known, so that the engine
/// does not wait for a list that fails.
async fn deliver_interfaces(
    deliveries: &mpsc::Sender<Delivery>,
    known: &mut Option<Interfaces>,
    listed: Option<BTreeSet<Arc<str>>>,
) -> Result<(), EngineGone> {
    let interfaces = match listed {
        Some(interfaces) => Interfaces::Known(interfaces),
        None => known.clone().unwrap_or(Interfaces::Unknown),
    };
    if known.as_ref() == Some(&interfaces) {
        return Ok(());
    }
    *known = Some(interfaces.clone());
    deliver(deliveries, Delivery::Interfaces(interfaces)).await
}

// === impl Listing ===

impl Listing {
    /// Takes in how an attempt to list `what` ended. Logs the first failure of several.
    fn follow(&mut self, what: &str, failed: Option<&(impl Error + 'static)>) {
        if let Some(error) = failed
            && *self == Listing::Works
        {
            warn!(error = %chain(error), "unable to list this node's {what}");
        }
        *self = match failed {
            Some(_) => Listing::Fails,
            None => Listing::Works,
        };
    }
}

/// Returns when what is `asked` for may have changed, or after `longest`.
async fn next_change(
    address_notifications: &mut Option<AddressNotifications>,
    asked: WatchScope,
    longest: Duration,
) {
    let Some(notifications) = address_notifications else {
        sleep(OFTEN).await;
        *address_notifications = open(asked);
        return;
    };
    if let Ok(Err(error)) = timeout(longest, notifications.arrive()).await {
        warn!(error = %chain(&error), "notifications of address changes have ended: polling instead");
        *address_notifications = None;
    }
}

fn open(asked: WatchScope) -> Option<AddressNotifications> {
    let opened = AddressNotifications::open(asked);
    let opened = opened.inspect_err(|error| {
        warn!(error = %chain(error), "unable to receive notifications of address changes: polling instead");
    });
    opened.ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn loopback_is_an_own_address() {
        let addresses = observe().expect("the kernel lists them");
        assert!(
            addresses.all.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)),
            "{addresses:?}"
        );
    }

    /// A watch with this function to list interfaces.
    struct Watch {
        deliveries: mpsc::Receiver<Delivery>,
        watch_scope: watch::Sender<WatchScope>,
        stop: CancellationToken,
        task: JoinHandle<Result<(), EngineGone>>,
    }

    impl Watch {
        fn start(
            watch_scope: WatchScope,
            observe_interfaces: impl FnMut() -> Result<BTreeSet<Arc<str>>, ListError> + Send + 'static,
        ) -> Watch {
            let (sender, deliveries) = mpsc::channel(4);
            let (watch_scope, asked) = watch::channel(watch_scope);
            let stop = CancellationToken::new();
            let task = watch_lists(observe_interfaces, sender, asked, stop.clone());
            Watch {
                deliveries,
                watch_scope,
                stop,
                task: tokio::spawn(task),
            }
        }

        async fn next(&mut self) -> Delivery {
            self.deliveries.recv().await.expect("a delivery")
        }

        async fn expect_addresses(&mut self) {
            let addresses = observe().expect("the kernel lists them");
            assert_eq!(self.next().await, Delivery::Addresses(addresses));
        }

        async fn expect_nothing(&mut self) {
            let again = timeout(20 * SELDOM, self.deliveries.recv()).await;
            assert!(again.is_err(), "delivered again: {again:?}");
        }

        async fn end(self) {
            self.stop.cancel();
            assert_eq!(self.task.await.expect("no panic"), Ok(()));
        }
    }

    #[test]
    fn t463_addresses_of_proxies_devices_are_told_apart() {
        let found = [
            ("eth0", "192.168.0.1"),
            ("kube-ipvs0", "192.168.0.1"),
            ("kube-ipvs0", "198.51.100.1"),
            ("kube-dummy-if", "198.51.100.2"),
        ];
        let parse = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let found = found.map(|(device, text)| (device.to_owned(), parse(text)));
        let set = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| parse(text))
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(
            by_device(found.into_iter()),
            LocalAddresses {
                all: set(&["192.168.0.1", "198.51.100.1", "198.51.100.2"]),
                of_proxies: set(&["198.51.100.1", "198.51.100.2"]),
            }
        );
    }

    fn interfaces(names: &[&str]) -> BTreeSet<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_come_at_start_and_not_again_while_nothing_changes() {
        let mut watch = Watch::start(WatchScope::AddressesAndInterfaces, observe_interfaces);
        let interfaces = watch.next().await;
        let Delivery::Interfaces(Interfaces::Known(interfaces)) = interfaces else {
            panic!("no interfaces: {interfaces:?}");
        };
        assert!(!interfaces.contains("lo"), "{interfaces:?}");
        watch.expect_addresses().await;
        watch.expect_nothing().await;
        watch.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn interfaces_are_listed_only_while_the_engine_asks_for_them() {
        let asked = Arc::new(AtomicU32::new(0));
        let lists = Arc::clone(&asked);
        let mut watch = Watch::start(WatchScope::Addresses, move || {
            lists.fetch_add(1, Ordering::Relaxed);
            Ok(interfaces(&["eth0"]))
        });
        watch.expect_addresses().await;
        watch.expect_nothing().await;
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        watch
            .watch_scope
            .send_replace(WatchScope::AddressesAndInterfaces);
        let known = Interfaces::Known(interfaces(&["eth0"]));
        assert_eq!(watch.next().await, Delivery::Interfaces(known.clone()));
        watch.expect_nothing().await;
        watch.watch_scope.send_replace(WatchScope::Addresses);
        let unknown = Delivery::Interfaces(Interfaces::Unknown);
        assert_eq!(watch.next().await, unknown);
        let before = asked.load(Ordering::Relaxed);
        watch.expect_nothing().await;
        assert_eq!(asked.load(Ordering::Relaxed), before);
        watch
            .watch_scope
            .send_replace(WatchScope::AddressesAndInterfaces);
        assert_eq!(watch.next().await, Delivery::Interfaces(known));
        watch.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_engine_hears_that_interfaces_cannot_be_listed_and_soon_that_they_can() {
        let mut attempts = 0;
        let mut watch = Watch::start(WatchScope::AddressesAndInterfaces, move || {
            attempts += 1;
            match attempts {
                1..=3 => Err(refused()),
                _ => Ok(interfaces(&["eth0"])),
            }
        });
        let began = Instant::now();
        let unknown = Delivery::Interfaces(Interfaces::Unknown);
        assert_eq!(watch.next().await, unknown);
        watch.expect_addresses().await;
        let known = Interfaces::Known(interfaces(&["eth0"]));
        assert_eq!(watch.next().await, Delivery::Interfaces(known));
        // A notification may also bring the next attempt.
        assert!(began.elapsed() <= 4 * OFTEN, "{:?}", began.elapsed());
        watch.expect_nothing().await;
        watch.end().await;
    }

    fn refused() -> ListError {
        ListError::Query(QueryError::Refused {
            what: "network devices",
            source: io::ErrorKind::OutOfMemory.into(),
        })
    }
}
