//! A real kernel holds what was committed, and nothing else changes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use backend::{Backend, Change as _, Drift, Recovery, Rendered};
use backend_nftables::{Nftables, Table};
use dataplane::{Dataplane, Family, ServiceRules};
use libtest_mimic::Arguments;
use netlink::nf_tables::{self, Chain, ChainKind, Hook, HookPoint, Operation, Transaction};
use netlink::{CommitError, Refusal, Socket};
use reconciler::{FamilyReconciler, Reason, SystemClock};
use rustix::io::Errno;
use testkit::{Call, CallOutcome, Faulty};
use tests::binaries;
use tests::deadline::{affordable, wait_for};
use tests::kernels::{Kernels, every_law_holds, hold_what_was_rendered};
use tests::network::{Namespace, Network, Process, enter_private_namespaces};
use tests::programmed::{generated_clusters, program, richest};
use tests::trial::trial;

/// The number of generated clusters programmed one after another in one kernel.
const CLUSTERS: usize = 60;
/// The number of generated histories that the laws are checked over.
const HISTORIES: usize = 8;
/// nft lists the clusters whose number is a multiple of this.
const LISTED: usize = 10;

/// How soon another program has done something small.
const SOON: Duration = Duration::from_secs(20);

type Test = fn(&Namespace) -> Result<()>;

/// Damage that only kernels since 5.13 allow.
const CATCH_ALL: &str = "add element ip signpost service-chains { * : drop }";

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let tests: [(&str, Test); 14] = [
        (
            "cleanup_removes_signposts_rules_and_nothing_else",
            cleanup_command,
        ),
        (
            "t25_one_service_the_kernel_refuses_leaves_the_others_programmed",
            one_refused_service,
        ),
        (
            "t241_a_table_that_went_with_its_owner_comes_back",
            table_of_an_owner,
        ),
        ("every_law_of_backends_holds", every_law_of_backends_holds),
        (
            "the_kernel_holds_what_was_rendered",
            the_kernel_holds_what_was_rendered,
        ),
        (
            "nft_lists_every_form_that_signpost_writes",
            nft_lists_every_form_that_signpost_writes,
        ),
        (
            "a_restart_with_nothing_changed_writes_nothing",
            a_restart_with_nothing_changed_writes_nothing,
        ),
        (
            "tables_of_other_programs_stay_as_they_are",
            tables_of_other_programs_stay_as_they_are,
        ),
        (
            "quiet_is_distinguished_from_change",
            quiet_is_distinguished_from_change,
        ),
        (
            "t30_t32_whatever_was_damaged_is_repaired",
            whatever_was_damaged_is_repaired,
        ),
        (
            "a_refused_transaction_changes_nothing",
            a_refused_transaction_changes_nothing,
        ),
        ("a_check_changes_nothing", a_check_changes_nothing),
        (
            "removal_leaves_nothing_and_can_be_repeated",
            removal_leaves_nothing_and_can_be_repeated,
        ),
        (
            "ten_thousand_elements_go_in_bounded_transactions",
            bounded_transactions,
        ),
    ];
    let trials = tests.map(|(name, test)| {
        trial(name, move || {
            let mut network = Network::new()?;
            let [namespace] = network.add_namespaces(["kernel"])?;
            test(&namespace)
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}

/// Returns a dataplane with elements in every map. Computed once: an emulated machine takes half a
/// minute.
fn rich() -> Result<Dataplane> {
    static RICH: Mutex<Option<Dataplane>> = Mutex::new(None);
    let mut rich = RICH.lock().unwrap_or_else(PoisonError::into_inner);
    if rich.is_none() {
        let backends = Family::ALL.map(Nftables::detached);
        *rich = Some(richest(&backends, Table::elements)?);
    }
    rich.clone().context("it was found")
}

fn open(namespace: &Namespace) -> Result<[Nftables; 2]> {
    Ok(namespace.enter(backend_nftables::open)??)
}

fn program_all(
    namespace: &Namespace,
    dataplane: &Dataplane,
) -> Result<Vec<(Nftables, Rendered<Table>)>> {
    let program = |mut backend: Nftables| {
        let rendered = program(&mut backend, dataplane, &Rendered::default())?;
        Ok((backend, rendered))
    };
    open(namespace)?.into_iter().map(program).collect()
}

fn every_law_of_backends_holds(_: &Namespace) -> Result<()> {
    let kernels = |family| Kernels {
        family,
        open,
        canonical: Table::canonical,
        targets: Table::targets,
    };
    every_law_holds(kernels, affordable(HISTORIES))
}

fn the_kernel_holds_what_was_rendered(namespace: &Namespace) -> Result<()> {
    hold_what_was_rendered(open(namespace)?, affordable(CLUSTERS))
}

fn nft_lists_every_form_that_signpost_writes(namespace: &Namespace) -> Result<()> {
    let clusters = generated_clusters(CLUSTERS)?;
    let mut observed = [Rendered::default(), Rendered::default()];
    let mut backends = open(namespace)?;
    let mut listed = String::new();
    for (number, cluster) in (1..).zip(&clusters) {
        for (backend, observed) in backends.iter_mut().zip(&mut observed) {
            *observed = program(backend, &cluster.compile(), observed)?;
        }
        // An emulated machine takes three seconds to list a cluster.
        if number % LISTED == 0 {
            listed = namespace.nft(&["list", "ruleset"])?;
        }
    }
    for part in [
        "map @endpoints",
        "meta mark vmap @service-chains",
        "the number that @services has for it",
        "masquerade fully-random",
        "@hairpins",
        "update @clients",
        "delete @clients",
        "@restrictions goto allow-sources",
        "@sources-24 return",
    ] {
        ensure!(listed.contains(part), "no {part} in:\n{listed}");
    }
    Ok(())
}

fn a_restart_with_nothing_changed_writes_nothing(namespace: &Namespace) -> Result<()> {
    for cluster in generated_clusters(affordable(CLUSTERS))? {
        let dataplane = cluster.compile();
        drop(program_all(namespace, &dataplane)?);
        for mut backend in open(namespace)? {
            let observed = Rendered {
                dataplane: Dataplane::default(),
                rules: backend.observe()?,
            };
            let expected = backend.render(&dataplane, &observed);
            let change = backend.diff(&observed.rules, &expected);
            ensure!(change.size().is_empty(), "it would write:\n{change}");
            let _ = backend.commit_removal()?;
        }
    }
    Ok(())
}

fn tables_of_other_programs_stay_as_they_are(namespace: &Namespace) -> Result<()> {
    for command in [
        "add table inet theirs",
        "add set inet theirs s { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 }; }",
        "add chain inet theirs c { type filter hook forward priority 10; policy accept; }",
        "add rule inet theirs c ip saddr @s counter accept",
        "add table ip kube-proxy",
        "add chain ip kube-proxy services",
    ] {
        namespace.nft(&[command])?;
    }
    let list = || -> Result<String> {
        let inet = namespace.nft(&["list", "table", "inet", "theirs"])?;
        Ok(inet + &namespace.nft(&["list", "table", "ip", "kube-proxy"])?)
    };
    let before = list()?;
    for (mut backend, _) in program_all(namespace, &rich()?)? {
        let _ = backend.commit_removal()?;
    }
    ensure!(list()? == before, "they changed");
    Ok(())
}

fn quiet_is_distinguished_from_change(namespace: &Namespace) -> Result<()> {
    let dataplane = rich()?;
    let mut families = program_all(namespace, &dataplane)?;
    for (backend, _) in &mut families {
        backend.observe()?;
    }
    // Signpost's own commits in either family are not drift.
    let (first, observed) = &mut families[0];
    let empty = Dataplane::new(dataplane.node().clone(), dataplane.config().clone());
    *observed = program(first, &empty, observed)?;
    for (backend, _) in &mut families {
        ensure!(
            backend.observe_drift()? == Drift::None,
            "Signpost's own commits count as drift"
        );
    }
    namespace.nft(&["add table ip theirs"])?;
    for (backend, _) in &mut families {
        ensure!(
            backend.observe_drift()? == Drift::Possible,
            "a change went unseen"
        );
    }
    Ok(())
}

/// Failure stories T30 and T32: rke2#10469, kubernetes#129128, kubernetes#133767.
fn whatever_was_damaged_is_repaired(namespace: &Namespace) -> Result<()> {
    let dataplane = rich()?;
    let mut families = program_all(namespace, &dataplane)?;
    let endpoint = some_element(namespace, "endpoints")?;
    let damages = [
        "flush ruleset".to_owned(),
        "delete table ip signpost".to_owned(),
        "flush chain ip signpost dispatch".to_owned(),
        "add rule ip signpost dispatch counter drop".to_owned(),
        "insert rule ip signpost masquerading return".to_owned(),
        "add chain ip signpost strange { type filter hook forward priority 0; policy drop; }".to_owned(),
        "add set ip signpost strange { type ipv4_addr; flags interval; }".to_owned(),
        "flush map ip signpost endpoints".to_owned(),
        "flush map ip signpost service-chains".to_owned(),
        format!("delete element ip signpost endpoints {{ {endpoint} }}"),
        "add element ip signpost services { 203.0.113.99 . tcp . 1 : 7 . 0x1 }".to_owned(),
        // These are not valid elements of Signpost either: one without a key, one that continues.
        CATCH_ALL.to_owned(),
        "add element ip signpost service-chains { 0x8 : continue }".to_owned(),
        // No packet meets its chains, and all of them are there.
        "add table ip signpost { flags dormant; }".to_owned(),
        "delete table ip6 signpost; add table ip6 signpost; add map ip6 signpost services { type ipv4_addr : verdict; }".to_owned(),
    ];
    for damage in &damages {
        let done = namespace.nft(&[damage]);
        if done.is_err() && damage == CATCH_ALL {
            println!("NOT ASKED: {damage}: the kernel has it from 5.13 on");
            continue;
        }
        done?;
        let mut repaired = 0;
        for (backend, programmed) in &mut families {
            let observed = Rendered {
                dataplane: Dataplane::default(),
                rules: backend
                    .observe()
                    .with_context(|| format!("after {damage}"))?,
            };
            let change = backend.diff(&observed.rules, &programmed.rules);
            repaired += usize::from(!change.size().is_empty());
            *programmed = program(backend, &dataplane, &observed)
                .with_context(|| format!("after {damage}"))?;
            let left = backend.observe()?;
            let change = backend.diff(&left, &programmed.rules);
            ensure!(
                left == programmed.rules,
                "not repaired: {damage}; left to do:\n{change}"
            );
        }
        ensure!(repaired > 0, "the damage did no harm: {damage}");
    }
    Ok(())
}

/// Returns the first element of a map as nft prints it.
fn some_element(namespace: &Namespace, map: &str) -> Result<String> {
    let listed = namespace.nft(&["list", "map", "ip", "signpost", map])?;
    let (_, elements) = listed
        .split_once("elements = {")
        .context("it has elements")?;
    let (element, _) = elements.split_once([',', '}']).context("it ends")?;
    Ok(element.trim().to_owned())
}

fn a_refused_transaction_changes_nothing(namespace: &Namespace) -> Result<()> {
    let dataplane = rich()?;
    let mut families = program_all(namespace, &dataplane)?;
    let (backend, observed) = &mut families[0];
    let element = some_element(namespace, "services")?;
    let key = element.split(" : ").next().context("it has a key")?;
    namespace.nft(&[&format!("delete element ip signpost services {{ {key} }}")])?;
    // With an outdated observed state, the change deletes an element that does not exist.
    let empty = Dataplane::new(dataplane.node().clone(), dataplane.config().clone());
    let before = namespace.nft(&["list", "ruleset"])?;
    let rules = backend.render(&empty, observed);
    let change = backend.diff(&observed.rules, &rules);
    let Err(error) = backend.commit(change) else {
        anyhow::bail!("the kernel took it");
    };
    ensure!(error.recovery == Recovery::Observe, "{:?}", error.recovery);
    ensure!(
        namespace.nft(&["list", "ruleset"])? == before,
        "something changed"
    );
    Ok(())
}

/// The kernel reports a rejection at the operation, and changes nothing even if it would accept it.
fn a_check_changes_nothing(namespace: &Namespace) -> Result<()> {
    let mut socket = namespace.enter(Socket::open)??;
    let before = socket.observe_generation()?;
    let chain = |point| {
        Operation::AddChain(Chain {
            name: "probe".into(),
            hook: Some(Hook {
                kind: ChainKind::Nat,
                point,
                priority: -100,
            }),
        })
    };
    let mut transaction = Transaction::new(nf_tables::Family::Ipv6, "probe".into());
    transaction.operations = vec![Operation::AddTable, chain(HookPoint::Prerouting)];
    socket.check(&transaction)?;
    // No kernel supports this chain: forwarded connections have been translated before this hook.
    transaction.operations = vec![Operation::AddTable, chain(HookPoint::Forward)];
    let Err(CommitError::Refused { at, source }) = socket.check(&transaction) else {
        anyhow::bail!("the kernel would take it");
    };
    ensure!(at == Refusal::Message(2), "{at:?}");
    ensure!(
        Errno::from_io_error(&source) == Some(Errno::OPNOTSUPP),
        "{source}"
    );
    ensure!(socket.observe_generation()? == before, "a generation began");
    ensure!(namespace.nft(&["list", "ruleset"])?.is_empty());
    // The socket can still be used.
    transaction.operations = vec![Operation::AddTable, Operation::DeleteTable];
    Ok(socket.commit(&transaction)?)
}

/// Failure story T25: kubernetes#142068, where one rule that the kernel rejected left a node
/// without any rules.
fn one_refused_service(namespace: &Namespace) -> Result<()> {
    let dataplane = forty_services();
    let [ipv4, _] = open(namespace)?;
    // Everything but the rejection is done by the real kernel.
    let bad = |rules: &ServiceRules| &*rules.service.name == "service-17";
    let mut family = FamilyReconciler::new(Faulty::refusing(ipv4, bad));
    let mut sync = family.sync(&dataplane, Reason::Startup, &SystemClock);
    while family.is_unfinished() {
        sync = family.sync(&dataplane, Reason::Continued, &SystemClock);
    }
    let refused: Vec<String> = sync
        .quarantined
        .iter()
        .map(|q| q.service.to_string())
        .collect();
    ensure!(
        refused == ["shop/service-17"],
        "refused: {refused:?} in {sync}"
    );
    let listed = namespace.nft(&["list", "map", "ip", "signpost", "services"])?;
    for number in 1..=40 {
        let programmed = listed.contains(&format!("10.96.0.{number} . tcp . 80 : 1 . 0x03000001"));
        ensure!(
            programmed == (number != 17),
            "service-{number}: {programmed}"
        );
    }
    Ok(())
}

fn forty_services() -> Dataplane {
    let mut dataplane = Dataplane::default();
    for number in 1..=40 {
        let service = testkit::mk_service(&format!("shop/service-{number}"))
            .cluster_ip(&format!("10.96.0.{number}"))
            .port("http", 80)
            .build();
        let endpoints = testkit::mk_endpoints()
            .tcp("http")
            .ready("10.0.1.5:8080", "node-1")
            .build();
        let rules = dataplane::compile(&service, &endpoints, dataplane.node(), dataplane.config());
        dataplane.set(rules.into());
    }
    dataplane
}

/// Story T241: another program owns Signpost's table and ends between a read and a write. The kernel
/// removes the table without a generation and without a notification.
fn table_of_an_owner(namespace: &Namespace) -> Result<()> {
    let desired = forty_services();
    let [ipv4, _] = open(namespace)?;
    let owner: Arc<Mutex<Option<Process>>> = Arc::default();
    let ending = Arc::clone(&owner);
    let node = namespace.clone();
    let backend = Faulty::new(ipv4, move |call| {
        let mut owner = ending.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(call, Call::Commit { .. }) && owner.take().is_some() {
            let tables = || node.nft(&["list", "tables"]);
            let gone = wait_for("the table to go", SOON, || {
                Ok((!tables()?.contains("signpost")).then_some(()))
            });
            gone.expect("the kernel removes it");
        }
        CallOutcome::Pass
    });
    let mut family = FamilyReconciler::new(backend);
    let sync = family.sync(&desired, Reason::Startup, &SystemClock);
    ensure!(sync.succeeded(), "{sync}");

    let mut command = namespace.command("nft");
    command.arg("-i");
    let mut process = Process::start("nft", command)?;
    let table = "table ip signpost";
    process.write_line(&format!(
        "add {table}; delete {table}; add {table} {{ flags owner; }}"
    ))?;
    wait_for("the table to have an owner", SOON, || {
        let listed = namespace.nft(&["list", "table", "ip", "signpost"])?;
        Ok(listed.contains("owner").then_some(()))
    })?;
    *owner.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
    let mut syncs = Vec::new();
    for _ in 0..3 {
        let sync = family.sync(&desired, Reason::Timer, &SystemClock);
        let done = sync.succeeded();
        syncs.push(sync.to_string());
        if done {
            let listed = namespace.nft(&["list", "map", "ip", "signpost", "services"])?;
            ensure!(listed.contains("10.96.0.40 . tcp . 80"), "{listed}");
            return Ok(());
        }
    }
    bail!("it does not come back: {}", syncs.join("\n"))
}

/// Runs the cleanup command.
fn cleanup_command(namespace: &Namespace) -> Result<()> {
    namespace.nft(&["add table inet theirs"])?;
    drop(program_all(namespace, &rich()?)?);
    for _ in 0..2 {
        let agent = binaries::find("signpost-agent")?;
        // Separate from the machine's state.
        let state = tempfile::tempdir()?;
        let mut command = namespace.command(agent);
        command.args(["cleanup", "--state"]).arg(state.path());
        let output = command.output()?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cleanup failed: {complaint}");
        let left = namespace.nft(&["list", "tables"])?;
        ensure!(left.trim() == "table inet theirs", "left is:\n{left}");
    }
    Ok(())
}

fn removal_leaves_nothing_and_can_be_repeated(namespace: &Namespace) -> Result<()> {
    for (mut backend, _) in program_all(namespace, &rich()?)? {
        let _ = backend.commit_removal()?;
        let _ = backend.commit_removal()?;
        ensure!(backend.observe()? == Table::default(), "something is left");
    }
    ensure!(
        namespace.nft(&["list", "ruleset"])?.is_empty(),
        "something is left"
    );
    Ok(())
}

/// No commit may hold the kernel's lock for long: other programs change rules on this node too.
fn bounded_transactions(namespace: &Namespace) -> Result<()> {
    let mut dataplane = Dataplane::default();
    for number in 0..4_000_u16 {
        let [high, low] = number.to_be_bytes();
        let service = testkit::mk_service(&format!("many/service-{number}"))
            .cluster_ip(&format!("10.96.{high}.{low}"))
            .port("http", 80)
            .build();
        let endpoints = testkit::mk_endpoints()
            .tcp("http")
            .ready(&format!("10.0.{high}.{low}:8080"), "node-1")
            .ready(&format!("10.1.{high}.{low}:8080"), "node-2")
            .ready(&format!("10.2.{high}.{low}:8080"), "node-3")
            .build();
        let rules = dataplane::compile(&service, &endpoints, dataplane.node(), dataplane.config());
        dataplane.set(rules.into());
    }
    let [mut backend, _] = open(namespace)?;
    let rules = backend.render(&dataplane, &Rendered::default());
    let change = backend.diff(&Table::default(), &rules);
    let sizes: Vec<usize> = change.transactions().iter().map(|t| t.elements()).collect();
    ensure!(
        sizes.len() > 1 && sizes.iter().all(|size| *size <= 10_000),
        "{sizes:?}"
    );
    let receipt = backend.commit(change)?;
    ensure!(receipt.transactions == sizes.len(), "{receipt:?}");
    ensure!(
        backend.observe()? == rules,
        "the kernel holds something else"
    );
    Ok(())
}
