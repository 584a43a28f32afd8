//! Handovers with continuous traffic.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::ProxyProfileSpec;
use crds::address::NodePortAddress;
use crds::condition::{DEGRADED, READY};
use crds::profile::forwarding::NodePortsSpec;
use crds::profile::handover::Handover;
use dataplane::{Family, Protocol};
use testkit::address_plan as addresses;
use tests::network::{Outcome, Probe, probe};

use crate::crowd::Crowd;
use crate::stage::{Mode, NODE_ON_THE_WAY, NODE_PORT, Printed, Stage};

/// What the check says if kube-proxy's counters alone speak against a takeover.
pub(crate) const HITS: &str = "since kube-proxy wrote their rules, clients have used node ports at addresses that close, and would \
                               be refused";
/// A connection from the node to a node port at an address where Signpost serves none.
const TO_ONE_THAT_CLOSES: Probe = Probe {
    protocol: Protocol::Tcp,
    source: None,
    destination: SocketAddr::new(IpAddr::V4(NODE_ON_THE_WAY), NODE_PORT),
    deadline: Duration::from_secs(5),
};

/// Failure story T18 (kubernetes#119265): nothing of Signpost is left, and everything else is
/// unchanged. From kube-proxy to Signpost, back, and once more, with restarts at every point in
/// between.
pub(crate) fn there_and_back(stage: &mut Stage) -> Result<()> {
    let mode = Mode::Nftables;
    stage.start_kube_proxy(mode)?;
    let crowd = Crowd::gather(stage.topology())?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyNftables")?;
    stage.stop_kube_proxy();

    let before = list_everything(stage)?;
    expect(
        stage.run(&["takeover", "--dry-run"])?,
        true,
        "nothing was changed",
    )?;
    ensure!(
        list_everything(stage)? == before,
        "a dry run changed something"
    );

    expect(stage.run(&["takeover"])?, true, "Signpost alone serves")?;
    ensure!(is_gone(stage, mode)? && stage.has_signpost_tables()?);
    stage.wait_for_foreign("False", "NoneFound")?;
    expect(
        stage.run(&["takeover"])?,
        true,
        "no rules of kube-proxy are here",
    )?;

    stage.start_kube_proxy(mode)?;
    expect(
        stage.run(&["handback", "--dry-run"])?,
        true,
        "nothing was changed",
    )?;
    let others = list_all_but_signposts(stage)?;
    expect(stage.run(&["handback"])?, true, "kube-proxy answers at")?;
    ensure!(!stage.has_signpost_tables()? && !is_gone(stage, mode)?);
    ensure!(
        list_everything(stage)? == others,
        "rules of others have changed"
    );
    stage.wait_for_condition(READY, is_handed_back)?;
    expect(stage.run(&["handback"])?, true, "handed back before")?;
    // Over its socket: kube-proxy holds the port.
    let explained = stage.run(&["explain", "shop/web"])?;
    ensure!(explained.text.contains("Service shop/web"));

    // kube-proxy applies the changes in the API server, also after a restart of the agent.
    stage.apply_services(&["web", "cart"])?;
    stage.kill_agent()?;
    stage.launch_agent()?;
    stage.wait_for_condition(READY, is_handed_back)?;
    stage.wait_for("kube-proxy to program another Service", |stage| {
        let listed = stage.list_kube_proxy(mode, Family::Ipv4)?;
        Ok(listed.contains("10.96.0.11 . tcp . 80").then_some(()))
    })?;
    ensure!(
        !stage.has_signpost_tables()?,
        "it programmed what it had handed back"
    );

    stage.stop_kube_proxy();
    expect(stage.run(&["takeover"])?, true, "programmed again")?;
    ensure!(is_gone(stage, mode)? && stage.has_signpost_tables()?);
    crowd.disperse()
}

/// kube-proxy in mode iptables, variant nf_tables.
pub(crate) fn from_iptables(stage: &mut Stage) -> Result<()> {
    let mode = Mode::Iptables;
    stage.start_kube_proxy(mode)?;
    // Rules of other programs in the same tables stay: a kubelet, a port mapping, an administrator.
    let others = [
        "add chain ip filter KUBE-FIREWALL",
        "add chain ip nat CNI-HOSTPORT-SETMARK",
        "add rule ip nat CNI-HOSTPORT-SETMARK jump KUBE-MARK-MASQ",
        "add chain ip nat mine",
        "add rule ip nat PREROUTING counter jump mine",
    ];
    stage.node()?.nft(&[&others.join("; ")])?;
    let crowd = Crowd::gather(stage.topology())?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyIptables")?;
    stage.stop_kube_proxy();

    let before = list_everything(stage)?;
    expect(
        stage.run(&["takeover", "--dry-run"])?,
        true,
        "node ports answer",
    )?;
    ensure!(
        list_everything(stage)? == before,
        "a dry run changed something"
    );
    take_over_twice(stage, mode)?;
    let left = stage.list_kube_proxy(mode, Family::Ipv4)?;
    for kept in ["chain KUBE-FIREWALL", "jump KUBE-MARK-MASQ", "jump mine"] {
        ensure!(left.contains(kept), "{kept} has gone:\n{left}");
    }
    crowd.disperse()?;

    // The takeover is refused without changes if a rule leads to a chain to be removed, which is
    // then named, or if the node forwards only packets that rules accept, as container engines
    // configure it.
    stage.start_kube_proxy(mode)?;
    stage.stop_kube_proxy();
    let node = stage.node()?;
    node.nft(&["chain ip6 filter FORWARD { policy drop; }"])?;
    let refused = stage.run(&["takeover"])?;
    expect(refused, false, "IPv6: chain FORWARD of table filter drops")?;
    node.nft(&["add rule ip nat mine jump KUBE-SERVICES"])?;
    let before = list_everything(stage)?;
    ensure!(before.matches("jump KUBE-SERVICES").count() > 1, "{before}");
    let refused = stage.run(&["takeover", "--force"])?;
    expect(
        refused,
        false,
        "a rule of chain mine in table nat leads to KUBE-SERVICES",
    )?;
    ensure!(
        list_everything(stage)? == before,
        "a refusal changed something"
    );
    Ok(())
}

/// Takes over, hands back, and takes over again.
fn take_over_twice(stage: &mut Stage, mode: Mode) -> Result<()> {
    expect(stage.run(&["takeover"])?, true, "Signpost alone serves")?;
    ensure!(is_gone(stage, mode)? && stage.has_signpost_tables()?);
    stage.wait_for_foreign("False", "NoneFound")?;
    stage.start_kube_proxy(mode)?;
    expect(stage.run(&["handback"])?, true, "kube-proxy answers at")?;
    ensure!(!stage.has_signpost_tables()? && !is_gone(stage, mode)?);
    stage.stop_kube_proxy();
    expect(stage.run(&["takeover"])?, true, "programmed again")?;
    ensure!(is_gone(stage, mode)? && stage.has_signpost_tables()?);
    Ok(())
}

/// kube-proxy in mode iptables, variant legacy: a takeover removes its chains there, too.
pub(crate) fn from_legacy_iptables(stage: &mut Stage) -> Result<()> {
    let mode = Mode::LegacyIptables;
    stage.start_kube_proxy(mode)?;
    // A rule of another program uses a chain that stays.
    let program = "iptables-legacy";
    let others = [
        ["-t", "nat", "-N", "mine"].as_slice(),
        &["-t", "nat", "-A", "mine", "-j", "KUBE-MARK-MASQ"],
        &["-t", "nat", "-A", "PREROUTING", "-j", "mine"],
    ];
    for rule in others {
        let status = stage.node()?.command(program).args(rule).status()?;
        ensure!(status.success(), "{rule:?}: {status}");
    }
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyIptables")?;
    stage.stop_kube_proxy();
    hits_where_legacy_node_ports_close(stage)?;
    // Failure story T333.
    run(stage, program, &["-P", "FORWARD", "DROP"])?;
    let refused = stage.run(&["takeover"])?;
    let forward = "IPv4: chain FORWARD of legacy table filter drops";
    expect(refused, false, forward)?;
    run(stage, program, &["-P", "FORWARD", "ACCEPT"])?;

    let crowd = Crowd::gather(stage.topology())?;
    let before = stage.list_kube_proxy(mode, Family::Ipv4)?;
    let dry = stage.run(&["takeover", "--dry-run"])?;
    expect(dry, true, "in the legacy variant of iptables")?;
    let after = stage.list_kube_proxy(mode, Family::Ipv4)?;
    ensure!(
        before.lines().count() == after.lines().count(),
        "a dry run changed something:\n{after}"
    );
    take_over_twice(stage, mode)?;
    let left = stage.list_kube_proxy(mode, Family::Ipv4)?;
    for kept in ["-A mine -j KUBE-MARK-MASQ", "-A PREROUTING -j mine"] {
        ensure!(left.contains(kept), "{kept} has gone:\n{left}");
    }
    crowd.disperse()
}

/// Failure story T332: what closes, and who has used it, is named in variant legacy as in the other.
fn hits_where_legacy_node_ports_close(stage: &Stage) -> Result<()> {
    // Counters of an earlier test stay with the tables, which kube-proxy fills again.
    run(stage, "iptables-legacy", &["-t", "nat", "-Z"])?;
    let before = stage.run(&["takeover", "--dry-run"])?;
    let closes = before.text.lines().any(|line| {
        line.contains("IPv4: node ports close at ")
            && line.contains("127.0.0.1")
            && line.contains(&NODE_ON_THE_WAY.to_string())
    });
    ensure!(closes, "{}", before.text);
    expect(before, true, "nothing was changed")?;

    use_node_port_that_closes(stage)?;
    let used = format!("{NODE_ON_THE_WAY}:{NODE_PORT}/tcp (3 connections)");
    expect(stage.run(&["takeover"])?, false, &used)?;
    run(stage, "conntrack", &["-F"])?;
    let counted = "(3 connections, 0 of them since the last check)";
    let counted = format!("do not count by address: {NODE_PORT}/tcp {counted}");
    expect(stage.run(&["takeover", "--dry-run"])?, true, &counted)?;

    // If every address closes, the hits are at one that does.
    let elsewhere = stage.configure_by(&node_ports_elsewhere(Handover::Manual)?)?;
    stage.wait_for_applied(&elsewhere)?;
    let hits = format!("{HITS}: {NODE_PORT}/tcp (3 connections");
    expect(stage.run(&["takeover"])?, false, &hits)?;
    let manual = stage.configure(Handover::Manual)?;
    stage.wait_for_applied(&manual)
}

/// Returns a profile with which every address of the node closes.
fn node_ports_elsewhere(handover: Handover) -> Result<ProxyProfileSpec> {
    Ok(ProxyProfileSpec {
        handover,
        node_ports: NodePortsSpec {
            addresses: Some(vec![NodePortAddress::Within("198.51.100.0/24".parse()?)]),
            ..NodePortsSpec::default()
        },
        ..ProxyProfileSpec::default()
    })
}

/// Failure story T69: kube-proxy in mode iptables accepts node ports at every address of the node,
/// and Signpost at one of each family.
pub(crate) fn node_ports_that_close(stage: &mut Stage) -> Result<()> {
    let mode = Mode::Iptables;
    stage.start_kube_proxy(mode)?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyIptables")?;
    stage.stop_kube_proxy();
    let reported = stage.run(&["takeover", "--dry-run"])?;
    let (_, rest) = reported
        .text
        .split_once("IPv4: node ports close at ")
        .context("it says so")?;
    let (named, _) = rest.split_once(':').context("it says why")?;
    let named: Vec<&str> = named.split(", ").collect();
    let way = NODE_ON_THE_WAY.to_string();
    ensure!(
        named.contains(&"127.0.0.1") && named.contains(&&*way),
        "{named:?}"
    );
    let own = addresses::node_address(1, Family::Ipv4).to_string();
    ensure!(!named.contains(&&*own), "{named:?}");
    expect(reported, true, "nothing was changed")?;

    use_node_port_that_closes(stage)?;
    let before = list_everything(stage)?;
    let refused = stage.run(&["takeover"])?;
    let used = format!("{NODE_ON_THE_WAY}:{NODE_PORT}/tcp (3 connections)");
    ensure!(refused.text.contains(&used), "{}", refused.text);
    let counted = "(3 connections, 3 of them since the last check)";
    let counted = format!("do not count by address: {NODE_PORT}/tcp {counted}");
    ensure!(refused.text.contains(&counted), "{}", refused.text);
    expect(refused, false, "their next connections would be refused")?;
    ensure!(
        list_everything(stage)? == before,
        "a refusal changed something"
    );

    // Failure story T324: the profile's field goes by the counters, too, if every address closes.
    run(stage, "conntrack", &["-F"])?;
    stage.configure_by(&node_ports_elsewhere(Handover::Takeover)?)?;
    let refused = stage.wait_for_condition(DEGRADED, |degraded| degraded.status == "True")?;
    ensure!(refused.reason == "HandoverRefused", "{refused:?}");
    let counted = format!("{HITS}: {NODE_PORT}/tcp (3 connections");
    ensure!(refused.message.contains(&counted), "{refused:?}");
    ensure!(!refused.message.contains("node ports now"), "{refused:?}");
    ensure!(!is_gone(stage, mode)?);
    let manual = stage.configure(Handover::Manual)?;
    stage.wait_for_applied(&manual)?;

    expect(
        stage.run(&["takeover", "--force"])?,
        true,
        "Signpost alone serves",
    )?;
    let outcomes = probe(stage.node()?, &TO_ONE_THAT_CLOSES, 1)?;
    ensure!(matches!(outcomes[..], [Outcome::Refused]), "{outcomes:?}");
    Ok(())
}

/// Connects three times to a node port at an address where Signpost serves none. kube-proxy's rules
/// answer.
pub(crate) fn use_node_port_that_closes(stage: &Stage) -> Result<()> {
    let outcomes = probe(stage.node()?, &TO_ONE_THAT_CLOSES, 3)?;
    let mut all = outcomes.iter();
    ensure!(
        all.all(|outcome| matches!(outcome, Outcome::Answered { .. })),
        "{outcomes:?}"
    );
    Ok(())
}

/// Runs a program on the node.
pub(crate) fn run(stage: &Stage, program: &str, arguments: &[&str]) -> Result<()> {
    let output = stage.node()?.command(program).args(arguments).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {arguments:?}: {errors}");
    Ok(())
}

pub(crate) fn kube_proxy_still_runs(stage: &mut Stage) -> Result<()> {
    let mode = Mode::Nftables;
    stage.start_kube_proxy(mode)?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyNftables")?;
    let before = list_everything(stage)?;
    let refused = stage.run(&["takeover"])?;
    expect(
        refused,
        false,
        "would put its rules back: stop kube-proxy first\nwhere DaemonSet kube-system/kube-proxy starts it: kubectl",
    )?;
    ensure!(
        list_everything(stage)? == before,
        "a refusal changed something"
    );

    expect(
        stage.run(&["takeover", "--force"])?,
        true,
        "Signpost alone serves",
    )?;
    stage.wait_for_foreign("False", "NoneFound")?;
    // The agent notices at the next change or within an hour.
    stage.apply_services(&["web", "cart"])?;
    stage
        .wait_for_foreign("True", "KubeProxyNftables")
        .map(drop)
}

pub(crate) fn no_kube_proxy_to_hand_back_to(stage: &mut Stage) -> Result<()> {
    stage.start_agent()?;
    let crowd = Crowd::gather(stage.topology())?;
    expect(
        stage.run(&["handback"])?,
        false,
        "no rules of kube-proxy are here",
    )?;
    crowd.disperse()?;

    // Rules without a running kube-proxy are never updated, so kube-proxy must be seen to run.
    stage.start_kube_proxy(Mode::Nftables)?;
    stage.stop_kube_proxy();
    let crowd = Crowd::gather(stage.topology())?;
    expect(
        stage.run(&["handback"])?,
        false,
        "no kube-proxy has answered",
    )?;
    ensure!(stage.has_signpost_tables()?);
    // The ports were released only temporarily.
    stage
        .agent()?
        .wait_for("the agent to answer again", |agent| {
            Ok(agent.get("/debug").ok())
        })?;
    crowd.disperse()?;

    expect(
        stage.run(&["handback", "--force"])?,
        true,
        "Signpost serves no Service here",
    )?;
    ensure!(!stage.has_signpost_tables()?);
    stage.node()?.nft(&["flush ruleset"])?;
    stage
        .wait_for_condition(READY, |ready| ready.message.contains("no proxy serves"))
        .map(drop)
}

pub(crate) fn is_handed_back(
    ready: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition,
) -> bool {
    (ready.status.as_str(), ready.reason.as_str()) == ("False", "HandedBack")
}

/// Whether all rules that only kube-proxy has are gone.
pub(crate) fn is_gone(stage: &Stage, mode: Mode) -> Result<bool> {
    for family in Family::ALL {
        let listed = stage.list_kube_proxy(mode, family)?;
        let gone = match mode {
            Mode::Nftables => listed.is_empty(),
            Mode::Iptables | Mode::LegacyIptables => {
                let its = [
                    "KUBE-SERVICES",
                    "KUBE-NODEPORTS",
                    "KUBE-S",
                    "KUBE-EXT",
                    "KUBE-PROXY-FIREWALL",
                ];
                its.iter().all(|its| !listed.contains(its))
            }
            Mode::Ipvs => listed.is_empty(),
        };
        if !gone {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns all rules without counters.
pub(crate) fn list_everything(stage: &Stage) -> Result<String> {
    stage.node()?.nft(&["--stateless", "list", "ruleset"])
}

/// Returns all rules without counters and without Signpost's tables.
fn list_all_but_signposts(stage: &Stage) -> Result<String> {
    let all = list_everything(stage)?;
    let mut own = false;
    let others = all.lines().filter(|line| {
        if line.starts_with("table ") {
            own = line.contains(" signpost {") || line.contains(" signpost-hooks-");
        }
        !own
    });
    Ok(others.map(|line| format!("{line}\n")).collect())
}

/// Fails unless the command ended with this result and this text.
pub(crate) fn expect(printed: Printed, succeeds: bool, says: &str) -> Result<()> {
    let Printed { succeeded, text } = printed;
    ensure!(
        succeeded == succeeds && text.contains(says),
        "it ended with success {succeeded} and did not say {says:?}:\n{text}"
    );
    Ok(())
}
