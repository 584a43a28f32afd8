//! Answers load balancers on the health-check node ports of Services: whether this node has
//! endpoints.
//!
//! ```text
//! Report: what is programmed ------ --follow--> Desired --listeners--> one listener per address
//!                                                                       | answer: weight, health
//! ```
//!
//! A listener stays open through every change of its Service except a change of the port. In
//! contrast to kube-proxy's, the listeners follow the node's addresses as they come and go, and
//! also listen on the Service's own load-balancer addresses: balancers that keep the destination of
//! a packet probe those (kubernetes#117621).

mod answer;
mod desired;
mod listener;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crds::event;
use dataplane::{Protocol, ServiceKey};
use events::{Announcement, EventObject, Events};
use processes::observe_holders;
use reconciler::Report;
use runtime::{CancellationToken, chain};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::{NodeFacts, ProxyHealth};
use answer::HealthSource;
use desired::{DesiredListeners, Listening};
use listener::Listeners;

/// The pause after a failure to listen.
const RETRY: Duration = Duration::from_secs(5);

/// Listens on all addresses with health checks of the Services that `report` says are programmed, until
/// `stop` is cancelled. Announces each address where it cannot listen.
pub async fn serve(
    mut report: watch::Receiver<Option<Arc<Report>>>,
    facts: Arc<dyn NodeFacts>,
    proxy: ProxyHealth,
    events: Events,
    stop: CancellationToken,
) {
    let judge = HealthSource::new(facts, proxy);
    let mut server = ServiceHealth {
        desired: DesiredListeners::default(),
        listeners: Listeners::new(judge),
        refused: BTreeMap::new(),
        events,
    };
    let mut retry: Option<Instant> = None;
    loop {
        let newest = report.borrow_and_update().clone();
        let changed = newest.is_some_and(|report| server.follow(&report));
        let now = Instant::now();
        if changed || retry.is_some_and(|at| at <= now) {
            server.listen().await;
            retry = (!server.refused.is_empty()).then(|| now + RETRY);
        }
        // All arms are cancel safe: the report is read again below.
        tokio::select! {
            () = stop.cancelled() => return,
            changed = report.changed() => if changed.is_err() { return },
            () = sleep_until(retry.unwrap_or(now)), if retry.is_some() => {}
        }
    }
}

/// The desired listeners, the open ones, and those that cannot be opened.
struct ServiceHealth {
    desired: DesiredListeners,
    listeners: Listeners,
    /// The addresses that could not be opened, each with the Service for which that was announced.
    refused: BTreeMap<SocketAddr, ServiceKey>,
    events: Events,
}

// === impl ServiceHealth ===

impl ServiceHealth {
    /// Updates the programmed Services. Returns whether the desired listeners may have changed.
    fn follow(&mut self, report: &Report) -> bool {
        let mut changed = false;
        for family in &report.families {
            let programmed = family.programmed.as_ref();
            changed |= self.desired.follow(family.family, programmed);
        }
        changed
    }

    /// Opens and closes listeners as desired.
    async fn listen(&mut self) {
        let (desired, contested) = self.desired.listeners();
        let failures = self.listeners.apply(&desired).await;
        let is_news = |address| {
            let service = desired.get(address).map(|listening| &listening.service);
            service.is_some() && self.refused.get(address) != service
        };
        let taken = failures.iter().filter(|(_, error)| error.is_taken());
        let taken = taken.filter(|(address, _)| is_news(address));
        let taken = taken.map(|(address, _)| (Protocol::Tcp, *address));
        let holders = observe_holders(taken.collect()).await;
        let mut refused = BTreeMap::new();
        for (address, error) in failures {
            if let Some(Listening { service, .. }) = desired.get(&address) {
                let error = match holders.get(&(Protocol::Tcp, address)) {
                    Some(holder) => format!("{}: {holder}", chain(&error)),
                    None => chain(&error).to_string(),
                };
                self.announce(address, service, &error);
                refused.insert(address, service.clone());
            }
        }
        for (address, service) in contested {
            // Two Services have the same address: one of them is refused as long as the other
            // exists.
            self.announce(address, &service, "another Service has this port");
            refused.insert(address, service);
        }
        self.refused = refused;
    }

    /// Announces a failure once, until a later attempt succeeds.
    fn announce(&self, address: SocketAddr, service: &ServiceKey, error: &str) {
        if self.refused.get(&address) == Some(service) {
            return;
        }
        self.events.announce(Announcement {
            regarding: EventObject::Service(service.clone()),
            reason: event::SERVICE_HEALTH_REFUSED,
            note: format!("health checks are not answered on {address}: {error}"),
        });
    }
}

#[cfg(test)]
mod tests;
