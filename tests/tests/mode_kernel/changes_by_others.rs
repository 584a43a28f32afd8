//! What other programs change of mode ipvs, without a notification.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::profile::mode::Mode;
use netlink::ipvs::{
    Destination, IpvsSocket, Operation, SchedulerName, VirtualServer, VirtualServerKey, Weight,
};
use serde_json::json;
use tests::deadline::wait_for;
use xtables::Variant;

use crate::ipvs::servers;
use crate::stage::{PROMPTLY, SERVING, Stage};
use crate::{manifests, settings};

/// How long a change of another program may stay in a kernel with a few Services, which is read in
/// milliseconds: the second between two checks, one check, and its repair.
const REPAIRED_WITHIN: Duration = Duration::from_secs(3);

/// Failure story T123, and T344 of the settings: the kernel sends no notification of these changes, and
/// the periodic check is far away. The agent looks by itself every second or two.
pub(crate) fn are_repaired(others: Variant) -> Result<()> {
    let stage = Stage::build_with(others, 1)?;
    let there = settings::those_there(&stage)?;
    settings::reset(&stage, &there)?;
    let stage = stage.serve(Mode::Ipvs)?;
    ensure!(settings::are_set(&stage, &there)?, "{there:?} are not set");
    let mut profile = manifests::profile("ipvs");
    profile["spec"]["syncPeriod"] = json!("1h");
    stage.apply("profile", &profile)?;
    stage.expect_mode(Mode::Ipvs)?;
    stage.expect_answers(&SERVING)?;
    let mut socket = servers(&stage)?;
    // Other virtual servers take the place of removed ones, under other marks.
    let before = observe(&mut socket)?;
    let all = before
        .iter()
        .map(|(key, ..)| Operation::RemoveVirtualServer { key: *key });
    socket.commit(&all.collect::<Vec<_>>())?;
    // Further changes are repaired later and later, in case the other program repeats them.
    wait_for("virtual servers removed", REPAIRED_WITHIN, || {
        Ok((without_marks(&observe(&mut socket)?) == without_marks(&before)).then_some(()))
    })?;
    stage.expect_answers(&SERVING)?;
    let before = observe(&mut socket)?;
    let (key, server, destinations) = before.first().context("there are some")?;
    let (address, destination) = destinations.first().context("it has some")?;
    let (key, address) = (*key, *address);
    let heavy = Destination {
        weight: Weight(7),
        ..*destination
    };
    let other = VirtualServer {
        scheduler: SchedulerName::new("lc").context("it is a name")?,
        ..server.clone()
    };
    let changes: [(&str, Vec<Operation>); 3] = [
        (
            "a destination removed",
            vec![Operation::RemoveDestination { key, address }],
        ),
        (
            "a weight",
            vec![Operation::SetDestination {
                key,
                address,
                destination: heavy,
            }],
        ),
        (
            "a scheduler",
            vec![Operation::SetVirtualServer { key, server: other }],
        ),
    ];
    for (what, operations) in changes {
        socket.commit(&operations)?;
        wait_for(what, PROMPTLY, || {
            Ok((observe(&mut socket)? == before).then_some(()))
        })?;
    }
    let rule = ["rule", "del", "priority", "83"];
    let output = stage.node()?.command("ip").args(rule).output()?;
    ensure!(output.status.success(), "{output:?}");
    wait_for("the routing rule", PROMPTLY, || {
        let rules = stage
            .node()?
            .command("ip")
            .args(["rule", "list"])
            .output()?;
        let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
        Ok(rules.contains("0x53400000").then_some(()))
    })?;
    settings::reset(&stage, &there)?;
    wait_for("the settings", PROMPTLY, || {
        Ok(settings::are_set(&stage, &there)?.then_some(()))
    })?;
    stage.expect_answers(&SERVING)
}

/// A virtual server and its destinations.
type Listed = (
    VirtualServerKey,
    VirtualServer,
    Vec<(SocketAddr, Destination)>,
);

/// Returns the virtual servers of Signpost and their destinations, without their connections.
fn observe(socket: &mut IpvsSocket) -> Result<Vec<Listed>> {
    let own = socket.observe_virtual_servers()?.own;
    let behind = socket.observe_destinations_of(own.keys().copied())?;
    let listed = behind.into_iter().filter_map(|(key, destinations)| {
        let destinations = destinations.into_iter();
        let destinations = destinations.map(|(address, (destination, _))| (address, destination));
        Some((key, own.get(&key)?.clone(), destinations.collect()))
    });
    Ok(listed.collect())
}

/// The virtual servers of each family, whatever their marks.
fn without_marks(listed: &[Listed]) -> Vec<String> {
    let mut all: Vec<String> = listed
        .iter()
        .map(|(key, server, destinations)| format!("{} {server:?} {destinations:?}", key.family))
        .collect();
    all.sort();
    all
}
