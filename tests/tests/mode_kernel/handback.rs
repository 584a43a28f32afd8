//! A handback from mode ipvs, which established connections outlive.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::condition::READY;
use crds::condition::reason::HANDED_BACK;
use crds::profile::mode::Mode;
use dataplane::Protocol;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use netlink::ipvs::IpvsSocket;
use serde_json::json;
use socket2::SockRef;
use tests::deadline::wait_for;
use tests::network::{Connections, Kind, Outcome, Way};
use xtables::Variant;

use crate::departures::{ask, connect_to};
use crate::manifests::{self, NODE_PORT};
use crate::stage::{Place, SERVING, Stage};

const FEW: u8 = 2;
/// The interval between two datagrams of a client.
const EVERY: Duration = Duration::from_millis(200);
/// How long a new connection may take that is expected to fail.
const FAILS_WITHIN: Duration = Duration::from_secs(1);
/// Far more than the ten seconds for which IPVS remembers a connection that was reset.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// Failure story T254: a node that goes back from mode ipvs to kube-proxy ended every connection. No
/// proxy can take over connections of IPVS, but they go on without Signpost's rules, also when the
/// agent is started again; with the last one everything goes. No kube-proxy runs here, so nothing
/// else can have served them.
pub(crate) fn outlived_by_connections() -> Result<()> {
    let stage = Stage::build_with(Variant::NfTables, FEW)?;
    let mut profile = manifests::profile("ipvs");
    profile["spec"]["ipvs"]["udpTimeout"] = json!("3s");
    let mut stage = stage.serve(Mode::Ipvs)?;
    stage.apply("profile", &profile)?;
    stage.expect_mode(Mode::Ipvs)?;

    let mut kept = Vec::new();
    for way in stage.ways()? {
        let (_, stream) = connect_to(&way).with_context(|| way.to_string())?;
        // So that it is reset at its end, and soon forgotten.
        SockRef::from(stream.get_ref()).set_linger(Some(Duration::ZERO))?;
        kept.push((way, stream));
    }
    let flows = Connections::start(&stage.ways_by(Protocol::Udp)?, &[Kind::Kept], EVERY)?;

    stage.run(&["handback", "--force"])?;
    let ending = [Place::IpvsEnding].into();
    ensure!(stage.places()? == ending, "{:?}", stage.places()?);
    let reported = stage.expect_condition(READY, "False")?;
    ensure!(reported.reason == HANDED_BACK.name, "{reported:?}");
    for (way, stream) in &mut kept {
        ask(stream).with_context(|| format!("handed back: {way}"))?;
    }
    let is_node_port = |(way, _): &&(Way, _)| way.destination.port() == NODE_PORT;
    for (way, _) in kept.iter().filter(is_node_port) {
        let new = way.observe_once(FAILS_WITHIN)?;
        ensure!(!matches!(new, Outcome::Answered { .. }), "{way}: {new}");
    }

    stage.kill_agent()?;
    stage.start_agent()?;
    // Failure story T277: nothing said that the agent has to run until they end.
    stage
        .agent()?
        .wait_for("the connections in the status", |agent| {
            let ready = agent.condition(READY)?;
            let says = |ready: &Condition| ready.message.contains("connections of mode ipvs go on");
            Ok(ready.filter(says))
        })?;
    ensure!(stage.places()? == ending, "{:?}", stage.places()?);
    for (way, stream) in &mut kept {
        ask(stream).with_context(|| format!("the agent was started again: {way}"))?;
    }
    flows.finish_unharmed()?;
    drop(kept);
    wait_for("what connections need to go", ENDS_WITHIN, || {
        Ok(stage.places()?.is_empty().then_some(()))
    })?;
    let node = stage.node()?;
    let mut servers = node.enter(|| IpvsSocket::open(backend_ipvs::MARKS))??;
    let left = servers.observe_virtual_servers()?;
    ensure!(left.own.is_empty(), "{left:?}");

    stage.run(&["takeover"])?;
    stage.expect_mode(Mode::Ipvs)?;
    stage.expect_only(Place::Ipvs)?;
    stage.expect_answers(&SERVING)
}
