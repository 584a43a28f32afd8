//! Endpoints that leave a Service and come back, as with a readiness probe that fails once.

use std::net::SocketAddr;

use dataplane::{Mode, Scheduler, compile};
use netlink::ipvs::{Connections, Destinations, Operation, VirtualServerKey, Weight};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use super::super::*;
use crate::rules::destination;

/// How long connections to an endpoint that has left may last.
const LIMIT: Duration = Duration::from_secs(60);

/// A node with its agent, in one family.
struct Node {
    backend: Ipvs,
    held: Rendered<Rules>,
    now: Instant,
}

impl Node {
    fn new() -> Node {
        Node {
            backend: Ipvs::detached(Family::Ipv4),
            held: Rendered::default(),
            now: Instant::now(),
        }
    }

    /// Ten seconds later, the Service has these endpoints.
    fn sync(&mut self, scheduler: Scheduler, endpoints: &[u8]) {
        self.now += Duration::from_secs(10);
        let node = mk_node(1).build();
        let mut config = Config::clone(&mk_config().mode(Mode::Ipvs).build());
        config.ipvs_timeouts.drain = Some(LIMIT);
        let config = Arc::new(config);
        let service = mk_service("shop/web").cluster_ip("10.96.0.10");
        let service = service.port("http", 80).scheduler(scheduler).build();
        let mut ready = mk_endpoints().tcp("http");
        for last in endpoints {
            ready = ready.ready(&format!("10.0.2.{last}:80"), "node-2");
        }
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        dataplane.set(compile(&service, &ready.build(), &node, &config).into());
        let rules = self.backend.render(&dataplane, &self.held);
        let change = self.backend.diff(&self.held.rules, &rules);
        let ports = change.ports().clone();
        for step in change.steps {
            match step {
                Step::Servers(operations) => drop(self.backend.draining.resume(operations, &ports)),
                Step::Departures(departures) => {
                    drop(self.backend.draining.begin(departures, self.now));
                }
                Step::Delivery(_) | Step::Timeouts(_) | Step::Table(_) => {}
            }
        }
        self.held = Rendered { dataplane, rules };
    }

    /// The endpoints whose connections end now, where each has one at every virtual server that it
    /// leaves.
    fn ended(&mut self) -> Vec<SocketAddr> {
        let all = (1..10_u8).map(|last| SocketAddr::from(([10, 0, 2, last], 80)));
        let used = Connections {
            active: 1,
            ..Connections::default()
        };
        let listed: Destinations = all
            .map(|at| (at, (destination(Weight::DRAINING), used)))
            .collect();
        let keys: Vec<VirtualServerKey> = self.backend.draining.keys();
        let found: Vec<_> = keys.iter().map(|key| (*key, listed.clone())).collect();
        let operations = self.backend.draining.end(&found, self.now).into_iter();
        let ended = operations.filter_map(|operation| match operation {
            Operation::RemoveDestination { address, .. } => Some(address),
            _ => None,
        });
        ended.collect()
    }
}

/// Failure story T377: a readiness probe failed once, and a minute later all connections ended that the
/// endpoint had at virtual servers of a hash that had been replaced.
#[test]
fn t377_an_endpoint_that_comes_back_keeps_its_connections_at_replaced_virtual_servers() {
    for [first, then] in [
        [Scheduler::Maglev, Scheduler::Maglev],
        [Scheduler::SourceHash, Scheduler::RoundRobin],
        [Scheduler::RoundRobin, Scheduler::Maglev],
    ] {
        let mut node = Node::new();
        node.sync(first, &[5, 6]);
        node.sync(then, &[5, 6, 7]);
        node.sync(then, &[6, 7]);
        node.sync(then, &[5, 6, 7]);
        node.now += LIMIT;
        assert_eq!(node.ended(), [], "{first}, then {then}");
        node.sync(then, &[6, 7]);
        node.now += LIMIT - Duration::from_secs(1);
        assert_eq!(node.ended(), [], "{first}, then {then}");
        node.now += Duration::from_secs(1);
        let ended = node.ended();
        let left = SocketAddr::from(([10, 0, 2, 5], 80));
        assert!(!ended.is_empty(), "{first}, then {then}");
        assert!(ended.iter().all(|at| *at == left), "{ended:?}");
    }
}
