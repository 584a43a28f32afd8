//! Node ports on localhost: this process relays them if the profile asks for it. On other addresses
//! the kernel forwards them.

mod metrics;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;

use ::relay::{Counts, Limits, LocalPort, OpenError, Refusal, Relays};
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
            let refusals = relays.refusals();
            holders.follow(&refusals).await;
            let rejections = refusals.iter().map(|refusal| holders.rejection(refusal));
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
    async fn follow(&mut self, refusals: &[Refusal]) {
        let mut before = std::mem::take(&mut self.0);
        for Refusal { port, error, .. } in refusals {
            let known = before.remove(port);
            let known = known.filter(|(known, _)| Arc::ptr_eq(known, error));
            if let Some(known) = known {
                self.0.insert(*port, known);
            }
        }
        let new_refusals = refusals
            .iter()
            .filter(|refusal| !self.0.contains_key(&refusal.port));
        let new_refusals: Vec<&Refusal> = new_refusals.collect();
        let taken = new_refusals
            .iter()
            .filter_map(|refusal| match &*refusal.error {
                OpenError::Bind { source, .. } if is_taken(source) => {
                    Some(listen_address(refusal.port))
                }
                OpenError::Bind { .. } | OpenError::TooMany { .. } => None,
            });
        let mut holders = observe_holders(taken.collect()).await;
        for Refusal { port, error, .. } in new_refusals {
            let holder = holders.remove(&listen_address(*port));
            self.0.insert(*port, (Arc::clone(error), holder));
        }
    }

    /// Returns the rejection for a port on which listening failed.
    fn rejection(&self, refusal: &Refusal) -> Rejection {
        let error = chain(&*refusal.error);
        let holder = self
            .0
            .get(&refusal.port)
            .and_then(|(_, holder)| holder.as_ref());
        Rejection {
            object: format!("Service {}", refusal.service_port.service),
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
