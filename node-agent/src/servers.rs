//! Who answers over HTTP, and where.

use std::sync::Arc;

use runtime::{BindError, BindPolicy, Health, Metrics, Supervisor, chain, serve, serve_at};

use crate::arguments::Run;
use crate::board::Board;
use crate::events::{Announcement, Events, Regarding, Severity};
use crate::health_proxy::ProxyHealth;
use crate::inquiry::Inquiries;
use crate::process_settings::{self, Addresses, Places};
use crate::{debug, health_answer, kube_proxy_routes, service_health};

/// What answers are made of.
pub(crate) struct Answers {
    pub(crate) board: Arc<Board>,
    pub(crate) proxy: ProxyHealth,
    /// With every readiness check in it, or the process is ready for a moment before it is not.
    pub(crate) health: Health,
    pub(crate) metrics: Metrics,
    pub(crate) inquiries: Inquiries,
    /// Who is told what cannot be listened on.
    pub(crate) events: Events,
}

// === impl Answers ===

impl Answers {
    /// Starts every server: one for load balancers and monitors, one for scrapers and people, which
    /// both follow the profile, one for this Pod's own probes, and one for each Service that is asked
    /// after.
    pub(crate) fn start(self, supervisor: &Supervisor, arguments: &Run) {
        let board = || Arc::clone(&self.board);
        let initial = Addresses {
            health: arguments.health_address,
            metrics: arguments.metrics_address,
        };
        let places = Places::new(initial, *self.board.duty().borrow());
        let (proxy, health) = (self.proxy.clone(), self.health.clone());
        let public = health_answer::router(board(), proxy, health, &self.metrics)
            .merge(self.health.readiness_router());
        let private = self
            .metrics
            .router()
            .merge(self.health.router())
            .merge(kube_proxy_routes::router(board(), &arguments.node))
            .merge(debug::router(board(), self.inquiries));
        let (stop, refused) = (supervisor.stop(), "FailedToStartProxierHealthcheck");
        let refused = announce_refusal(self.events.clone(), refused);
        let server = serve_at(places.health.subscribe(), public, refused, stop);
        supervisor.spawn("health server", server);
        let (stop, refused) = (supervisor.stop(), "FailedToStartMetricServer");
        let refused = announce_refusal(self.events.clone(), refused);
        let server = serve_at(places.metrics.subscribe(), private, refused, stop);
        supervisor.spawn("metrics server", server);
        let (address, routes) = (arguments.probe_address, self.health.router());
        let server = serve(address, BindPolicy::Retry, routes, supervisor.stop());
        supervisor.spawn("probe server", server);
        let settings = process_settings::follow(board(), places, supervisor.stop());
        supervisor.spawn("process settings", settings);
        let server = service_health::serve(board(), self.proxy, self.events, supervisor.stop());
        supervisor.spawn("service health", server);
    }
}

/// Says so where a server cannot listen.
fn announce_refusal(events: Events, reason: &'static str) -> impl FnMut(&BindError) {
    move |error| {
        events.announce(Announcement {
            regarding: Regarding::Node,
            severity: Severity::Warning,
            reason,
            note: chain(error).to_string(),
        });
    }
}
