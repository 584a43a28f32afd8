//! Variant nf_tables, in which any program can create tables and chains with the names that
//! iptables uses.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use netlink::nf_tables::{Extension, ExtensionKind, Operation, Transaction};
use netlink::{CommitError, Socket};
use rustix::io::Errno;
use xtables::{BuiltIn, Fault, Match, OwnRules, Recent, Rule, TableChange, TableName, Target};

use crate::ground::{Ground, PREFIX, chains};
use crate::neighbours::{program, removal};

const TABLE: TableName = TableName::Nat;
const FROM: [BuiltIn; 1] = [BuiltIn::Prerouting];
/// The number of writes by another program, and of checks in between: a change by Signpost takes as
/// long as ten checks.
const WRITES: u32 = 200;
const LOOKS: u32 = 100;

fn nft(ground: &Ground, command: &str) -> Result<()> {
    let command = command.replace("FAMILY", netlink::nf_tables::family_name(ground.family));
    ground.namespace.nft(&[&command]).map(drop)
}

/// The kernel treats names as bytes. A single chain whose name is not UTF-8 used to make the whole
/// table unreadable.
pub(crate) fn a_name_that_is_not_utf_8_hides_nothing(ground: &Ground) -> Result<()> {
    let foreign = "\"$(printf 'caf\\351')\"";
    ground.iptables(TABLE, &format!("-N {foreign}"))?;
    ground.iptables(TABLE, &format!("-A {foreign} -j ACCEPT"))?;
    ground.iptables(TABLE, &format!("-A PREROUTING -j {foreign}"))?;
    let mut tables = ground.open()?;
    tables.commit(&[program(TABLE, &FROM)])?;
    let held = ground.observe(TABLE)?;
    ensure!(
        held.chains.len() == 2 && held.entries[&FROM[0]].len() == 1,
        "{held:#?}"
    );
    ground
        .namespace
        .enter(|| xtables::observe_variants(PREFIX))??;
    tables.commit(&[removal(TABLE, &FROM)])?;
    ensure!(
        ground.observe(TABLE)? == OwnRules::default(),
        "something is left"
    );
    Ok(())
}

/// Returns why `change` is impossible here: the error with its causes.
fn impossible(ground: &Ground, change: TableChange) -> Result<String> {
    match ground.open()?.commit(&[change]) {
        Ok(_) => bail!("the kernel took it"),
        Err(error) => {
            ensure!(error.fault == Fault::Impossible, "{error:?}");
            Ok(format!("{:#}", anyhow::Error::from(error)))
        }
    }
}

/// Rules in a chain that only has the right name used to count as served Services, but received no
/// packets.
pub(crate) fn a_chain_that_is_not_as_iptables_makes_it_is_named(ground: &Ground) -> Result<()> {
    for attached in [
        "",
        "{ type nat hook output priority -100; }",
        "{ type filter hook prerouting priority -100; }",
        "{ type nat hook prerouting priority -99; }",
        "{ type filter hook prerouting priority raw; }",
    ] {
        nft(ground, "add table FAMILY nat")?;
        nft(
            ground,
            &format!("add chain FAMILY nat PREROUTING {attached}"),
        )?;
        let error = impossible(ground, program(TABLE, &FROM))?;
        let expected = "PREROUTING { type nat hook prerouting priority -100; }";
        ensure!(error.contains(expected), "{attached}: {error}");
        ensure!(
            ground.observe(TABLE)? == OwnRules::default(),
            "{attached}: something was begun"
        );
        nft(ground, "delete chain FAMILY nat PREROUTING")?;
        ground.open()?.commit(&[program(TABLE, &FROM)])?;
        nft(ground, "delete table FAMILY nat")?;
    }
    Ok(())
}

pub(crate) fn a_table_that_sleeps_is_named_and_can_be_left(ground: &Ground) -> Result<()> {
    nft(ground, "add table FAMILY nat { flags dormant; }")?;
    let error = impossible(ground, program(TABLE, &FROM))?;
    ensure!(error.contains("nat is dormant"), "{error}");
    nft(ground, "add table FAMILY nat")?;
    let mut tables = ground.open()?;
    tables.commit(&[program(TABLE, &FROM)])?;
    tables.observe(TABLE)?;
    // Another program makes the table dormant: Signpost's rules exist in it but have no effect.
    nft(ground, "add table FAMILY nat { flags dormant; }")?;
    ensure!(tables.observe_drift()?, "it went unseen");
    let held = tables.observe(TABLE)?;
    ensure!(held.entries[&FROM[0]] == [None], "{held:#?}");
    let error = impossible(ground, program(TABLE, &FROM))?;
    ensure!(error.contains("nat is dormant"), "{error}");
    tables.commit(&[removal(TABLE, &FROM)])?;
    ensure!(
        ground.observe(TABLE)? == OwnRules::default(),
        "something is left"
    );
    Ok(())
}

/// A step longer than the largest possible send buffer of a process, 32 MiB.
pub(crate) fn a_step_that_is_too_long_is_refused_and_the_next_is_not(
    ground: &Ground,
) -> Result<()> {
    let mut tables = ground.open()?;
    tables.commit(&[chains(TABLE, &[("SIGNPOST-A", &[])])])?;
    tables.observe(TABLE)?;
    let rule = Rule {
        matches: vec![Match::Recent {
            list: "SIGNPOST".into(),
            what: Recent::Set,
        }],
        comment: Some("x".repeat(250).into()),
        ..Rule::always(Target::Masquerade)
    };
    let long = chains(TABLE, &[("SIGNPOST-LONG", &vec![rule.clone(); 60_000])]);
    let Err(error) = tables.commit(&[long]) else {
        bail!("it was sent");
    };
    ensure!(
        error.fault == Fault::Refused && error.done == 0,
        "{error:?}"
    );
    ensure!(!tables.observe_drift()?, "nothing has happened");
    tables.commit(&[chains(TABLE, &[("SIGNPOST-B", &[])])])?;
    ensure!(
        !tables.observe_drift()?,
        "its transaction is distinguished from others"
    );
    let held = ground.observe(TABLE)?;
    ensure!(
        held.chains
            .keys()
            .map(|name| &**name)
            .eq(["SIGNPOST-A", "SIGNPOST-B"]),
        "{held:#?}"
    );
    // Each of several chains fits by itself.
    let half = vec![rule; 30_000];
    let halves: [(&str, &[Rule]); 2] = [("SIGNPOST-A", &half), ("SIGNPOST-B", &half)];
    let transactions = tables.commit(&[chains(TABLE, &halves)])?;
    ensure!(transactions == 2, "it took {transactions} transactions");
    Ok(())
}

/// Returns the handles of the rules in the built-in chain, and their targets.
fn numbers(ground: &Ground, socket: &mut Socket) -> Result<Vec<(u64, Option<String>)>> {
    let all = socket.observe_chosen_rules(ground.family, "nat", Some("PREROUTING"), |rule| {
        Some((rule.handle(), rule.leads_to().map(str::to_owned)))
    });
    Ok(all?)
}

/// A recreated table numbers its rules from the beginning: the former handle of Signpost's rule
/// belongs to a rule of another program.
pub(crate) fn what_was_read_before_others_wrote_removes_nothing(ground: &Ground) -> Result<()> {
    ground.open()?.commit(&[program(TABLE, &FROM)])?;
    let mut socket = ground.namespace.enter(Socket::open)??;
    let generation = socket.observe_generation()?;
    let rules = numbers(ground, &mut socket)?;
    let [(handle, Some(_))] = rules[..] else {
        bail!("{rules:?}");
    };
    let mut deletion = Transaction::new(ground.family, "nat".into());
    deletion.operations = vec![Operation::DeleteRule {
        chain: "PREROUTING".into(),
        handle,
    }];
    nft(ground, "delete table FAMILY nat")?;
    for _ in 0..handle {
        ground.iptables(TABLE, "-A PREROUTING -j ACCEPT")?;
    }
    let foreign = numbers(ground, &mut socket)?;
    ensure!(foreign.contains(&(handle, None)), "{handle} in {foreign:?}");
    match socket.commit_in(generation, &deletion) {
        Err(CommitError::Refused { source, .. }) => {
            let errno = Errno::from_io_error(&source);
            ensure!(errno == Some(Errno::RESTART), "{source}");
        }
        other => bail!("{other:?}"),
    }
    ensure!(
        numbers(ground, &mut socket)? == foreign,
        "a rule of the other program is gone"
    );
    let generation = socket.observe_generation()?;
    socket
        .commit_in(generation, &deletion)
        .context("its own generation")?;
    let fewer = numbers(ground, &mut socket)?.len() + 1;
    ensure!(fewer == foreign.len(), "what was asked for was not done");
    Ok(())
}

/// Neither other programs that write continuously nor Signpost's other family during its initial
/// load fail a change.
pub(crate) fn busy_neighbours_fail_no_change(ground: &Ground) -> Result<()> {
    let ([mut own, mut beside], mut stranger) = (ground.open_families()?, ground.open()?);
    stranger.observe(TableName::Filter)?;
    let is_done = AtomicBool::new(false);
    let busy = || !is_done.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            let outcome = (0..WRITES).try_for_each(|_| -> Result<()> {
                stranger.commit(&[chains(TableName::Filter, &[("SIGNPOST-Y", &[])])])?;
                (0..LOOKS).try_for_each(|_| Ok(stranger.observe_drift().map(drop)?))
            });
            is_done.store(true, Ordering::Relaxed);
            outcome
        });
        let beside = scope.spawn(|| -> Result<()> {
            while busy() {
                beside.commit(&[chains(TableName::Filter, &[("SIGNPOST-X", &[])])])?;
                beside.observe(TableName::Filter)?;
            }
            Ok(())
        });
        let mut outcome = Ok(());
        while busy() && outcome.is_ok() {
            let there_and_back = [program(TABLE, &FROM), removal(TABLE, &FROM)];
            outcome = own.commit(&there_and_back).map(drop);
        }
        outcome?;
        for neighbour in [stranger, beside] {
            neighbour
                .join()
                .map_err(|_| anyhow!("a neighbour panicked"))??;
        }
        Ok(())
    })
}

/// The extensions that every node's rules use, and some that no kernel has.
pub(crate) fn matches_and_targets_of_the_kernel_are_known(ground: &Ground) -> Result<()> {
    let mut socket = ground.namespace.enter(Socket::open)??;
    for (kind, name, revision, is_there) in [
        (ExtensionKind::Match, "conntrack", 3, true),
        (ExtensionKind::Match, "conntrack", 200, false),
        (ExtensionKind::Target, "DNAT", 2, true),
        (ExtensionKind::Match, "DNAT", 2, false),
        (ExtensionKind::Match, "signpost", 0, false),
        (ExtensionKind::Target, "REJECT", 0, true),
    ] {
        let extension = Extension {
            kind,
            name,
            revision,
        };
        let answer = socket.observe_extension(ground.family, extension)?;
        ensure!(answer == is_there, "{extension}: {answer}");
    }
    Ok(())
}
