//! Takeovers from kube-proxy's mode ipvs that go on where an earlier one was killed between two steps.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use foreign_proxy::kernel;
use foreign_proxy::virtual_servers::{self, IdleRemoval, Remaining};
use foreign_proxy::{Ending, Mode};
use netlink::link::LinkSocket;
use tests::network::{Namespace, Network};

/// What kube-proxy has on the node, and other programs: a kubelet's chain and rule, a set, virtual
/// servers by address, at an address of the node, and by mark.
const BEFORE: &str = r#"set -e
ip -batch - <<END
link set lo up
addr add 192.0.2.7/32 dev lo
link add uplink type dummy
link set uplink up
addr add 192.168.0.1/24 dev uplink
addr add fd00:192:168::1/64 dev uplink nodad
link add kube-ipvs0 type dummy
addr add 10.96.0.10/32 dev kube-ipvs0
addr add 10.96.0.11/32 dev kube-ipvs0
addr add fd00:10:96::10/128 dev kube-ipvs0 nodad
END
ipset restore <<END
create KUBE-CLUSTER-IP hash:ip,port
create KUBE-LOOP-BACK hash:ip,port,ip
create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
add KUBE-NODE-PORT-TCP 30080
create KUBE-6-CLUSTER-IP hash:ip,port family inet6
create others hash:ip
END
ipvsadm -R <<END
-A -t 10.96.0.10:80 -s rr
-a -t 10.96.0.10:80 -r 10.0.2.7:8080 -m
-A -u 10.96.0.11:53 -s rr
-A -t [fd00:10:96::10]:80 -s rr
-A -t 192.168.0.1:30080 -s rr
-A -t 192.0.2.7:80 -s rr
-A -u 192.168.0.1:5353 -s rr
-A -f 7 -s rr
END
iptables-nft-restore <<END
*nat
:KUBE-SERVICES -
:KUBE-POSTROUTING -
:KUBE-MARK-MASQ -
-A PREROUTING -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-POSTROUTING -m mark --mark 0x4000 -j MASQUERADE
COMMIT
*filter
:KUBE-FORWARD -
:KUBE-FIREWALL -
-A FORWARD -j KUBE-FORWARD
-A INPUT -j KUBE-FIREWALL
-A KUBE-FORWARD -m mark --mark 0x4000 -j ACCEPT
COMMIT
END
ip6tables-nft-restore <<END
*nat
:KUBE-SERVICES -
-A PREROUTING -j KUBE-SERVICES
-A KUBE-SERVICES -m set --match-set KUBE-6-CLUSTER-IP dst,dst -j ACCEPT
COMMIT
END
"#;

/// The steps of a takeover, in order, as `commit_chains_removal`, `commit_ending` and
/// [`IdleRemoval::commit`] take them.
const STEPS: [Step; 17] = [
    Step::Run(
        "iptables-nft -t nat -D KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE",
    ),
    Step::Run("iptables-nft -D FORWARD -j KUBE-FORWARD"),
    Step::Run("iptables-nft -F KUBE-FORWARD"),
    Step::Run("iptables-nft -X KUBE-FORWARD"),
    Step::Run("iptables-nft -t nat -D PREROUTING -j KUBE-SERVICES"),
    Step::Run("iptables-nft -t nat -F KUBE-SERVICES"),
    Step::Run("iptables-nft -t nat -X KUBE-SERVICES"),
    Step::Run("ip6tables-nft -t nat -D PREROUTING -j KUBE-SERVICES"),
    Step::Run("ip6tables-nft -t nat -F KUBE-SERVICES; ip6tables-nft -t nat -X KUBE-SERVICES"),
    Step::Do("set the source of one address", set_source),
    Step::Do("mark the device", mark),
    Step::Run("ipvsadm -D -t 10.96.0.10:80"),
    Step::Run(
        "ipvsadm -D -u 10.96.0.11:53; ipvsadm -D -t [fd00:10:96::10]:80; ipvsadm -D -t 192.168.0.1:30080",
    ),
    Step::Run("ip addr del 10.96.0.10/32 dev kube-ipvs0"),
    Step::Run(
        "ip addr del 10.96.0.11/32 dev kube-ipvs0; ip addr del fd00:10:96::10/128 dev kube-ipvs0",
    ),
    Step::Run("ipset destroy KUBE-NODE-PORT-TCP"),
    Step::Run(
        "ipset destroy KUBE-CLUSTER-IP; ipset destroy KUBE-LOOP-BACK; ipset destroy KUBE-6-CLUSTER-IP",
    ),
];

/// What every takeover leaves: what was never kube-proxy's.
const AFTER: &str = "FWM 7 rr | TCP 192.0.2.7:80 rr | UDP 192.168.0.1:5353 rr | others | -A INPUT -j KUBE-FIREWALL | \
    -A POSTROUTING -j KUBE-POSTROUTING | -A KUBE-POSTROUTING -m mark --mark 0x4000 -j MASQUERADE";
/// Prints it in that form, and whatever else there is.
const LIST: &str = r#"{
    ipvsadm -Ln | awk '$1 == "FWM" || $1 == "TCP" || $1 == "UDP" {print $1, $2, $3} $1 == "->" && $2 ~ /[0-9]/' | sort
    ipset list -name
    iptables-nft -S | grep '^-A'
    iptables-nft -t nat -S | grep '^-A'
    ip6tables-nft -t nat -S | grep '^-A'
    ip -o link show | grep -o kube-ipvs0
} | sed -e 's/ *$//' | paste -sd '|' | sed -e 's/|/ | /g'"#;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// What these commands do.
    Run(&'static str),
    /// What no command of the node does, with its name.
    Do(&'static str, fn(&Namespace) -> Result<()>),
}

/// Failure story T255: a takeover that was killed after any of its steps is completed by the next
/// one, and what other programs have stays.
pub(super) fn is_completed(_: &Namespace) -> Result<()> {
    for taken in 0..=STEPS.len() {
        let mut network = Network::new()?;
        let [node] = network.add_namespaces(["node"])?;
        let mut script = BEFORE.to_owned();
        for step in &STEPS[..taken] {
            match step {
                Step::Run(commands) => script += &format!("{commands}\n"),
                Step::Do(name, step) => {
                    run(
                        &node,
                        &std::mem::replace(&mut script, "set -e\n".to_owned()),
                    )?;
                    step(&node).context(*name)?;
                }
            }
        }
        run(&node, &script)?;
        let last = taken.checked_sub(1).map(|last| STEPS[last]);
        let case = || format!("killed after {last:?}");
        take_over(&node).with_context(case)?;
        let left = run(&node, LIST)?;
        ensure!(left.trim() == AFTER, "{}: {left}", case());
    }
    Ok(())
}

/// The node's own addresses.
fn own() -> Result<[IpAddr; 2]> {
    Ok(["192.168.0.1".parse()?, "fd00:192:168::1".parse()?])
}

/// As the beginning of `commit_ending`.
fn set_source(node: &Namespace) -> Result<()> {
    node.enter(|| {
        let mut links = LinkSocket::open()?;
        let link = links.observe("kube-ipvs0")?.context("it is there")?;
        links.commit_source(link.index, "10.96.0.10".parse()?, own()?[0])?;
        Ok(())
    })?
}

fn mark(node: &Namespace) -> Result<()> {
    node.enter(|| Ok(virtual_servers::commit_ending(&own()?)?))?
}

/// Does what the agent does at a takeover and, once its scan says so, with each later scan.
fn take_over(node: &Namespace) -> Result<()> {
    node.enter(|| {
        let found = kernel::observe(&mut None)?;
        for (mode, family) in found.removable() {
            match mode {
                Mode::Iptables => kernel::commit_chains_removal(family)?,
                Mode::Ipvs => virtual_servers::commit_ending(&own()?)?,
                Mode::Nftables => anyhow::bail!("there is no table of kube-proxy"),
            }
        }
        let found = kernel::observe(&mut None)?;
        ensure!(found.removable().is_empty(), "{found:?}");
        ensure!(found.ending == Ending::Pending, "{found:?}");
        let remaining = IdleRemoval::default().commit()?;
        ensure!(remaining == Remaining::default(), "{remaining:?}");
        Ok(())
    })?
}

fn run(node: &Namespace, script: &str) -> Result<String> {
    let output = node.command("sh").args(["-c", script]).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{script}: {errors}");
    Ok(String::from_utf8(output.stdout)?)
}
