//! Virtual servers of a table that another program removes.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use backend::{Backend, Rendered};
use backend_ipvs::{Ipvs, MARKS, Rules, Step};
use dataplane::{Dataplane, Family};
use netlink::ipvs::IpvsSocket;
use tests::network::Namespace;
use tests::programmed::program;

use crate::open;
use crate::removed::dataplane;

const PORTS: u16 = 20;

/// Failure story T358: the repair of a flushed ruleset gave new marks, and the virtual servers of the old
/// ones went with their connections.
pub(super) fn is_filled_again_and_its_virtual_servers_stay(namespace: &Namespace) -> Result<()> {
    let dataplane = dataplane(PORTS);
    let mut socket = namespace.enter(|| IpvsSocket::open(MARKS))??;
    let mut marks = |family| -> Result<BTreeSet<u32>> {
        let own = socket.observe_virtual_servers()?.own.into_keys();
        let of_family = own.filter(|key| key.family == family);
        Ok(of_family.map(|key| key.mark.value()).collect())
    };
    for (family, commands) in [
        (
            Family::Ipv4,
            ["flush ruleset", "delete table ip signpost-ipvs"],
        ),
        (
            Family::Ipv6,
            ["flush ruleset", "delete table ip6 signpost-ipvs"],
        ),
    ] {
        let mut backend = of(family, namespace)?;
        program(&mut backend, &dataplane, &Rendered::default())?;
        let numbered = marks(family)?;
        ensure!(numbered.len() == usize::from(PORTS), "{numbered:?}");
        for command in commands {
            // Known from what it wrote, and then from what it read.
            repair(&mut backend, &dataplane, namespace, command)?;
            ensure!(marks(family)? == numbered, "{command}");
        }
        let mut started = of(family, namespace)?;
        started.observe()?;
        repair(&mut started, &dataplane, namespace, "flush ruleset")?;
        ensure!(marks(family)? == numbered, "after a restart");

        // Once the mode has ended, a number may have another owner.
        let held = started.observe()?;
        let _ = started.commit(started.diff(&held, &Rules::default()))?;
        program(&mut started, &dataplane, &Rendered::default())?;
        let again = marks(family)?;
        ensure!(again.is_disjoint(&numbered), "{again:?} after {numbered:?}");
        let _ = started.commit_removal()?;
    }
    Ok(())
}

fn of(family: Family, namespace: &Namespace) -> Result<Ipvs> {
    let [ipv4, ipv6] = open(namespace)?;
    Ok(match family {
        Family::Ipv4 => ipv4,
        Family::Ipv6 => ipv6,
    })
}

/// Repairs what `nft` has removed, without a change of a virtual server.
fn repair(
    backend: &mut Ipvs,
    dataplane: &Dataplane,
    namespace: &Namespace,
    command: &str,
) -> Result<()> {
    namespace.nft(&[command])?;
    let found = Rendered {
        dataplane: Dataplane::default(),
        rules: backend.observe()?,
    };
    let rules = backend.render(dataplane, &found);
    let change = backend.diff(&found.rules, &rules);
    let mut steps = change.steps().iter();
    ensure!(
        steps.all(|step| matches!(step, Step::Table(_))),
        "{command}: more is written than the table:\n{change}"
    );
    let _ = backend.commit(change)?;
    ensure!(backend.observe()? == rules, "{command}");
    Ok(())
}
