//! Node ports on localhost: this process relays them if the profile asks for it. On other addresses
//! the kernel forwards them.

mod metrics;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;

use ::relay::{Counts, Limits, ListenFailure, LocalPort, OpenError, Relays};
use crds::node_proxy::rejections::Rejection;
use crds::profile::forwarding::LocalhostNodePorts;
use dataplane::Family;
use processes::{Holder, ListenAddress, is_taken, observe_holders};
use reconciler::Report;
use runtime::{CancellationToken, Metrics, chain, raise_descriptor_limit};
use tokio::sync::watch;

use crate::engine::AppliedConfig;
use crate::latest::{changed, post};

/// Listens on the programmed node ports while the profile asks for it, until `stop` is cancelled.
/// Connections end when this task does. If the profile no longer asks for it, they may finish.
pub(crate) async fn serve(
    mut applied_config: watch::Receiver<Option<AppliedConfig>>,
    mut report: watch::Receiver<Option<Arc<Report>>>,
    not_relayed: watch::Sender<Vec<Rejection>>,
    counts: Arc<Counts>,
    stop: CancellationToken,
) {
    let mut relays = None;
    let mut holders = Holders::default();
    loop {
        let desired = desired(applied_config.borrow_and_update().as_ref());
        let newest = report.borrow_and_update().clone();
        if desired == LocalhostNodePorts::Userspace && relays.is_none() {
            let limits = Limits::within(raise_descriptor_limit());
            relays = Some(Relays::new(limits, Arc::clone(&counts)));
        }
        if let Some(relays) = &mut relays {
            apply(relays, desired, newest.as_deref()).await;
            let failures = relays.listen_failures();
            holders.follow(&failures).await;
            let rejections = failures.iter().map(|failure| holders.rejection(failure));
            post(&not_relayed, rejections.collect());
        }
        // All arms are cancel safe: the current state is read again below.
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed(&mut applied_config) => {}
            () = changed(&mut report) => {}
            () = activity(&mut relays) => {}
        }
    }
}

/// The processes that use the ports on which listening failed, as of the time of the failure.
#[derive(Debug, Default)]
struct Holders(BTreeMap<LocalPort, (Arc<OpenError>, Option<Holder>)>);

// === impl Holders ===

impl Holders {
    /// Finds the processes for the failures that are new since the last call.
    async fn follow(&mut self, failures: &[ListenFailure]) {
        let mut before = std::mem::take(&mut self.0);
        for ListenFailure { port, error, .. } in failures {
            let known = before.remove(port);
            let known = known.filter(|(known, _)| Arc::ptr_eq(known, error));
            if let Some(known) = known {
                self.0.insert(*port, known);
            }
        }
        let new_failures = failures
            .iter()
            .filter(|failure| !self.0.contains_key(&failure.port));
        let new_failures: Vec<&ListenFailure> = new_failures.collect();
        let taken = new_failures
            .iter()
            .filter_map(|failure| match &*failure.error {
                OpenError::Bind { source, .. } if is_taken(source) => {
                    Some(listen_address(failure.port))
                }
                OpenError::Bind { .. } | OpenError::TooMany { .. } => None,
            });
        let mut holders = observe_holders(taken.collect()).await;
        for ListenFailure { port, error, .. } in new_failures {
            let holder = holders.remove(&listen_address(*port));
            self.0.insert(*port, (Arc::clone(error), holder));
        }
    }

    /// Returns the rejection for a port on which listening failed.
    fn rejection(&self, failure: &ListenFailure) -> Rejection {
        let error = chain(&*failure.error);
        let holder = self
            .0
            .get(&failure.port)
            .and_then(|(_, holder)| holder.as_ref());
        Rejection {
            object: format!("Service {}", failure.service_port.service),
            field: "spec.ports[].nodePort".to_owned(),
            message: holder
                .map_or_else(|| error.to_string(), |holder| format!("{error}: {holder}")),
        }
    }
}

fn listen_address(port: LocalPort) -> ListenAddress {
    (port.transport.protocol(), port.address())
}

/// Registers the relay's metrics and returns the counters.
pub(crate) fn register(metrics: &Metrics) -> Arc<Counts> {
    metrics::register(metrics)
}

fn desired(applied_config: Option<&AppliedConfig>) -> LocalhostNodePorts {
    applied_config.map_or_else(LocalhostNodePorts::default, |applied_config| {
        applied_config.effective.localhost_node_ports
    })
}

async fn apply(relays: &mut Relays, desired: LocalhostNodePorts, report: Option<&Report>) {
    if desired == LocalhostNodePorts::None {
        for family in Family::ALL {
            relays.apply(family, None).await;
        }
        return;
    }
    for family in report.into_iter().flat_map(|report| &report.families) {
        relays
            .apply(family.family, family.programmed.as_ref())
            .await;
    }
}

async fn activity(relays: &mut Option<Relays>) {
    match relays {
        Some(relays) => relays.watch().await,
        None => pending().await,
    }
}
