//! An endpoint at a loopback address: a process of the node that other machines cannot reach.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend::{Backend, Rendered};
use dataplane::{Dataplane, Family, Protocol};
use tests::deadline::patience;
use tests::network::{Way, start_server};
use tests::programmed::program;

use crate::stage::{Affinity, PATIENCE, Stage, is_by, service};
use crate::untaken::ways;

/// The name of the node's server, and its port.
const ON_LOOPBACK: &str = "on-loopback";
const PORT: u16 = 8080;
/// How long a client waits for an answer that does not come.
const PROMPTLY: Duration = Duration::from_millis(300);

/// Failure story T342: the node itself reaches such an endpoint through the Service. A pod does not:
/// the kernel drops what comes from another machine for a loopback address. So it is in mode
/// nftables.
pub(super) fn serves_the_node_alone() -> Result<()> {
    let mut stage = Stage::build()?;
    let listening = Family::ALL.map(loopback);
    let _server = start_server(stage.node()?, ON_LOOPBACK, &listening)?;
    let desired = service(&listening.map(|at| vec![at]), Affinity::None, None);
    stage.program(&desired)?;
    expect_for_the_node_alone(&stage).context("mode ipvs")?;
    for (backend, held) in &mut stage.backends {
        let _ = backend.commit_removal()?;
        *held = Rendered::default();
    }
    stage.node()?.enter(|| program_nftables(&desired))??;
    expect_for_the_node_alone(&stage).context("mode nftables")
}

fn program_nftables(desired: &Dataplane) -> Result<()> {
    for mut backend in backend_nftables::open()? {
        program(&mut backend, desired, &Rendered::default())?;
    }
    Ok(())
}

fn expect_for_the_node_alone(stage: &Stage) -> Result<()> {
    let is_served = |way: &Way| way.from == "the node";
    let mut answered = BTreeMap::new();
    let mut expected = BTreeMap::new();
    // What does not come takes a while.
    let is_asked = |way: &Way| is_served(way) || way.protocol == Protocol::Tcp;
    for (_, way) in ways(stage)?.into_iter().filter(|(_, way)| is_asked(way)) {
        let deadline = match is_served(&way) {
            true => PATIENCE,
            false => patience(PROMPTLY),
        };
        let outcome = way.observe_once(deadline)?;
        answered.insert(way.to_string(), is_by(&outcome, ON_LOOPBACK));
        expected.insert(way.to_string(), is_served(&way));
    }
    ensure!(answered == expected, "answered: {answered:?}");
    Ok(())
}

fn loopback(family: Family) -> SocketAddr {
    let address = match family {
        Family::Ipv4 => IpAddr::from(Ipv4Addr::LOCALHOST),
        Family::Ipv6 => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(address, PORT)
}
