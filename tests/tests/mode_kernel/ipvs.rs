//! Switches to mode ipvs and from it. On a kernel without IPVS, the switch must not start;
//! `tests/kernel-rig/run` has a kernel with IPVS.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crds::condition::FEATURES_HONOURED;
use crds::condition::reason::MODE_NOT_HONOURED;
use crds::profile::mode::Mode;
use dataplane::{Family, Protocol};
use libtest_mimic::Trial;
use netlink::ipvs::{
    IpvsSocket, Operation, SchedulerName, Seconds, VirtualServer, VirtualServerKey,
};
use serde_json::json;
use tests::deadline::{patience, wait_for};
use tests::ipvs_support::find_ipvs;
use tests::network::{Connections, Kind, Outcome, Way};
use tests::trial::trial;
use xtables::Variant;

use crate::departures::{FAILS_WITHIN, ask, connect, connect_to};
use crate::drain_deadline::Agent;
use crate::every_write::{After, start, switch};
use crate::manifests::{self, NODE_PORT, endpoints};
use crate::stage::{PROMPTLY, Place, SERVING, Stage};
use crate::{
    changes_by_others, departures, drain_deadline, handback, icmp_and_fragments, interruptions,
    settings, shared_endpoint,
};

/// The interval between two connections of one client. Three hundred connections a second leave no
/// processor time for the agent on an emulated machine.
const EVERY: Duration = Duration::from_millis(200);
/// The number of additional Services. An emulated machine takes half a minute to parse the
/// manifests of two hundred.
const FEW: u8 = 20;
/// Far more than the two minutes for which IPVS remembers a closed connection, on a machine that is
/// not emulated.
pub(crate) const ENDS_WITHIN: Duration = Duration::from_secs(150);
/// The variant of iptables used by other programs. It makes no difference here.
const OTHERS: Variant = Variant::NfTables;
/// When the agent is killed after a change of the mode, in milliseconds.
const MOMENTS: [u64; 6] = [10, 40, 90, 160, 250, 400];
/// The table of the route that the mode adds.
const ROUTES: &str = "1396703232";

type Test = fn() -> Result<()>;

/// The switches after whose writes the agent is killed.
const KILLED_AFTER_WRITES: [(&str, [Mode; 2], Variant, After); 4] = [
    (
        "middle_of_nftables_and_ipvs",
        [Mode::Nftables, Mode::Ipvs],
        Variant::NfTables,
        After::Middle,
    ),
    (
        "all_of_nftables_and_ipvs",
        [Mode::Nftables, Mode::Ipvs],
        Variant::NfTables,
        After::Every,
    ),
    (
        "all_of_iptables_nft_and_ipvs",
        [Mode::Iptables, Mode::Ipvs],
        Variant::NfTables,
        After::Every,
    ),
    (
        "all_of_iptables_legacy_and_ipvs",
        [Mode::Iptables, Mode::Ipvs],
        Variant::Legacy,
        After::Every,
    ),
];

/// Returns all tests. Those that this kernel does not support are marked as skipped, and those of
/// [`KILLED_AFTER_WRITES`] if there is an obstacle.
pub(crate) fn trials(obstacle: Option<&str>) -> Result<Vec<Trial>> {
    let missing = find_ipvs(&["rr"])?;
    let with: [(&str, Test); 15] = [
        (
            "t120_connections_outlive_every_switch_to_mode_ipvs_and_from_it",
            || around(Variant::Legacy),
        ),
        (
            "t120_connections_outlive_every_switch_beside_iptables_on_nf_tables",
            || around(Variant::NfTables),
        ),
        (
            "t121_a_switch_to_mode_ipvs_that_was_cut_short_is_completed",
            killed_while_switching,
        ),
        (
            "t98_agents_that_are_killed_again_and_again_lose_no_connection::of_mode_ipvs",
            || {
                let stage = Stage::build_with(OTHERS, FEW)?.serve(Mode::Ipvs)?;
                interruptions::kill_again_and_again(stage, Mode::Ipvs, FEW, EVERY)
            },
        ),
        (
            "t122_after_a_cleanup_nothing_of_mode_ipvs_is_left_and_other_virtual_servers_stay",
            cleanup,
        ),
        (
            "t123_what_other_programs_change_comes_back_without_a_periodic_check::ipvs",
            || changes_by_others::are_repaired(OTHERS),
        ),
        (
            "t124_timeouts_of_the_profile_are_set",
            timeouts_of_the_profile,
        ),
        (
            "t129_where_ipvs_cannot_be_set_up_mode_ipvs_is_not_begun",
            settings::that_cannot_be_written,
        ),
        (
            "t166_connections_outlive_a_switch_to_mode_ipvs_and_back",
            there_and_back,
        ),
        (
            "t178_connections_outlive_their_endpoint_and_service::ipvs",
            || departures::connections_outlive(Mode::Ipvs, OTHERS),
        ),
        (
            "t179_connections_to_an_endpoint_that_has_left_end_with_the_deadline::ipvs",
            || drain_deadline::is_kept(Agent::Runs),
        ),
        (
            "t179_connections_to_an_endpoint_that_has_left_end_with_the_deadline_of_another_agent::ipvs",
            || drain_deadline::is_kept(Agent::IsReplaced),
        ),
        ("t180_fragments_and_icmp_errors_pass::ipvs", || {
            icmp_and_fragments::pass(Mode::Ipvs, OTHERS)
        }),
        (
            "t181_two_services_share_an_endpoint_and_a_clients_port::ipvs",
            || shared_endpoint::serves_both(Mode::Ipvs, OTHERS),
        ),
        (
            "t254_connections_outlive_a_handback::ipvs",
            handback::outlived_by_connections,
        ),
    ];
    let mut trials: Vec<Trial> = with
        .into_iter()
        .map(|(name, test)| trial(name, test).with_ignored_flag(missing.is_some()))
        .collect();
    for (name, modes, variant, at) in KILLED_AFTER_WRITES {
        let name = format!("t285_a_switch_that_is_killed_after_any_write_is_completed::{name}");
        let is_skipped = missing.is_some() || obstacle.is_some();
        let test = move || switch::is_completed(modes, variant, at);
        trials.push(trial(&name, test).with_ignored_flag(is_skipped));
    }
    // No earlier version has written it in another layout.
    for (story, start) in start::STORIES {
        if start != start::Start::AnotherLayout {
            let test = move || start::is_completed(start, Mode::Ipvs, OTHERS);
            let trial = trial(&format!("{story}::of_mode_ipvs"), test);
            trials.push(trial.with_ignored_flag(missing.is_some() || obstacle.is_some()));
        }
    }
    let without_scheduler: (&str, Test) = (
        "t165_a_scheduler_that_the_kernel_lacks_is_replaced_and_named_and_the_mode_stays",
        schedulers,
    );
    // Debian's kernels lack it, and the user-mode kernel has it.
    let has_twos = missing.is_none() && find_ipvs(&["twos"])?.is_none();
    if has_twos {
        println!(
            "SKIPPED: {}: the kernel has ip_vs_twos",
            without_scheduler.0
        );
    }
    let test = trial(without_scheduler.0, without_scheduler.1);
    trials.push(test.with_ignored_flag(missing.is_some() || has_twos));
    let without: (&str, Test) = (
        "t128_where_the_kernel_has_no_ipvs_nftables_goes_on_and_the_module_is_named",
        kernel_without_ipvs,
    );
    trials.push(trial(without.0, without.1).with_ignored_flag(missing.is_none()));
    if let Some(why) = missing {
        println!("SKIPPED: every test of mode ipvs: {why}");
    }
    Ok(trials)
}

/// Returns a socket for the virtual servers of the node.
pub(crate) fn servers(stage: &Stage) -> Result<IpvsSocket> {
    Ok(stage
        .node()?
        .enter(|| IpvsSocket::open(backend_ipvs::MARKS))??)
}

/// Failure story T120: all switches between modes. Connections made in each mode survive in the
/// others, and clients notice nothing. Ends in a mode whose periodic checks read everything: the
/// leftovers of mode ipvs are removed all the same.
fn around(variant: Variant) -> Result<()> {
    let stage = Stage::build_with(variant, FEW)?.serve(Mode::Iptables)?;
    let mut ways = stage.ways()?;
    ways.extend(stage.ways_by(Protocol::Udp)?);
    let clients = Connections::start(&ways, &[Kind::New], EVERY)?;
    let of_iptables = kept(&stage)?;

    switch(&stage, Mode::Ipvs)?;
    stage.expect_only(Place::Ipvs)?;
    stage.expect_condition(FEATURES_HONOURED, "True")?;
    ensure!(stage.agent()?.get("/proxyMode")? == "ipvs");
    let of_ipvs = kept(&stage)?;
    switch(&stage, Mode::Iptables)?;
    let places = stage.places()?;
    let expected = [Place::Iptables(variant), Place::IpvsEnding].into();
    ensure!(places == expected, "{places:?}");

    switch(&stage, Mode::Nftables)?;
    let of_nftables = kept(&stage)?;
    // A return while connections of the first time remain.
    switch(&stage, Mode::Ipvs)?;
    stage.expect_only(Place::Ipvs)?;
    let of_return = kept(&stage)?;
    switch(&stage, Mode::Nftables)?;
    switch(&stage, Mode::Iptables)?;
    for clients in [of_ipvs, of_return, of_nftables, of_iptables, clients] {
        clients.finish_unharmed()?;
    }
    wait_for("connections of IPVS to end", ENDS_WITHIN, || {
        let expected = [Place::Iptables(variant)].into();
        Ok((stage.places()? == expected).then_some(()))
    })?;
    ensure!(servers(&stage)?.observe_virtual_servers()?.own.is_empty());
    expect_no_delivery(&stage)
}

/// Starts clients in all places that keep their connections, over TCP and UDP.
fn kept(stage: &Stage) -> Result<Connections> {
    let mut ways = stage.ways()?;
    ways.extend(stage.ways_by(Protocol::Udp)?);
    Connections::start(&ways, &[Kind::Kept], EVERY)
}

fn switch(stage: &Stage, mode: Mode) -> Result<()> {
    stage.set_mode(mode)?;
    stage.expect_mode(mode)
}

fn expect_no_delivery(stage: &Stage) -> Result<()> {
    for family in ["-4", "-6"] {
        let mut command = stage.node()?.command("ip");
        let output = command.args([family, "rule", "list"]).output()?;
        let rules = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(!rules.contains("0x53400000"), "{rules}");
        let mut command = stage.node()?.command("ip");
        let output = command.args([family, "route", "list", "table", ROUTES]);
        // The kernel says of a table without routes that there is none.
        let routes = String::from_utf8_lossy(&output.output()?.stdout).into_owned();
        ensure!(routes.is_empty(), "{routes}");
    }
    Ok(())
}

/// Failure story T166: the same between two modes. Short enough to be part of every run of all
/// tests.
///
/// On the way to mode ipvs, a new connection of a pod was refused in one of two runs on a busy
/// machine: in a table that is deleted, maps find nothing any more while chains still refuse (failure
/// story T185). Eight switches and clients that connect every 50 ms met it in every run.
fn there_and_back() -> Result<()> {
    let stage = Stage::build_with(OTHERS, FEW)?.serve(Mode::Nftables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New], EVERY)?;
    let of_nftables = kept(&stage)?;
    let in_nftables = expect_more_connections_than(0.0, &stage)?;
    switch(&stage, Mode::Ipvs)?;
    stage.expect_only(Place::Ipvs)?;
    let in_ipvs = counted_connections(&stage)?;
    ensure!(
        in_ipvs >= in_nftables,
        "{in_ipvs} after {in_nftables} (T229)"
    );
    let of_ipvs = kept(&stage)?;
    switch(&stage, Mode::Nftables)?;
    expect_more_connections_than(in_ipvs, &stage)?;
    let places = stage.places()?;
    let expected = [Place::Nftables, Place::IpvsEnding].into();
    ensure!(places == expected, "{places:?}");
    stage.expect_answers(&SERVING)?;
    for clients in [of_ipvs, of_nftables, clients] {
        clients.finish_unharmed()?;
    }
    Ok(())
}

/// The connections that mode nftables has counted.
fn counted_connections(stage: &Stage) -> Result<f64> {
    stage.agent()?.metric("signpost_new_connections_total")
}

fn expect_more_connections_than(before: f64, stage: &Stage) -> Result<f64> {
    wait_for("a new connection to be counted", PROMPTLY, || {
        let counted = counted_connections(stage)?;
        Ok((counted > before).then_some(counted))
    })
}

/// Failure story T121: whenever the agent is killed, every client is served, and the next agent
/// completes the switch.
fn killed_while_switching() -> Result<()> {
    let mut stage = Stage::build_with(OTHERS, FEW)?.serve(Mode::Nftables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New], EVERY)?;
    let connected = kept(&stage)?;
    let modes = [Mode::Ipvs, Mode::Nftables].into_iter().cycle();
    for (mode, moment) in modes.zip(MOMENTS) {
        stage.set_mode(mode)?;
        // The fixed delay is the point of this test.
        std::thread::sleep(Duration::from_millis(moment));
        stage.kill_agent()?;
        stage.start_agent()?;
        stage.expect_mode(mode)?;
        wait_for("one mode to be left", PROMPTLY, || {
            let mut places = stage.places()?;
            places.remove(&Place::IpvsEnding);
            let expected = match mode {
                Mode::Ipvs => Place::Ipvs,
                _ => Place::Nftables,
            };
            Ok((places == [expected].into()).then_some(()))
        })?;
    }
    connected.finish_unharmed()?;
    clients.finish_unharmed()
}

/// Adds a virtual server of another program.
fn add_foreign_server(stage: &Stage) -> Result<()> {
    let marks = netlink::ipvs::MarkRange::new(0x4000_0000, 4).context("it is a range")?;
    let mut their_socket = stage.node()?.enter(|| IpvsSocket::open(marks))??;
    let key = VirtualServerKey {
        family: Family::Ipv4,
        mark: marks.mark(1).context("it is one of them")?,
    };
    let server = VirtualServer {
        scheduler: SchedulerName::new("wrr").context("it is a name")?,
        flags: netlink::ipvs::VirtualServerFlags::default(),
    };
    their_socket.commit(&[Operation::AddVirtualServer { key, server }])?;
    Ok(())
}

/// Failure story T122: cleanup removes Signpost's rules and virtual servers, and only those. A client
/// of a Service that is gone does not wait for an answer afterwards.
fn cleanup() -> Result<()> {
    let mut stage = Stage::build_with(OTHERS, FEW)?.serve(Mode::Ipvs)?;
    let mut socket = servers(&stage)?;
    add_foreign_server(&stage)?;
    ensure!(!socket.observe_virtual_servers()?.own.is_empty());
    let mut open = Vec::new();
    let at_node = |way: &Way| way.destination.port() == NODE_PORT;
    for way in stage.ways()?.into_iter().filter(at_node) {
        open.push((connect_to(&way)?.1, way));
    }
    stage.remove("web")?;
    wait_for("the Service to be gone", PROMPTLY, || {
        for (_, way) in &open {
            let outcome = way.observe_once(patience(FAILS_WITHIN))?;
            if matches!(outcome, Outcome::Answered { .. }) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })?;
    for (connection, way) in &mut open {
        ask(connection).with_context(|| format!("the Service is gone: {way}"))?;
    }
    stage.kill_agent()?;
    stage.clean_up()?;
    ensure!(stage.places()?.is_empty(), "{:?}", stage.places()?);
    let left = socket.observe_virtual_servers()?;
    ensure!(left.own.is_empty(), "{left:?}");
    ensure!(left.foreign.len() == 1, "{left:?}");
    expect_no_delivery(&stage)?;
    for (mut connection, way) in open {
        let Err(error) = ask(&mut connection) else {
            bail!("{way}: a connection goes on without any rule");
        };
        let is_wait = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        ensure!(!is_wait, "{way}: the client waits: {error}");
    }
    stage.clean_up()
}

/// Failure story T124: the kernel has the timeouts of the profile, and all other timeouts stay
/// unchanged. They hold for virtual servers of other programs, which the status names. A connection
/// that is idle for longer ends at its next packet, and its client learns of it.
fn timeouts_of_the_profile() -> Result<()> {
    let stage = Stage::build_with(OTHERS, FEW)?.serve(Mode::Ipvs)?;
    let mut socket = servers(&stage)?;
    let before = socket.observe_timeouts()?.context("IPVS is loaded")?;
    let mut profile = manifests::profile("ipvs");
    // No namespace but the first may raise the limit, and on a small machine it is below the default.
    profile["spec"]["conntrack"] = json!({"maxPerCore": 0});
    profile["spec"]["ipvs"] = json!({});
    let without_timeouts = profile.clone();
    profile["spec"]["ipvs"] = json!({"udpTimeout": "42s"});
    stage.apply("profile", &profile)?;
    let seconds = |count| NonZeroU32::new(count).map(Seconds);
    wait_for("the timeout to be set", PROMPTLY, || {
        let after = socket.observe_timeouts()?.context("IPVS is loaded")?;
        ensure!(after.tcp == before.tcp && after.tcp_fin == before.tcp_fin);
        Ok((Some(after.udp) == seconds(42)).then_some(()))
    })?;
    stage.expect_condition(FEATURES_HONOURED, "True")?;
    add_foreign_server(&stage)?;
    let said = stage.expect_condition(FEATURES_HONOURED, "False")?;
    for part in ["ipvs.udpTimeout", "FWM 1073741825"] {
        ensure!(said.message.contains(part), "{said:?}");
    }
    profile["spec"]["ipvs"] = json!({"tcpTimeout": "4s", "tcpFinTimeout": "3s"});
    stage.apply("profile", &profile)?;
    wait_for("the other timeouts to be set", PROMPTLY, || {
        let after = socket.observe_timeouts()?.context("IPVS is loaded")?;
        ensure!(Some(after.udp) == seconds(42));
        let after = (Some(after.tcp), Some(after.tcp_fin));
        Ok((after == (seconds(4), seconds(3))).then_some(()))
    })?;
    let (_, mut idle) = connect(&stage)?;
    ask(&mut idle)?;
    wait_for("IPVS to forget the connection", PROMPTLY, || {
        let own = socket.observe_virtual_servers()?.own.into_keys();
        let listed = socket.observe_destinations_of(own)?;
        let mut all = listed.iter().flat_map(|(_, all)| all.values());
        Ok((!all.any(|(_, connections)| connections.active > 0)).then_some(()))
    })?;
    let Err(error) = ask(&mut idle) else {
        bail!("a connection that IPVS has forgotten goes on");
    };
    let is_wait = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    ensure!(!is_wait, "the client waits: {error}");
    // The other program's virtual server is still there, and the sysctls of the mode affect it, too.
    stage.expect_message(FEATURES_HONOURED, |said| {
        said.contains("ipvs.tcpTimeout") && said.contains("mode ipvs needs sysctls")
    })?;
    stage.apply("profile", &without_timeouts)?;
    stage.expect_message(FEATURES_HONOURED, |said| {
        !said.contains("Timeout") && said.contains("mode ipvs needs sysctls")
    })
}

/// Failure story T165: one Service requests a scheduler for which this kernel has no module; all
/// others have the profile's.
fn schedulers() -> Result<()> {
    let stage = Stage::build_with(OTHERS, FEW)?.serve(Mode::Ipvs)?;
    let of_ipvs = Connections::start(&stage.ways()?, &[Kind::Kept], EVERY)?;
    let mut profile = manifests::profile("ipvs");
    profile["spec"]["loadBalancer"] = json!({"scheduler": "sed"});
    stage.apply("profile", &profile)?;
    let mut web = manifests::service("web", 10);
    web["metadata"]["annotations"] = json!({"signpost.dev/scheduler": "twos"});
    stage.apply("web", &web)?;
    let said = stage.expect_condition(FEATURES_HONOURED, "False")?;
    let named = [
        "Service shop/web: lc in the place of scheduler twos",
        "module ip_vs_twos",
    ];
    ensure!(
        named.iter().all(|part| said.message.contains(part)),
        "{said:?}"
    );
    stage.expect_mode(Mode::Ipvs)?;
    // Virtual servers of both families: `shop/web` with two protocols, and the others.
    let mut socket = servers(&stage)?;
    let mut last = BTreeMap::new();
    wait_for("the schedulers of all Services", PROMPTLY, || {
        let found = socket.observe_virtual_servers()?.own;
        last = BTreeMap::new();
        for server in found.into_values() {
            *last.entry(server.scheduler.to_string()).or_insert(0) += 1;
        }
        let expected = [("lc", 4), ("sed", 2 * usize::from(FEW))];
        let expected = expected.map(|(name, count)| (name.to_owned(), count));
        Ok((last == expected.into()).then_some(()))
    })
    .with_context(|| format!("they are {last:?}, and the status says: {said:?}"))?;
    stage.expect_mode(Mode::Ipvs)?;
    stage.expect_answers(&SERVING)?;
    of_ipvs.finish_unharmed()
}

/// Failure story T128: nothing is written, the status names the missing module, and the node is
/// served.
fn kernel_without_ipvs() -> Result<()> {
    let stage = Stage::build_with(OTHERS, FEW)?.serve(Mode::Nftables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    stage.set_mode(Mode::Ipvs)?;
    let said = stage.expect_condition(FEATURES_HONOURED, "False")?;
    ensure!(said.reason == MODE_NOT_HONOURED.name, "{said:?}");
    let named = ["mode ipvs", "nftables is used", "module ip_vs"];
    ensure!(
        named.iter().all(|part| said.message.contains(part)),
        "{said:?}"
    );
    stage.expect_mode(Mode::Nftables)?;
    stage.expect_only(Place::Nftables)?;
    stage.apply("web-endpoints", &endpoints("web", &SERVING[..1]))?;
    stage.expect_answers(&SERVING[..1])?;
    stage.apply("web-endpoints", &endpoints("web", &SERVING))?;
    clients.finish_unharmed()
}
