//! Node ports on localhost: what the kernel carries out elsewhere, relayed by this process where the
//! profile asks for it.

mod metrics;

use std::future::pending;
use std::sync::Arc;

use ::relay::{Counts, Limits, Refusal, Relays, raise_descriptor_limit};
use crds::node_proxy::rejections::Rejection;
use crds::profile::forwarding::LocalhostNodePorts;
use dataplane::Family;
use reconciler::Report;
use runtime::{Metrics, Stop, chain};

use crate::board::Board;
use crate::engine::InForce;

/// Listens on the node ports that the kernel is known to carry out, as long as the profile asks for
/// it, until told to stop. Connections end with this; a profile that no longer asks for it leaves
/// them to finish.
pub(crate) async fn serve(board: Arc<Board>, counts: Arc<Counts>, stop: Stop) {
    let (mut in_force, mut report) = (board.in_force(), board.report());
    let mut relays = None;
    loop {
        let wanted = wanted(in_force.borrow_and_update().as_ref());
        let newest = report.borrow_and_update().clone();
        if wanted == LocalhostNodePorts::Userspace && relays.is_none() {
            let limits = Limits::within(raise_descriptor_limit());
            relays = Some(Relays::new(limits, Arc::clone(&counts)));
        }
        if let Some(relays) = &mut relays {
            apply(relays, wanted, newest.as_deref()).await;
            board.post_not_relayed(relays.refusals().iter().map(rejection).collect());
        }
        // Cancel safe, all of them: what is missed here is seen at the next look.
        tokio::select! {
            () = stop.stopped() => return,
            changed = in_force.changed() => if changed.is_err() { return },
            changed = report.changed() => if changed.is_err() { return },
            () = watch(&mut relays) => {}
        }
    }
}

/// Registers what there is to count, and returns it.
pub(crate) fn register(metrics: &Metrics) -> Arc<Counts> {
    metrics::register(metrics)
}

/// What a status says of a port that cannot be listened on.
fn rejection(refusal: &Refusal) -> Rejection {
    Rejection {
        object: format!("Service {}", refusal.service_port.service),
        field: "spec.ports[].nodePort".to_owned(),
        message: chain(&*refusal.error).to_string(),
    }
}

fn wanted(in_force: Option<&InForce>) -> LocalhostNodePorts {
    in_force.map_or_else(LocalhostNodePorts::default, |in_force| {
        in_force.effective.localhost_node_ports
    })
}

async fn apply(relays: &mut Relays, wanted: LocalhostNodePorts, report: Option<&Report>) {
    if wanted == LocalhostNodePorts::None {
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

async fn watch(relays: &mut Option<Relays>) {
    match relays {
        Some(relays) => relays.watch().await,
        None => pending().await,
    }
}
