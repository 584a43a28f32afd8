//! kube-proxy in mode ipvs. The kernel cannot move a connection of IPVS to rules of nf_tables, so
//! virtual servers outlive a takeover for as long as they have connections.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use crds::ProxyProfileSpec;
use crds::condition::{FOREIGN_PROXY_DETECTED, READY};
use crds::profile::handover::Handover;
use crds::profile::mode;
use dataplane::Family;
use netlink::ipvs::{IpvsSocket, Seconds, Timeouts};
use testkit::address_plan as addresses;
use tests::deadline::wait_for;

use crate::crowd::Crowd;
use crate::handovers::{
    HITS, expect, is_handed_back, list_everything, run, use_node_port_that_closes,
};
use crate::interruptions::kill_before_the_last_step_of_a_handback;
use crate::stage::{Mode, NODE_ON_THE_WAY, NODE_PORT, OTHERS, Stage};
use crate::virtual_servers::{has_device, list, list_connections, list_sets};

/// The interval between two new connections of each of ten clients, on a slow machine.
const EVERY: Duration = Duration::from_millis(300);
/// How long the last virtual server may stay after its last connection. The kernel forgets a closed
/// TCP connection after two minutes (`tcp_timeouts` in net/netfilter/ipvs/ip_vs_proto_tcp.c), and the
/// agent looks every ten seconds.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(150);

/// Failure story T177: the only way off mode ipvs was `kube-proxy --cleanup`, which ends every open
/// connection and removes the virtual servers of other programs, too.
pub(crate) fn ended_with_their_connections(stage: &mut Stage) -> Result<()> {
    shorten_timeouts(stage)?;
    stage.start_kube_proxy(Mode::Ipvs)?;
    // Those of other programs: at an address of its own, and at a port of the node.
    let node_address = addresses::node_address(1, Family::Ipv4);
    let others = [
        format!("TCP {OTHERS}:80"),
        format!("UDP {node_address}:5353"),
    ];
    stage
        .node()?
        .configure(&format!("addr add {OTHERS}/32 dev lo\n"))?;
    let of_node = format!("{node_address}:5353");
    let elsewhere = format!("{OTHERS}:80");
    run(stage, "ipvsadm", &["-A", "-t", &elsewhere, "-s", "rr"])?;
    run(stage, "ipvsadm", &["-A", "-u", &of_node, "-s", "rr"])?;
    run(stage, "ipset", &["create", "others", "hash:ip"])?;
    let before = Crowd::gather_for(stage.topology(), EVERY)?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyIpvs")?;
    stage.stop_kube_proxy();

    let (rules, servers) = (list_everything(stage)?, list(stage.node()?)?);
    expect(
        stage.run(&["takeover", "--dry-run"])?,
        true,
        "from mode ipvs",
    )?;
    ensure!(
        list_everything(stage)? == rules && list(stage.node()?)? == servers,
        "a dry run changed something"
    );
    let took_over = stage.run(&["takeover"])?;
    ensure!(
        took_over.text.contains("of kube-proxy stay for now"),
        "{}",
        took_over.text
    );
    expect(took_over, true, "Signpost alone serves")?;
    stage.wait_for_foreign("False", "KubeProxyEnding")?;
    ensure!(
        !list_everything(stage)?.contains("KUBE-SERVICES"),
        "chains of kube-proxy are left"
    );

    // A restarted agent continues.
    stage.kill_agent()?;
    stage.start_agent()?;
    before.disperse()?;

    let after = Crowd::gather_for(stage.topology(), EVERY)?;
    let mut left = String::new();
    let gone = wait_for("the virtual servers to go", FORGOTTEN_WITHIN, || {
        left = list(stage.node()?)?;
        let has_some = left.lines().any(|line| !others.contains(&line.to_owned()));
        Ok((!has_some).then_some(()))
    });
    let connections = || list_connections(stage.node()?);
    gone.or_else(|error| Err(error.context(format!("{left}{}", connections()?))))?;
    stage.wait_for_foreign("False", "NoneFound")?;
    after.disperse()?;
    ensure!(!has_device(stage.node()?)?, "kube-ipvs0 is left");
    let kept = list(stage.node()?)?;
    for other in &others {
        ensure!(kept.contains(other), "{other} is gone:\n{kept}");
    }
    let sets = list_sets(stage.node()?)?;
    ensure!(sets == "others\n", "{sets}");
    ensure!(
        !kept.contains(&format!(":{NODE_PORT}")),
        "a node port is left:\n{kept}"
    );
    let found = stage.agent()?.condition(FOREIGN_PROXY_DETECTED)?;
    ensure!(found.is_some_and(|found| found.message.is_empty()));
    Ok(())
}

/// kube-proxy returns while its virtual servers end: by commands, and then by the profile.
pub(crate) fn there_and_back(stage: &mut Stage) -> Result<()> {
    let mode = Mode::Ipvs;
    shorten_timeouts(stage)?;
    stage.start_kube_proxy(mode)?;
    let before = Crowd::gather_for(stage.topology(), EVERY)?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyIpvs")?;
    stage.stop_kube_proxy();
    expect(stage.run(&["takeover"])?, true, "Signpost alone serves")?;
    stage.wait_for_foreign("False", "KubeProxyEnding")?;

    stage.start_kube_proxy(mode)?;
    expect(stage.run(&["handback"])?, true, "kube-proxy answers at")?;
    ensure!(!stage.has_signpost_tables()?);
    stage.wait_for_condition(READY, is_handed_back)?;
    let between = Crowd::gather_for(stage.topology(), EVERY)?;
    stage.stop_kube_proxy();
    let takeover = stage.configure(Handover::Takeover)?;
    stage.wait_for_applied(&takeover)?;
    ensure!(stage.has_signpost_tables()?);
    stage.wait_for_foreign("False", "KubeProxyEnding")?;
    stage.start_kube_proxy(mode)?;
    let handback = stage.configure(Handover::Handback)?;
    stage.wait_for_applied(&handback)?;
    ensure!(!stage.has_signpost_tables()?);
    before.disperse()?;
    between.disperse()
}

/// From kube-proxy's mode ipvs to Signpost's, as a profile asks for, and back (failure story T254).
/// Without kube-proxy, there is no way back: the check asked the tables of other modes, and found
/// nothing to lose.
pub(crate) fn into_mode_ipvs(stage: &mut Stage) -> Result<()> {
    shorten_timeouts(stage)?;
    stage.start_kube_proxy(Mode::Ipvs)?;
    let mut profile = ProxyProfileSpec {
        mode: mode::Mode::Ipvs,
        ..ProxyProfileSpec::default()
    };
    stage.configure_by(&profile)?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyIpvs")?;
    run(stage, "iptables", &["-P", "INPUT", "DROP"])?;
    let checked = stage.run(&["takeover", "--dry-run"])?;
    run(stage, "iptables", &["-P", "INPUT", "ACCEPT"])?;
    let input = "IPv4: chain INPUT of table filter drops what no rule accepts";
    ensure!(checked.text.contains(input), "{}", checked.text);
    ensure!(
        !checked.text.contains("IPv6: chain INPUT"),
        "{}",
        checked.text
    );
    let before = Crowd::gather_for(stage.topology(), EVERY)?;
    stage.stop_kube_proxy();
    profile.handover = Handover::Takeover;
    let hash = stage.configure_by(&profile)?;
    stage.wait_for_foreign("False", "KubeProxyEnding")?;
    stage.wait_for_applied(&hash)?;
    let after = Crowd::gather_for(stage.topology(), EVERY)?;
    ensure!(
        list_everything(stage)?.contains("table ip signpost-ipvs {"),
        "Signpost serves in another mode"
    );
    before.disperse()?;
    profile.handover = Handover::Manual;
    let hash = stage.configure_by(&profile)?;
    stage.wait_for_applied(&hash)?;

    stage.start_kube_proxy(Mode::Ipvs)?;
    // Refused until the last virtual server is there.
    let handed_back = stage.wait_for("the handback", |stage| {
        let printed = stage.run(&["handback"])?;
        Ok(printed.succeeded.then_some(printed))
    })?;
    let stays = "stay with Signpost's virtual servers";
    ensure!(handed_back.text.contains(stays), "{}", handed_back.text);
    expect(handed_back, true, "kube-proxy answers at")?;
    stage.wait_for_condition(READY, is_handed_back)?;
    let served = list_everything(stage)?;
    ensure!(!served.contains("table ip signpost-ipvs {"), "{served}");
    ensure!(served.contains("table ip signpost-ipvs-ending {"));
    let back = Crowd::gather_for(stage.topology(), EVERY)?;
    after.disperse()?;
    back.disperse()?;

    stage.stop_kube_proxy();
    expect(stage.run(&["takeover"])?, true, "programmed again")?;
    wait_for("everything of kube-proxy to go", FORGOTTEN_WITHIN, || {
        let found = stage.agent()?.condition(FOREIGN_PROXY_DETECTED)?;
        Ok(found
            .is_some_and(|found| found.message.is_empty())
            .then_some(()))
    })?;
    expect(
        stage.run(&["handback"])?,
        false,
        "no rules of kube-proxy are here",
    )
}

/// A handback from Signpost's mode ipvs to kube-proxy's that was cut short: the next start completes
/// it, and connections go on through virtual servers that the killed agent has left.
pub(crate) fn handback_cut_short(stage: &mut Stage) -> Result<()> {
    shorten_timeouts(stage)?;
    let hash = stage.configure_by(&ProxyProfileSpec {
        mode: mode::Mode::Ipvs,
        ..ProxyProfileSpec::default()
    })?;
    stage.start_agent()?;
    stage.wait_for_applied(&hash)?;
    let crowd = Crowd::gather_for(stage.topology(), EVERY)?;
    stage.start_kube_proxy(Mode::Ipvs)?;
    // It is complete once the command would hand back to it.
    stage.wait_for("all virtual servers of kube-proxy", |stage| {
        let checked = stage.run(&["handback", "--dry-run"])?;
        Ok(checked.succeeded.then_some(()))
    })?;
    ensure!(list_everything(stage)?.contains("table ip signpost-ipvs {"));

    kill_before_the_last_step_of_a_handback(stage)?;
    stage.launch_agent()?;
    stage.wait_for_condition(READY, is_handed_back)?;
    let left = list_everything(stage)?;
    ensure!(!left.contains("signpost-ipvs {"), "{left}");
    ensure!(left.contains("table ip signpost-ipvs-ending {"), "{left}");
    crowd.disperse()
}

/// Failure story T324: node ports were used, and are not at the moment. kube-proxy's virtual servers
/// count them at each address.
pub(crate) fn hits_where_node_ports_close(stage: &mut Stage) -> Result<()> {
    shorten_timeouts(stage)?;
    count_again(stage)?;
    stage.start_kube_proxy(Mode::Ipvs)?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyIpvs")?;
    stage.stop_kube_proxy();
    let unused = stage.run(&["takeover", "--dry-run"])?;
    ensure!(!unused.text.contains(HITS), "{}", unused.text);
    expect(unused, true, "IPv4: node ports close at ")?;

    use_node_port_that_closes(stage)?;
    run(stage, "conntrack", &["-F"])?;
    let counted = format!("{HITS}: {NODE_ON_THE_WAY}:{NODE_PORT}/tcp (3 connections, ");
    // The kernel adds up its counters every two seconds (`ip_vs_est.c`).
    stage.wait_for("the kernel to count three connections", |stage| {
        let checked = stage.run(&["takeover", "--dry-run"])?;
        Ok(checked.text.contains(&counted).then_some(()))
    })?;
    let (rules, servers) = (list_everything(stage)?, list(stage.node()?)?);
    expect(stage.run(&["takeover"])?, false, &counted)?;
    ensure!(
        list_everything(stage)? == rules && list(stage.node()?)? == servers,
        "a refusal changed something"
    );
    Ok(())
}

/// Makes the kernel count the connections of virtual servers, as it does by default: Signpost's mode ipvs, which an
/// earlier test began on this node, has ended that.
fn count_again(stage: &Stage) -> Result<()> {
    // Added in Linux 5.17.
    let setting = "net/ipv4/vs/run_estimation";
    let node = stage.node()?;
    match node.enter(|| Path::new("/proc/sys").join(setting).exists())? {
        true => node.set_sysctls(&[(setting, "1")]),
        false => Ok(()),
    }
}

/// Makes the kernel forget idle UDP, and half-closed TCP, after seconds.
fn shorten_timeouts(stage: &Stage) -> Result<()> {
    let seconds = |number| NonZeroU32::new(number).map(Seconds);
    let (Some(tcp), Some(short)) = (seconds(900), seconds(20)) else {
        unreachable!("they are not 0");
    };
    stage.node()?.enter(|| {
        let mut socket = IpvsSocket::open(backend_ipvs::MARKS)?;
        socket.commit_timeouts(Timeouts {
            tcp,
            tcp_fin: short,
            udp: short,
        })?;
        Ok(())
    })?
}
