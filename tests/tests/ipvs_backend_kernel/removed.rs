//! Virtual servers that another program removes between two full reads.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use backend::{Backend, Drift, Rendered};
use backend_ipvs::MARKS;
use dataplane::{Dataplane, Family, compile};
use netlink::ipvs::{IpvsSocket, Operation};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};
use tests::network::Namespace;
use tests::programmed::program;

use crate::open;

/// So many that a full read is not due again at once.
const PORTS: u16 = 1_000;

/// Failure story T301: of 10,000 Services everything is read every half a minute, and a virtual
/// server that another program removed was missed no sooner.
pub(super) fn is_missed(namespace: &Namespace) -> Result<()> {
    let dataplane = dataplane();
    let mut socket = namespace.enter(|| IpvsSocket::open(MARKS))??;
    for (backend, family) in open(namespace)?.iter_mut().zip(Family::ALL) {
        program(backend, &dataplane, &Rendered::default())?;
        backend.observe()?;
        let drift = backend.observe_drift()?;
        ensure!(
            drift == Drift::NoneInPart,
            "directly after a full read: {drift:?}"
        );
        let own = socket.observe_virtual_servers()?.own.into_keys();
        let mut of_family = own.filter(|key| key.family == family);
        let key = of_family.next().context("there are virtual servers")?;
        socket.commit(&[Operation::RemoveVirtualServer { key }])?;
        let drift = backend.observe_drift()?;
        ensure!(drift == Drift::Possible, "without {key:?}: {drift:?}");
    }
    Ok(())
}

/// One dual-stack Service of many ports.
fn dataplane() -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .cluster_ip("fd00:10:96::10");
    let mut all = mk_endpoints();
    for port in 1..=PORTS {
        let name = port.to_string();
        service = service.port(&name, port);
        all = all.tcp(&name).ready("10.0.1.5:8080", "node-1");
        all = all.ready("[fd00:10:0:1::5]:8080", "node-1");
    }
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    let rules = compile(&service.build(), &all.build(), &node, &config);
    dataplane.set(rules.into());
    dataplane
}
