//! Endpoints that the kernel refuses.

use std::sync::Arc;

use anyhow::{Result, ensure};
use backend::Backend;
use backend_ipvs::MARKS;
use dataplane::{Dataplane, Family, ServiceRules, compile};
use netlink::ipvs::IpvsSocket;
use reconciler::{FamilyReconciler, Reason, SystemClock};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};
use tests::network::Namespace;

use crate::open;

/// The last address of the node's own network, which is one for all its hosts.
const OF_ALL_HOSTS: &str = "10.9.0.255";
/// The same by a route that the node's addresses do not tell of.
const BY_A_ROUTE: &str = "10.9.1.77";
const GOOD: &str = "10.9.0.7";

/// Failure story T373: one EndpointSlice with such an address, and on no node another change of a Service
/// was written again.
pub(super) fn leave_all_others_served(namespace: &Namespace) -> Result<()> {
    namespace.configure(
        "link set lo up\nlink add pods type bridge\nlink set pods up\naddr add 10.9.0.1/24 dev pods\n\
         route add broadcast 10.9.1.77 dev pods table local\n",
    )?;
    let mut socket = namespace.enter(|| IpvsSocket::open(MARKS))??;
    for bad in [OF_ALL_HOSTS, BY_A_ROUTE] {
        let [ipv4, _] = open(namespace)?;
        ensure!(ipv4.family() == Family::Ipv4);
        let mut family = FamilyReconciler::new(ipv4);
        // From the start on, and as a change beside that of others.
        for (reason, services) in [(Reason::Startup, 20), (Reason::Changed, 40)] {
            let desired = dataplane(services, bad);
            let mut sync = namespace.enter(|| family.sync(&desired, reason, &SystemClock))?;
            while family.is_unfinished() {
                let reason = Reason::Continued;
                sync = namespace.enter(|| family.sync(&desired, reason, &SystemClock))?;
            }
            let refused = sync.quarantined.iter().map(|q| q.service.to_string());
            let refused: Vec<String> = refused.collect();
            ensure!(
                refused == ["shop/service-17"],
                "{bad}: {refused:?} in {sync}"
            );
            let own = socket.observe_virtual_servers()?.own;
            ensure!(own.len() == usize::from(services) - 1, "{bad}: {own:?}");
        }
        let sync = namespace.enter(|| {
            let desired = dataplane(40, GOOD);
            family.sync(&desired, Reason::Changed, &SystemClock)
        })?;
        ensure!(sync.quarantined.is_empty(), "{bad}: {sync}");
        let own = socket.observe_virtual_servers()?.own;
        ensure!(own.len() == 40, "{bad}: {own:?}");
        let [mut ipv4, _] = open(namespace)?;
        let _ = ipv4.commit_removal()?;
    }
    Ok(())
}

/// Services of two endpoints, of which one is `other` for Service 17.
fn dataplane(services: u8, other: &str) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for number in 1..=services {
        let service = mk_service(&format!("shop/service-{number}"));
        let service = service.cluster_ip(&format!("10.96.0.{number}"));
        let second = match number {
            17 => other,
            _ => GOOD,
        };
        let endpoints = mk_endpoints().tcp("").ready("10.9.0.5:80", "node-1");
        let endpoints = endpoints.ready(&format!("{second}:80"), "node-1");
        let service = service.port("", 80).build();
        let rules: ServiceRules = compile(&service, &endpoints.build(), &node, &config);
        dataplane.set(rules.into());
    }
    dataplane
}
