//! Agents that start where an earlier one was killed between two steps of the end of mode ipvs.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use backend::{AnyBackend, Backend, Rendered, erase};
use backend_ipvs::{ENDING_TABLE, Ipvs, MARKS, Rules, TABLE};
use dataplane::{Config, Dataplane, Family, Mode, compile};
use netlink::ipvs::{IpvsSocket, Operation, VirtualServerKey};
use reconciler::{FamilyReconciler, Outcome, Reason, SystemClock};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};
use tests::network::Namespace;
use tests::programmed::program;

/// The syncs after which everything is in its place: the start, a read of everything, which an agent
/// also makes without a request as soon as it is due, and a periodic check.
const SYNCS: [Reason; 3] = [Reason::Startup, Reason::Requested, Reason::Timer];

/// The last step before the agent was killed, as in `commit_ending` and `commit_end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// None.
    Begun,
    /// The table for remaining connections is there, too.
    TableReplaced,
    /// The mode's table has no rules.
    RulesFlushed,
    /// The mode's table is deleted.
    TableDeleted,
    /// So is the table for remaining connections.
    EndingTableDeleted,
    /// One of the virtual servers is removed.
    OneServerRemoved,
    /// All of them are.
    ServersRemoved,
    /// The route of marked packets is removed.
    RouteRemoved,
}

const STEPS: [Step; 8] = [
    Step::Begun,
    Step::TableReplaced,
    Step::RulesFlushed,
    Step::TableDeleted,
    Step::EndingTableDeleted,
    Step::OneServerRemoved,
    Step::ServersRemoved,
    Step::RouteRemoved,
];

/// Failure story T256: whatever was done, the next agent leaves the mode that is desired, and nothing
/// of the other one.
pub(super) fn is_completed(namespace: &Namespace) -> Result<()> {
    namespace.configure("link set lo up")?;
    for step in STEPS {
        for family in Family::ALL {
            for desired in [Mode::Nftables, Mode::Ipvs] {
                let case = || format!("{step:?}, {family}, then mode {desired:?}");
                cut_short(namespace, family, step).with_context(case)?;
                start(namespace, family, desired).with_context(case)?;
                expect_only(namespace, family, desired).with_context(case)?;
                clear(namespace)?;
            }
        }
    }
    Ok(())
}

/// Programs one family, and takes all steps up to `last`.
fn cut_short(namespace: &Namespace, family: Family, last: Step) -> Result<()> {
    let mut backend = open(namespace, family)?;
    program(&mut backend, &services(Mode::Ipvs), &Rendered::default())?;
    let ip = if family == Family::Ipv4 { "ip" } else { "ip6" };
    for step in STEPS.into_iter().filter(|step| *step <= last) {
        match step {
            Step::Begun => {}
            Step::TableReplaced => {
                let chain = "{ type nat hook postrouting priority 100; }";
                let table = format!("add table {ip} {ENDING_TABLE}");
                let chain = format!("add chain {ip} {ENDING_TABLE} nat-postrouting {chain}");
                namespace.nft(&[&format!("{table}; {chain}")])?;
            }
            Step::RulesFlushed => drop(namespace.nft(&[&format!("flush table {ip} {TABLE}")])?),
            Step::TableDeleted => drop(namespace.nft(&[&format!("delete table {ip} {TABLE}")])?),
            Step::EndingTableDeleted => {
                namespace.nft(&[&format!("delete table {ip} {ENDING_TABLE}")])?;
            }
            Step::OneServerRemoved => remove_servers(namespace, 1)?,
            Step::ServersRemoved => remove_servers(namespace, usize::MAX)?,
            Step::RouteRemoved => {
                let option = if family == Family::Ipv4 { "-4" } else { "-6" };
                let route = [option, "route", "flush", "table", "1396703232"];
                let output = namespace.command("ip").args(route).output()?;
                ensure!(output.status.success(), "{output:?}");
            }
        }
    }
    Ok(())
}

fn remove_servers(namespace: &Namespace, most: usize) -> Result<()> {
    let mut socket = namespace.enter(|| IpvsSocket::open(MARKS))??;
    let all = own_servers(namespace)?.into_iter().take(most);
    let removals = all.map(|key| Operation::RemoveVirtualServer { key });
    socket.commit(&removals.collect::<Vec<_>>())?;
    Ok(())
}

fn own_servers(namespace: &Namespace) -> Result<Vec<VirtualServerKey>> {
    let mut socket = namespace.enter(|| IpvsSocket::open(MARKS))??;
    Ok(socket.observe_virtual_servers()?.own.into_keys().collect())
}

/// Runs the syncs of an agent that starts.
fn start(namespace: &Namespace, family: Family, desired: Mode) -> Result<()> {
    let nftables = namespace.enter(backend_nftables::open)??;
    let nftables = nftables.into_iter().find(|b| b.family() == family);
    let nftables: AnyBackend = erase(nftables.context("both families are there")?);
    let ipvs = erase(open(namespace, family)?);
    let (first, other) = match desired {
        Mode::Ipvs => ((desired, ipvs), (Mode::Nftables, nftables)),
        _ => ((desired, nftables), (Mode::Ipvs, ipvs)),
    };
    let mut reconciler = FamilyReconciler::with_modes(first, vec![other]);
    let services = services(desired);
    for reason in SYNCS {
        // Sysctls are those of the thread's namespace.
        let sync = namespace.enter(|| reconciler.sync(&services, reason, &SystemClock))?;
        ensure!(!matches!(sync.outcome, Outcome::Failed(_)), "{sync}");
    }
    Ok(())
}

fn expect_only(namespace: &Namespace, family: Family, mode: Mode) -> Result<()> {
    let tables = namespace.nft(&["list", "tables"])?;
    let table = match mode {
        Mode::Ipvs => TABLE,
        _ => "signpost",
    };
    let ip = if family == Family::Ipv4 { "ip" } else { "ip6" };
    ensure!(tables.trim() == format!("table {ip} {table}"), "{tables}");
    let mut backend = open(namespace, family)?;
    let held = backend.observe()?;
    if mode != Mode::Ipvs {
        ensure!(held == Rules::default(), "{held}");
        ensure!(own_servers(namespace)?.is_empty());
        return Ok(());
    }
    let from = Rendered {
        dataplane: Dataplane::default(),
        rules: held.clone(),
    };
    let expected = backend.render(&services(mode), &from);
    let difference = backend.diff(&held, &expected);
    ensure!(held == expected, "{difference}");
    ensure!(own_servers(namespace)?.len() == 2, "one for each Service");
    Ok(())
}

fn clear(namespace: &Namespace) -> Result<()> {
    for family in Family::ALL {
        let _receipt = open(namespace, family)?.commit_removal()?;
    }
    namespace.nft(&["flush ruleset"])?;
    Ok(())
}

fn open(namespace: &Namespace, family: Family) -> Result<Ipvs> {
    let families = namespace.enter(|| backend_ipvs::open(Path::new("/proc/sys")))??;
    let mut families = families.into_iter();
    let found = families.find(|backend| backend.family() == family);
    found.context("both families are there")
}

/// Two Services in both families.
fn services(mode: Mode) -> Dataplane {
    let node = mk_node(1).build();
    let config: Arc<Config> = mk_config().mode(mode).build();
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (name, last) in [("shop/web", 10), ("shop/cart", 11)] {
        let service = mk_service(name)
            .cluster_ip(&format!("10.96.0.{last}"))
            .cluster_ip(&format!("fd00:10:96::{last}"))
            .port("http", 80);
        let endpoints = mk_endpoints()
            .tcp("http")
            .ready("10.0.2.7:8080", "node-2")
            .ready("[fd00:10:0:2::7]:8080", "node-2");
        dataplane.set(compile(&service.build(), &endpoints.build(), &node, &config).into());
    }
    dataplane
}
