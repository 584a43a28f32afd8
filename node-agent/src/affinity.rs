//! Session affinity that has run out of room: the Services concerned.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dataplane::{Affinity, Dataplane, FrontendKey, ServiceKey};
use modes::FullAffinityMaps;
use runtime::{CancellationToken, chain, run_blocking};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::warn;

use crate::engine::{AppliedConfig, View};
use crate::latest::{changed, post};

/// The longest time between two checks. The kernel reports a client that found no room for ten
/// minutes.
const LONGEST: Duration = Duration::from_secs(60);

/// Checks every `syncPeriod`, and at least every minute, which frontends have no room for another
/// client, until `stop` is cancelled. Mode iptables does not record this.
pub(crate) async fn watch(
    mut view: watch::Receiver<Option<Arc<View>>>,
    mut applied_config: watch::Receiver<Option<AppliedConfig>>,
    full: watch::Sender<BTreeSet<FrontendKey>>,
    stop: CancellationToken,
) {
    let mut is_refused = false;
    let mut kernel = FullAffinityMaps::default();
    loop {
        let desired = view
            .borrow_and_update()
            .as_ref()
            .and_then(|view| view.desired.clone());
        let Some(desired) = desired else {
            // Both arms are cancel safe: neither consumes anything.
            tokio::select! {
                () = stop.cancelled() => return,
                () = changed(&mut view) => continue,
            }
        };
        let seen;
        (seen, kernel) = run_blocking(move || (kernel.observe(&desired), kernel)).await;
        let was_refused = std::mem::replace(&mut is_refused, seen.is_err());
        match seen {
            Ok(full_affinity_maps) => post(&full, full_affinity_maps),
            // Keep the last result. One log line is enough.
            Err(error) if !was_refused => {
                warn!(error = %chain(&error), "unable to check whether session affinity has room for new clients");
            }
            Err(_) => {}
        }
        let pause = applied_config
            .borrow_and_update()
            .as_ref()
            .map_or(LONGEST, |applied_config| {
                applied_config.effective.sync_period.duration().min(LONGEST)
            });
        // All arms are cancel safe: none of them consumes anything.
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed(&mut applied_config) => {}
            () = sleep(pause) => {}
        }
    }
}

/// Returns the Services of `desired` with session affinity that have the frontends `full_affinity_maps`. Costs
/// one lookup for each of those. Pure.
pub(crate) fn exhausted<'a>(
    full_affinity_maps: &BTreeSet<FrontendKey>,
    desired: Option<&'a Dataplane>,
) -> BTreeSet<&'a ServiceKey> {
    let Some(desired) = desired else {
        return BTreeSet::new();
    };
    let claims = full_affinity_maps
        .iter()
        .filter_map(|key| desired.frontends().get(key));
    claims
        .map(|claims| claims.winner())
        .filter(|(_, frontend)| frontend.affinity != Affinity::None)
        .map(|(service, _)| service)
        .collect()
}

#[cfg(test)]
mod tests {
    use dataplane::{Port, Protocol};

    use super::*;

    fn frontend(address: &str) -> FrontendKey {
        FrontendKey::Address {
            address: address.parse().expect("an address"),
            protocol: Protocol::Tcp,
            port: Port::new(80).expect("a port"),
        }
    }

    /// Failure story T93. The kernel continues to report a frontend for ten minutes, even if its
    /// Service changes or is deleted.
    #[test]
    fn t93_services_without_affinity_or_that_are_gone_are_not_named() {
        let mut desired = Dataplane::default();
        for (name, address, affinity) in [
            ("game/lobby", "10.96.0.11", true),
            ("shop/cart", "10.96.0.10", false),
        ] {
            let mut service = testkit::mk_service(name)
                .cluster_ip(address)
                .port("http", 80);
            if affinity {
                service = service.client_ip_affinity(Duration::from_secs(10_800));
            }
            let endpoints = testkit::mk_endpoints().build();
            let (node, config) = (desired.node(), desired.config());
            let rules = dataplane::compile(&service.build(), &endpoints, node, config);
            desired.set(rules.into());
        }
        let full_affinity_maps = ["10.96.0.10", "10.96.0.11", "10.96.0.12"].map(frontend);
        let full_affinity_maps = BTreeSet::from(full_affinity_maps);
        let named = |desired| -> Vec<String> {
            let services = exhausted(&full_affinity_maps, desired).into_iter();
            services.map(ServiceKey::to_string).collect()
        };
        assert_eq!(named(Some(&desired)), ["game/lobby"]);
        assert_eq!(named(None), [""; 0]);
    }
}
