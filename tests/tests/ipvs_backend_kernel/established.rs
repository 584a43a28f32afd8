//! Connections that are open while something changes about them.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use anyhow::{Context, Result, ensure};
use backend::{Backend, Drift, Remains};
use backend_ipvs::Rules;
use dataplane::Family;

use crate::stage::{Affinity, SERVING, Stage, cluster_ip, node_port, server};

/// Failure story T299: the connection tracking table is flushed, or overflows, and IPVS still has its
/// entry. A connection to a cluster IP goes on. One that was masqueraded has lost its translated
/// address: it ends at its next packet, and the client is not left waiting. New ones are served.
pub(super) fn without_conntrack() -> Result<()> {
    let mut stage = Stage::build()?;
    stage.serve(&SERVING, Affinity::None)?;
    for family in Family::ALL {
        let mut plain = stage.connect(cluster_ip(family))?;
        let mut masqueraded = stage.connect(node_port(family))?;
        let flushed = stage.node()?.command("conntrack").arg("-F").output()?;
        ensure!(flushed.status.success(), "{flushed:?}");
        plain
            .ask()
            .with_context(|| format!("{family}: at the cluster IP"))?;
        if let Err(error) = masqueraded.ask() {
            let kind = error
                .downcast_ref::<std::io::Error>()
                .map(std::io::Error::kind);
            let is_told = kind.is_some_and(|kind| {
                [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof].contains(&kind)
            });
            ensure!(is_told, "{family}: at the node port: {error:#}");
        }
        for destination in [cluster_ip(family), node_port(family)] {
            stage.connect(destination)?.ask()?;
        }
    }
    Ok(())
}

/// Failure story T314: the mode has ended, connections remain, and another program flushes all rules.
/// The virtual servers of these connections are no rules of the mode that came back.
pub(super) fn whose_table_goes() -> Result<()> {
    let mut stage = Stage::build()?;
    stage.serve(&SERVING, Affinity::None)?;
    let open = Family::ALL.map(|family| stage.connect(cluster_ip(family)));
    let node = stage.node()?.clone();
    for (backend, _) in &mut stage.backends {
        let remains = backend.commit_withdrawal()?;
        let are_kept = matches!(remains, Remains::Connections(_));
        ensure!(are_kept, "{}: {remains:?}", backend.family());
    }
    node.nft(&["flush ruleset"])?;
    for (backend, _) in &mut stage.backends {
        let family = backend.family();
        let drift = backend.observe_drift()?;
        ensure!(drift == Drift::None, "{family}: {drift:?}");
        let found = backend.observe()?;
        ensure!(found == Rules::default(), "{family}: {found:?}");
    }
    open.into_iter().try_for_each(|one| one.map(drop))
}

/// Failure story T300: the endpoint of a client with session affinity leaves. New connections go to
/// another one at once; those that the client has stay, the first, which IPVS took, and a later one,
/// which the affinity of the client led past IPVS.
pub(super) fn of_clients_that_move() -> Result<()> {
    let mut stage = Stage::build()?;
    stage.serve(&SERVING, Affinity::ClientIp)?;
    let mut open = Vec::new();
    for family in Family::ALL {
        let first = stage.connect(cluster_ip(family))?;
        let second = stage.connect(cluster_ip(family))?;
        ensure!(
            first.server == second.server,
            "{family}: it has no affinity"
        );
        open.extend([(family, first), (family, second)]);
    }
    let held: BTreeSet<String> = open.iter().map(|(_, one)| one.server.clone()).collect();
    for leaving in SERVING
        .into_iter()
        .filter(|pod| held.contains(&server(*pod)))
    {
        let staying: Vec<u8> = SERVING.into_iter().filter(|pod| *pod != leaving).collect();
        stage.serve(&staying, Affinity::ClientIp)?;
        for (family, one) in &mut open {
            let moved = stage.connect(cluster_ip(*family))?;
            ensure!(
                moved.server == server(staying[0]),
                "{family}: {}",
                moved.server
            );
            one.ask()
                .with_context(|| format!("{family}: {leaving} has left"))?;
        }
        stage.serve(&SERVING, Affinity::ClientIp)?;
    }
    Ok(())
}
