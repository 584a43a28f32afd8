//! The families of one kernel without an agent: which notifications arrive, and how they are
//! handled.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use backend::{Backend, Drift, ExternalChange, ForeignChange, Rendered};
use backend_nftables::{Nftables, NotificationListener, open_with_listener};
use conntrack::KeptHooks;
use dataplane::{Dataplane, Family};
use netlink::Socket;
use netlink::nf_tables::{
    self, Bytes, DataType, ElementData, Operation, Set, SetContent, SetWriter, Transaction,
};
use reconciler::{FamilyReconciler, Outcome, Reason, SystemClock};
use tests::deadline::patience;
use tests::network::{Namespace, Network};

/// How long the kernel may take to send a notification.
const PROMPTLY: Duration = Duration::from_secs(2);

/// The number of elements per transaction and of transactions to flood a socket: a notification
/// takes some 40 bytes per element, and a request for a buffer of 16 MiB yields 32 MiB.
const FLOOD_PART: u32 = 20_000;
const FLOOD_PARTS: u32 = 60;

/// Returns a Service for each number, with endpoints on these ports.
pub(crate) fn services(numbers: std::ops::RangeInclusive<u8>, ports: &[u16]) -> Dataplane {
    let mut dataplane = Dataplane::default();
    for number in numbers {
        let service = testkit::mk_service(&format!("shop/service-{number}"))
            .cluster_ip(&format!("10.96.0.{number}"))
            .cluster_ip(&format!("fd00:10:96::{number}"))
            .port("http", 80)
            .build();
        let mut endpoints = testkit::mk_endpoints().tcp("http");
        for port in ports {
            endpoints = endpoints
                .ready(&format!("10.0.1.5:{port}"), "node-1")
                .ready(&format!("[fd00:10:0:1::5]:{port}"), "node-1");
        }
        let (node, config) = (dataplane.node(), dataplane.config());
        let rules = dataplane::compile(&service, &endpoints.build(), node, config);
        dataplane.set(rules.into());
    }
    dataplane
}

/// Opens families with some Services, and a listener.
fn open(inside: &Namespace) -> Result<(Vec<FamilyReconciler<Nftables>>, NotificationListener)> {
    let (families, mut notification_listener) = inside.enter(open_with_listener)??;
    let mut domains: Vec<_> = families.into_iter().map(FamilyReconciler::new).collect();
    for domain in &mut domains {
        let sync = domain.sync(&services(1..=3, &[8080]), Reason::Startup, &SystemClock);
        ensure!(sync.succeeded(), "{sync}");
    }
    notification_listener.join()?;
    Ok((domains, notification_listener))
}

pub(crate) fn kernel() -> Result<(Network, Namespace)> {
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["kernel"])?;
    Ok((network, namespace))
}

/// Returns the next disturbance; `None` if there is none until the deadline.
fn next(
    notification_listener: &mut NotificationListener,
    deadline: Duration,
) -> Result<Option<ExternalChange>> {
    let end = Instant::now() + patience(deadline);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if let ForeignChange::OwnRules(external_change) =
            notification_listener.receive(Some(left))?
        {
            return Ok(Some(external_change));
        }
        if left.is_zero() {
            return Ok(None);
        }
    }
}

/// Signpost's own transactions are recognized by their socket. Changes by other programs are
/// reported with family and program, and changes elsewhere cause no check.
pub(crate) fn others_are_distinguished_from_signpost() -> Result<()> {
    let (_network, namespace) = kernel()?;
    let (mut domains, mut notification_listener) = open(&namespace)?;
    for domain in &mut domains {
        let sync = domain.sync(&services(2..=5, &[8081]), Reason::Changed, &SystemClock);
        ensure!(sync.outcome == Outcome::Committed, "{sync}");
    }
    namespace.nft(&["add table ip theirs"])?;
    namespace.nft(&["add table ip6 theirs; add chain ip6 theirs c"])?;
    // Notifications arrive in order, so all earlier ones have been received by then.
    namespace.nft(&["add chain ip6 signpost strange"])?;
    let heard = next(&mut notification_listener, PROMPTLY)?.context("nothing was heard")?;
    ensure!(heard.families == [Family::Ipv6].into(), "{heard:?}");
    let actor = heard.actor.context("the kernel names the culprit")?;
    ensure!(actor.program == "nft", "{actor}");
    let looks: Vec<bool> = domains
        .iter_mut()
        .map(|domain| {
            let external_change = ExternalChange::possible();
            domain.disturb(&external_change, Instant::now());
            let desired = services(2..=5, &[8081]);
            let sync = domain.sync(&desired, Reason::Drift, &SystemClock);
            sync.repaired_drift.is_some()
        })
        .collect();
    ensure!(looks == [false, true], "damage was found in {looks:?}");
    let nothing = next(&mut notification_listener, Duration::from_millis(200))?;
    ensure!(
        nothing.is_none(),
        "Signpost's own repair was heard as {nothing:?}"
    );
    Ok(())
}

/// Failure story T330: an agent renews the tables that keep hooks every ten minutes. It took that for the
/// start of a kube-proxy, and freed its ports before a takeover although the one on the node had been
/// stopped.
pub(crate) fn t330_kept_hooks_are_no_change_of_another_program() -> Result<()> {
    let (_network, namespace) = kernel()?;
    let (_families, mut notification_listener) = namespace.enter(open_with_listener)??;
    notification_listener.join()?;
    let mut kept = Vec::new();
    for family in Family::ALL {
        let mut hooks = namespace.enter(|| KeptHooks::commit(family))??;
        hooks.renew()?;
        kept.push(hooks);
    }
    // Notifications arrive in order.
    namespace.nft(&["add table ip theirs"])?;
    namespace.nft(&["add table ip signpost"])?;
    let end = Instant::now() + patience(PROMPTLY);
    let mut elsewhere = 0;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the last change was not heard");
        match notification_listener.receive(Some(left))? {
            ForeignChange::None => {}
            ForeignChange::Elsewhere => elsewhere += 1,
            ForeignChange::OwnRules(_) => break,
        }
    }
    ensure!(elsewhere == 1, "{elsewhere} changes of others were heard");
    Ok(())
}

/// Without a listener, any change of nf_tables requires a full read; with one it does not.
pub(crate) fn changes_elsewhere_are_no_reason_to_look() -> Result<()> {
    let (_network, namespace) = kernel()?;
    let (families, mut notification_listener) = namespace.enter(open_with_listener)??;
    let [mut backend, _] = families;
    let rules = backend.render(&services(1..=3, &[8080]), &Rendered::default());
    let change = backend.diff(&backend_nftables::Table::default(), &rules);
    let _ = backend.commit(change)?;
    backend.observe()?;
    notification_listener.join()?;
    for number in 0..20 {
        namespace.nft(&[&format!("add table ip theirs-{number}")])?;
    }
    ensure!(
        backend.observe_drift()? == Drift::Possible,
        "the listener has received nothing yet"
    );
    ensure!(next(&mut notification_listener, Duration::from_millis(300))?.is_none());
    ensure!(
        backend.observe_drift()? == Drift::None,
        "all of it was elsewhere"
    );
    namespace.nft(&["add chain ip signpost strange"])?;
    ensure!(next(&mut notification_listener, PROMPTLY)?.is_some());
    ensure!(
        backend.observe_drift()? == Drift::Possible,
        "that was in Signpost's table"
    );
    Ok(())
}

/// The socket overflows: the loss is reported, and no change is assumed to be harmless.
pub(crate) fn missed_notifications_are_a_reason_to_look() -> Result<()> {
    let (_network, namespace) = kernel()?;
    let (mut domains, mut notification_listener) = open(&namespace)?;
    flood(&namespace)?;
    namespace.nft(&["flush chain ip signpost dispatch"])?;
    let heard = next(&mut notification_listener, PROMPTLY)?.context("nothing was heard")?;
    ensure!(heard == ExternalChange::possible(), "{heard:?}");
    domains[0].disturb(&heard, Instant::now());
    let sync = domains[0].sync(&services(1..=3, &[8080]), Reason::Drift, &SystemClock);
    ensure!(sync.repaired_drift.is_some(), "not repaired: {sync}");
    namespace.nft(&["flush chain ip6 signpost dispatch"])?;
    let heard = next(&mut notification_listener, PROMPTLY)?.context("it is deaf since")?;
    ensure!(heard.actor.is_some(), "{heard:?}");
    Ok(())
}

/// Writes more to another table than any unread socket can hold.
fn flood(namespace: &Namespace) -> Result<()> {
    let mut socket = namespace.enter(Socket::open)??;
    let set = Set {
        name: "many".into(),
        key: vec![DataType::Ipv4Address],
        content: SetContent::Membership,
        writer: SetWriter::Transactions,
    };
    let mut table = Transaction::new(nf_tables::Family::Ipv4, "theirs".into());
    table.operations = vec![Operation::AddTable, Operation::AddSet(set.clone())];
    socket.commit(&table)?;
    for part in 0..FLOOD_PARTS {
        let keys =
            (0..FLOOD_PART).map(|n| Bytes::new().with(&(part * FLOOD_PART + n).to_be_bytes()));
        let mut transaction = Transaction::new(nf_tables::Family::Ipv4, "theirs".into());
        transaction.operations.push(Operation::AddElements {
            set: set.clone().into(),
            elements: keys.map(|key| (key, ElementData::None)).collect(),
        });
        socket.commit(&transaction)?;
    }
    Ok(())
}

/// Failure story T20 (kubernetes#121362, calico#10538): another program has deleted the chain and
/// the map to which a change refers, and Signpost has received no notification. The same sync
/// repairs it.
pub(crate) fn t20_a_change_to_what_was_deleted_repairs_it() -> Result<()> {
    for repaired_drift in [
        "delete table ip signpost",
        // Objects that rules refer to can be deleted only after the rules.
        "flush table ip signpost; flush map ip signpost services; flush map ip signpost service-chains; \
         delete chain ip signpost cluster-1",
        "flush table ip signpost; delete map ip signpost endpoints",
        "flush map ip signpost services",
    ] {
        let (_network, namespace) = kernel()?;
        let (mut domains, _) = open(&namespace)?;
        let domain = &mut domains[0];
        let both = services(1..=3, &[8080, 8081]);
        domain.sync(&both, Reason::Changed, &SystemClock);
        let one = services(1..=3, &[8081]);
        domain.sync(&one, Reason::Changed, &SystemClock);
        namespace.nft(&[repaired_drift])?;
        let desired = services(2..=4, &[8082]);

        let sync = domain.sync(&desired, Reason::Changed, &SystemClock);

        ensure!(
            sync.outcome == Outcome::Committed,
            "after {repaired_drift}: {sync}"
        );
        let programmed = domain.observed().context("it is known")?.rules.clone();
        let [mut other, _] = namespace.enter(backend_nftables::open)??;
        let observed = other.observe()?;
        let change = other.diff(&observed, &programmed);
        ensure!(observed == programmed, "after {repaired_drift}:\n{change}");
    }
    Ok(())
}

/// Failure story T29 (kubernetes#122604, kubernetes#128829): everything is created and deleted some
/// hundred times; no object is busy and nothing grows.
pub(crate) fn t29_hundreds_of_cycles_leave_nothing_behind() -> Result<()> {
    let (_network, namespace) = kernel()?;
    let [mut backend, _] = namespace.enter(backend_nftables::open)??;
    let mut observed = Rendered::default();
    let few = services(1..=2, &[8080]);
    let many = services(1..=60, &[8080, 8081, 8082]);
    let mut settled = 0;
    for cycle in 0..300 {
        for dataplane in [&few, &many] {
            let rules = backend.render(dataplane, &observed);
            let change = backend.diff(&observed.rules, &rules);
            let _ = backend
                .commit(change)
                .with_context(|| format!("cycle {cycle}"))?;
            observed = Rendered {
                dataplane: dataplane.clone(),
                rules,
            };
        }
        let _ = backend
            .commit_removal()
            .with_context(|| format!("cycle {cycle}"))?;
        observed = Rendered::default();
        if cycle == 100 {
            settled = resident_pages()?;
        }
    }
    ensure!(
        namespace.nft(&["list ruleset"])?.is_empty(),
        "something is left"
    );
    let grown = resident_pages()?.saturating_sub(settled);
    ensure!(grown < 2048, "grown by {grown} pages in 200 cycles");
    Ok(())
}

/// How many pages of memory this process has.
fn resident_pages() -> Result<u64> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    let resident = pages.split_whitespace().nth(1).context("proc(5)")?;
    Ok(resident.parse()?)
}
