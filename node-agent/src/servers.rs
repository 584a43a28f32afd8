//! The HTTP servers of the agent, and the addresses they listen on.

use std::sync::Arc;

use crds::event::{self, EventReason};
use dataplane::Protocol;
use events::{Announcement, EventObject, Events};
use futures::FutureExt;
use futures::future::BoxFuture;
use handover::ServingState;
use health_checks::{ProxyHealth, serve_services};
use processes::describe_holder;
use runtime::{
    BindError, BindPolicy, Health, ListenConfig, Log, Metrics, Supervisor, chain, on_loopback_only,
    serve_at,
};
use tokio::sync::watch;

use crate::arguments::Run;
use crate::debug::DebugState;
use crate::engine::AppliedConfig;
use crate::engine_query::EngineQueries;
use crate::node_facts::ViewedNode;
use crate::process_settings::{self, Addresses, ServerAddresses};
use crate::{debug, kube_proxy_routes};

/// What the servers need to answer requests.
pub(crate) struct Answers {
    pub(crate) state: DebugState,
    pub(crate) applied_config: watch::Receiver<Option<AppliedConfig>>,
    pub(crate) serving_state: watch::Receiver<ServingState>,
    pub(crate) proxy: ProxyHealth,
    /// Must already contain every readiness check. Otherwise the process is ready for a moment
    /// before it is not.
    pub(crate) health: Health,
    pub(crate) metrics: Metrics,
    pub(crate) queries: EngineQueries,
    /// Receives an Event when a server cannot listen.
    pub(crate) events: Events,
    pub(crate) log: Log,
}

// === impl Answers ===

impl Answers {
    /// Starts every server: one for load balancers and monitors, one for metrics and debugging
    /// (both addresses follow the profile), one for the probes of this Pod, one for metrics alone
    /// if the command line names an address for it, and one for each Service with health checks.
    pub(crate) fn start(self, supervisor: &Supervisor, arguments: &Run) {
        let (view, programmed) = (self.state.view.clone(), Arc::clone(&self.state.programmed));
        let node = Arc::new(ViewedNode(view.clone()));
        let initial = Addresses {
            health: arguments.health_address,
            metrics: arguments.metrics_address,
        };
        let server_addresses = ServerAddresses::new(initial, *self.serving_state.borrow());
        let (proxy, health) = (self.proxy.clone(), self.health.clone());
        let public = health_checks::router(
            Arc::<ViewedNode>::clone(&node),
            proxy,
            health,
            &self.metrics,
        )
        .merge(self.health.readiness_router());
        let private = self
            .metrics
            .router()
            .merge(self.health.router())
            .merge(kube_proxy_routes::router(
                view,
                Arc::clone(&programmed),
                &arguments.node,
                self.log.clone(),
            ))
            .merge(on_loopback_only(debug::router(self.state, self.queries)));
        let refused = |reason| announce_refusal(self.events.clone(), reason);
        let (place, stop) = (server_addresses.health.subscribe(), supervisor.stop());
        let server = serve_at(place, public, refused(event::HEALTH_SERVER_REFUSED), stop);
        supervisor.spawn("health server", server);
        let (place, stop) = (server_addresses.metrics.subscribe(), supervisor.stop());
        let server = serve_at(place, private, refused(event::METRICS_SERVER_REFUSED), stop);
        supervisor.spawn("metrics server", server);
        let (stays, place) = watch::channel(ListenConfig {
            address: Some(arguments.probe_address),
            policy: BindPolicy::Retry,
        });
        let (routes, stop) = (self.health.router(), supervisor.stop());
        let refused = refused(event::PROBE_SERVER_REFUSED);
        supervisor.spawn("probe server", async move {
            let served = serve_at(place, routes, refused, stop).await;
            drop(stays);
            served
        });
        if let Some(address) = arguments.scrape_address {
            // Independent of the profile, and kept after a handback: kube-proxy does not use this
            // port.
            let (stays, place) = watch::channel(ListenConfig {
                address: Some(address),
                policy: BindPolicy::Retry,
            });
            let (routes, stop) = (self.metrics.router(), supervisor.stop());
            let refused = announce_refusal(self.events.clone(), event::SCRAPE_SERVER_REFUSED);
            supervisor.spawn("scrape server", async move {
                let served = serve_at(place, routes, refused, stop).await;
                drop(stays);
                served
            });
        }
        let settings = process_settings::follow(
            self.applied_config,
            self.serving_state,
            server_addresses,
            self.log,
            supervisor.stop(),
        );
        supervisor.spawn("process settings", settings);
        let server = serve_services(
            programmed.report(),
            node,
            self.proxy,
            self.events,
            supervisor.stop(),
        );
        supervisor.spawn("service health", server);
    }
}

/// Returns a function that announces that a server cannot listen, and which process holds its port.
fn announce_refusal(
    events: Events,
    reason: EventReason,
) -> impl FnMut(&BindError) -> BoxFuture<'static, ()> {
    move |error| {
        let (events, note) = (events.clone(), chain(error).to_string());
        let taken = error.is_taken().then_some(error.address);
        let announcement = async move {
            let holder = match taken {
                Some(address) => describe_holder(Protocol::Tcp, address).await,
                None => String::new(),
            };
            events.announce(Announcement {
                regarding: EventObject::Node,
                reason,
                note: note + &holder,
            });
        };
        announcement.boxed()
    }
}
