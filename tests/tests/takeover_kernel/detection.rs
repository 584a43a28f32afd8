//! The agent's reports about other proxies.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use crds::condition::READY;
use dataplane::{Family, Protocol};
use testkit::address_plan as addresses;
use tests::network::{Outcome, Probe, probe};

use crate::handovers::expect;
use crate::stage::{CLIENT, Mode, Stage};

/// The nft command that lists the chain through which incoming packets reach kube-proxy's rules.
const NAT_PREROUTING_OF_KUBE_PROXY: [&str; 5] =
    ["list", "chain", "ip", "kube-proxy", "nat-prerouting"];

/// Failure story T17 (calico#10748, cilium#27982): kube-proxy still runs on the node. The agent
/// names it, both keep their rules, and neither repairs anything.
pub(crate) fn kube_proxy_beside_signpost(stage: &mut Stage) -> Result<()> {
    stage.start_kube_proxy(Mode::Nftables)?;
    stage.start_agent()?;
    let reported = stage.wait_for_foreign("True", "KubeProxyNftables")?;
    ensure!(
        reported.message.contains("IPv4 and IPv6")
            && reported
                .message
                .contains("kube-proxy answers at 127.0.0.1:10249"),
        "{}",
        reported.message
    );
    let log = stage.agent()?.log();
    ensure!(log.contains("ForeignProxyDetected"));
    // Failure story T62: kube-proxy holds the ports, too.
    for port in [10249, 10256] {
        let named = log.lines().any(|line| {
            line.contains(&format!(":{port}")) && line.contains("kube-proxy (process ")
        });
        ensure!(named, "no process is said to have port {port}:\n{log}");
    }
    ensure!(stage.has_signpost_tables()?);
    for family in Family::ALL {
        let kube_proxy = stage.list_kube_proxy(Mode::Nftables, family)?;
        ensure!(
            !kube_proxy.is_empty(),
            "kube-proxy's rules for {family} have gone"
        );
    }
    // A Service that both proxies program appears in both tables, and neither treats that as
    // damage.
    stage.apply_services(&["web", "cart"])?;
    stage.wait_for("both to program another Service", |stage| {
        let listed = stage.node()?.nft(&["list", "ruleset"])?;
        Ok((listed.matches("10.96.0.11 . tcp . 80 : goto").count() == 1
            && listed.contains("10.96.0.11 . tcp . 80 : 2 . 0x"))
        .then_some(()))
    })?;
    let rules = stage.agent()?.condition("RulesContested")?;
    ensure!(
        rules.is_some_and(|rules| rules.message.is_empty()),
        "a program repaired something"
    );

    // Signpost's rules come first and kube-proxy's are then not reached, independent of which
    // chains were attached last.
    let passed_by = "a new connection went by kube-proxy's rules";
    ensure!(!goes_by_kube_proxy(stage)?, "{passed_by}");
    stage.stop_kube_proxy();
    stage.start_kube_proxy(Mode::Nftables)?;
    stage.wait_for("kube-proxy to attach its chains anew", |stage| {
        let chain = stage.node()?.nft(&NAT_PREROUTING_OF_KUBE_PROXY)?;
        Ok((!chain.contains("counter")).then_some(()))
    })?;
    ensure!(!goes_by_kube_proxy(stage)?, "{passed_by}");

    stage.stop_kube_proxy();
    stage.wait_for_condition("ForeignProxyDetected", |condition| {
        condition.status == "True"
            && condition
                .message
                .contains("no kube-proxy answers on this node")
    })?;
    ensure!(
        stage
            .agent()?
            .condition(READY)?
            .is_some_and(|ready| ready.status == "True")
    );
    Ok(())
}

/// Whether chain `nat-prerouting` of kube-proxy sees a new connection of a pod.
fn goes_by_kube_proxy(stage: &Stage) -> Result<bool> {
    let node = stage.node()?;
    if !node.nft(&NAT_PREROUTING_OF_KUBE_PROXY)?.contains("counter") {
        node.nft(&["insert rule ip kube-proxy nat-prerouting counter"])?;
    }
    let question = Probe {
        protocol: Protocol::Tcp,
        source: None,
        destination: SocketAddr::new(addresses::cluster_ip(10, Family::Ipv4), 80),
        deadline: Duration::from_secs(5),
    };
    let outcomes = probe(stage.topology().pod(1, CLIENT)?, &question, 1)?;
    ensure!(
        matches!(outcomes[..], [Outcome::Answered { .. }]),
        "{outcomes:?}"
    );
    Ok(!node
        .nft(&NAT_PREROUTING_OF_KUBE_PROXY)?
        .contains("counter packets 0 "))
}

/// Kubelets create their own chains in the iptables tables, which remain without kube-proxy
/// (pkg/kubelet/kubelet_network_linux.go); older ones also created those for masquerading.
pub(crate) fn kubelet_chains(stage: &mut Stage) -> Result<()> {
    let node = stage.node()?;
    for family in ["ip", "ip6"] {
        node.nft(&[&format!(
            "add table {family} mangle; add chain {family} mangle KUBE-KUBELET-CANARY; \
             add chain {family} mangle KUBE-IPTABLES-HINT; add table {family} filter; \
             add chain {family} filter KUBE-FIREWALL; add table {family} nat; \
             add chain {family} nat KUBE-MARK-DROP; add chain {family} nat KUBE-MARK-MASQ; \
             add chain {family} nat KUBE-POSTROUTING"
        )])?;
    }
    stage.start_agent()?;
    stage.wait_for_foreign("False", "NoneFound")?;
    // A single kube-proxy chain among them is detected.
    stage.node()?.nft(&["add chain ip6 nat KUBE-SERVICES"])?;
    let reported = stage.wait_for_foreign("True", "KubeProxyIptables")?;
    ensure!(
        reported.message.contains(" for IPv6;"),
        "{}",
        reported.message
    );
    Ok(())
}

/// kube-proxy rules in the legacy variant of iptables, and a device of mode ipvs.
pub(crate) fn what_signpost_may_not_remove(stage: &mut Stage) -> Result<()> {
    let iptables = ["--table", "nat", "--list"];
    let legacy = stage
        .node()?
        .command("iptables-legacy")
        .args(iptables)
        .output();
    let legacy = legacy.is_ok_and(|output| output.status.success());
    stage.start_agent()?;
    if legacy {
        // A table without chains does not indicate a proxy.
        stage.wait_for_foreign("False", "NoneFound")?;
        let chain = ["--table", "nat", "--new-chain", "KUBE-SERVICES"];
        let mut iptables = stage.node()?.command("iptables-legacy");
        ensure!(iptables.args(chain).status()?.success(), "{chain:?}");
        stage.wait_for_foreign("True", "KubeProxyIptables")?;
        // A rule of another program leads to the chain.
        let order = |words: &str| {
            let mut iptables = stage.node()?.command("iptables-legacy");
            let words = words.split(' ');
            ensure!(iptables.args(["-t", "nat"]).args(words).status()?.success());
            Ok(())
        };
        order("-N theirs")?;
        order("-A theirs -j KUBE-SERVICES")?;
        let used = "IPv4: a rule of chain theirs in legacy table nat leads to KUBE-SERVICES";
        expect(stage.run(&["takeover", "--force"])?, false, used)?;
        order("-F theirs")?;
        let removed = "removed kube-proxy's chains from the legacy variant";
        expect(stage.run(&["takeover"])?, true, removed)?;
        stage.wait_for_foreign("False", "NoneFound")?;
    } else {
        println!("    SKIPPED: this machine has no legacy iptables");
    }
    // Detection uses the name of the device; its type makes no difference. Without virtual servers
    // it is all there is to remove.
    stage
        .node()?
        .configure("link add name kube-ipvs0 type veth peer name kube-ipvs1\n")?;
    stage.wait_for_foreign("True", "KubeProxyIpvs")?;
    expect(
        stage.run(&["takeover", "--force"])?,
        true,
        "virtual servers are removed",
    )?;
    let left = stage.node()?.configure("link show dev kube-ipvs0\n");
    ensure!(left.is_err(), "kube-ipvs0 is still there");
    Ok(())
}
