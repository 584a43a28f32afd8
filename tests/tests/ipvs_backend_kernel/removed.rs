//! What another program removes between two full reads, and what Signpost removes where another
//! program does not let it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use backend::{Backend, Drift, Recovery, Rendered};
use backend_ipvs::{ENDING_TABLE, Ipvs, MARKS, Rules, TABLE};
use dataplane::{Dataplane, Family, compile};
use netlink::ipvs::{Destination, IpvsSocket, Operation, Thresholds, VirtualServerKey};
use netlink::nf_tables::family_name;
use netlink::route::{Presence, RouteSocket};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};
use tests::deadline::wait_for;
use tests::network::Namespace;
use tests::programmed::program;
use tests::table_owner::TableOwner;

use crate::{DELIVERY, open};

/// So many that a full read is not due again at once.
const MANY_PORTS: u16 = 1_000;
const FEW_PORTS: u16 = 3;
/// Twice the longest time between two full reads.
const PATIENCE: Duration = Duration::from_secs(60);
const ATTEMPTS: usize = 5;

/// Failure story T301: of 10,000 Services everything is read every half a minute, and a virtual
/// server that another program removed was missed no sooner.
pub(super) fn is_missed(namespace: &Namespace) -> Result<()> {
    let dataplane = dataplane(MANY_PORTS);
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

/// Failure story T376: the same with a destination, which the list of virtual servers does not show.
pub(super) fn is_missed_with_a_destination(namespace: &Namespace) -> Result<()> {
    let dataplane = dataplane(MANY_PORTS);
    for family in Family::ALL {
        // Both families of a backend share the time of the last look.
        let mut backends = open(namespace)?;
        let of_family = backends.iter_mut().find(|one| one.family() == family);
        let backend = of_family.context("there is one for each family")?;
        program(backend, &dataplane, &Rendered::default())?;
        let mut attempts = 0..ATTEMPTS;
        let found = attempts.find_map(|_| match misses_a_destination(namespace, backend) {
            Ok(false) => None,
            other => Some(other),
        });
        ensure!(
            found.transpose()?.is_some(),
            "{family}: only full reads found it"
        );
        let _ = backend.commit_removal()?;
    }
    Ok(())
}

/// Whether a destination that goes is missed by a look at the list. A full read that is due comes first
/// where something else kept the first look from the processor.
fn misses_a_destination(namespace: &Namespace, backend: &mut Ipvs) -> Result<bool> {
    backend.observe()?;
    let family = backend.family();
    // The list is that of the thread's network namespace.
    let mut look = || namespace.enter(|| backend.observe_drift());
    let drift = look()??;
    ensure!(drift == Drift::NoneInPart, "what there is: {drift:?}");
    let mut socket = namespace.enter(|| IpvsSocket::open(MARKS))??;
    let own = socket.observe_virtual_servers()?.own.into_keys();
    let own = own.filter(|key| key.family == family);
    let behind = socket.observe_destinations_of(own)?.into_iter();
    // An earlier attempt has removed one.
    let mut destinations = behind.filter_map(|(key, all)| Some((key, *all.keys().next()?)));
    let (key, address) = destinations.next().context("there are destinations")?;
    socket.commit(&[Operation::RemoveDestination { key, address }])?;
    wait_for("the destination is missed", PATIENCE, || {
        Ok((look()?? == Drift::Possible).then_some(()))
    })?;
    // A full read that is due remains so.
    Ok(look()?? == Drift::NoneInPart)
}

/// Failure story T462: a changed threshold, which only a read of everything shows, was found at the
/// price that changes waited for all destinations, those of 10,000 Services for a second. Checks now
/// read them before, and what Signpost changes meanwhile is read again.
pub(super) fn are_changed_in_thresholds(namespace: &Namespace) -> Result<()> {
    for family in Family::ALL {
        let mut backends = open(namespace)?;
        let of_family = backends.iter_mut().find(|one| one.family() == family);
        let backend = of_family.context("there is one for each family")?;
        let before = program(backend, &dataplane(MANY_PORTS), &Rendered::default())?;
        backend.observe()?;
        let mut socket = namespace.enter(|| IpvsSocket::open(MARKS))??;
        let limits = Thresholds { upper: 9, lower: 3 };
        let limited = destinations(&mut socket, family)?.into_iter();
        let limited = limited.map(|(key, address, destination)| Operation::SetDestination {
            key,
            address,
            destination: Destination {
                thresholds: limits,
                ..destination
            },
        });
        socket.commit(&limited.collect::<Vec<_>>())?;
        let look = |backend: &mut Ipvs| namespace.enter(|| backend.observe_drift());
        let is_due = |backend: &mut Ipvs| {
            wait_for("everything is to be read", PATIENCE, || {
                Ok((look(backend)?? == Drift::Possible).then_some(()))
            })
        };
        is_due(backend)?;
        let after = program(backend, &half_replaced(MANY_PORTS), &before)?;
        is_due(backend)?;
        let found = backend.observe()?;
        ensure!(
            found == backend.observe()?,
            "{family}: read before a change"
        );
        let repair = backend.diff(&found, &after.rules);
        let _ = backend.commit(repair)?;
        let all = destinations(&mut socket, family)?;
        let limited = all.iter().find(|(.., held)| held.thresholds == limits);
        ensure!(limited.is_none(), "{family}: {limited:?}");

        // Another program's changes are read anew, too.
        backend.observe()?;
        is_due(backend)?;
        let [(gone, ..), (key, address, _), ..] = *all else {
            bail!("{family}: {all:?}");
        };
        socket.commit(&[
            Operation::RemoveVirtualServer { key: gone },
            Operation::RemoveDestination { key, address },
        ])?;
        ensure!(
            look(backend)?? == Drift::Possible,
            "{family}: {gone:?} is gone"
        );
        let found = backend.observe()?;
        ensure!(
            found == backend.observe()?,
            "{family}: read before {key:?} lost {address}"
        );
        let _ = backend.commit_removal()?;
    }
    Ok(())
}

/// All destinations of a family.
fn destinations(
    socket: &mut IpvsSocket,
    family: Family,
) -> Result<Vec<(VirtualServerKey, SocketAddr, Destination)>> {
    let own = socket.observe_virtual_servers()?.own.into_keys();
    let own = own.filter(|key| key.family == family);
    let behind = socket.observe_destinations_of(own)?.into_iter();
    let all = behind.flat_map(|(key, all)| {
        all.into_iter()
            .map(move |(address, (destination, _))| (key, address, destination))
    });
    Ok(all.collect())
}

/// Failure story T341: where another process owns a table, it stays, and all the rest goes all the same.
/// Otherwise virtual servers, the routing rule and its route would stay for ever.
pub(super) fn is_all_but_a_table_of_another_process(namespace: &Namespace) -> Result<()> {
    namespace.configure("link set lo up")?;
    let dataplane = dataplane(FEW_PORTS);
    let mut servers = namespace.enter(|| IpvsSocket::open(MARKS))??;
    let mut routes = namespace.enter(RouteSocket::open)??;
    for table in [TABLE, ENDING_TABLE] {
        for (backend, family) in open(namespace)?.iter_mut().zip(Family::ALL) {
            let case = || format!("{family}, {table}");
            program(backend, &dataplane, &Rendered::default())?;
            namespace.nft(&["delete", "table", family_name(family), TABLE])?;
            let owner = TableOwner::start(namespace, family, &[table])?;
            let error = backend.commit_removal().err().with_context(case)?;
            ensure!(error.recovery == Recovery::Halt, "{}: {error:?}", case());
            let own = servers.observe_virtual_servers()?.own;
            ensure!(own.is_empty(), "{}: {own:?}", case());
            let delivery = routes.observe(family, &DELIVERY)?;
            ensure!(delivery == Presence::Absent, "{}: {delivery:?}", case());
            drop(owner);
            let _ = backend.commit_removal().with_context(case)?;
            ensure!(backend.observe()? == Rules::default(), "{}", case());
        }
    }
    Ok(())
}

/// One dual-stack Service of so many ports.
pub(super) fn dataplane(ports: u16) -> Dataplane {
    with_endpoints(ports, |_| 5)
}

/// The same, with another endpoint behind every second port.
fn half_replaced(ports: u16) -> Dataplane {
    with_endpoints(ports, |port| 5 + port % 2)
}

fn with_endpoints(ports: u16, host: impl Fn(u16) -> u16) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .cluster_ip("fd00:10:96::10");
    let mut all = mk_endpoints();
    for port in 1..=ports {
        let name = port.to_string();
        service = service.port(&name, port);
        let host = host(port);
        all = all
            .tcp(&name)
            .ready(&format!("10.0.1.{host}:8080"), "node-1");
        all = all.ready(&format!("[fd00:10:0:1::{host}]:8080"), "node-1");
    }
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    let rules = compile(&service.build(), &all.build(), &node, &config);
    dataplane.set(rules.into());
    dataplane
}
