//! Rules of Signpost and of other programs in the same tables.

use anyhow::{Result, ensure};
use xtables::{BuiltIn, OwnRules, Rule, TableChange, TableName, Target};

use crate::ground::{Ground, PREFIX, chains};

fn jump(chain: &str) -> Rule {
    Rule::always(Target::Jump(chain.into()))
}

/// Returns a change that adds two chains and jumps from built-in chains to the first one.
pub(crate) fn program(table: TableName, from: &[BuiltIn]) -> TableChange {
    let mut change = chains(
        table,
        &[
            ("SIGNPOST-A", &[jump("SIGNPOST-B")]),
            ("SIGNPOST-B", &[Rule::always(Target::Accept)]),
        ],
    );
    let entries = from.iter().map(|chain| (*chain, vec![jump("SIGNPOST-A")]));
    change.entries = entries.collect();
    change
}

/// Returns a change that removes them.
pub(crate) fn removal(table: TableName, from: &[BuiltIn]) -> TableChange {
    TableChange {
        entries: from.iter().map(|chain| (*chain, Vec::new())).collect(),
        removed: vec!["SIGNPOST-A".into(), "SIGNPOST-B".into()],
        ..TableChange::new(table)
    }
}

const FROM: [(TableName, &[BuiltIn]); 2] = [
    (
        TableName::Nat,
        &[
            BuiltIn::Prerouting,
            BuiltIn::Input,
            BuiltIn::Output,
            BuiltIn::Postrouting,
        ],
    ),
    (
        TableName::Filter,
        &[BuiltIn::Input, BuiltIn::Forward, BuiltIn::Output],
    ),
];

/// Rules of other programs: in built-in chains and in their own, with a policy and counters.
const FOREIGN: [(TableName, &str); 10] = [
    (TableName::Nat, "-N THEIRS"),
    (
        TableName::Nat,
        "-A THEIRS -m comment --comment \"theirs: SIGNPOST-A\" -j RETURN",
    ),
    (
        TableName::Nat,
        "-A PREROUTING -m limit --limit 5/s -c 7 700 -j THEIRS",
    ),
    (TableName::Nat, "-A POSTROUTING -o eth0 -j MASQUERADE"),
    (TableName::Filter, "-P FORWARD DROP"),
    (TableName::Filter, "-N THEIRS"),
    (
        TableName::Filter,
        "-A THEIRS -p tcp -m multiport --dports 1,2,3 -j REJECT",
    ),
    (
        TableName::Filter,
        "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -c 3 300 -j ACCEPT",
    ),
    (TableName::Filter, "-A FORWARD -m mark --mark 0x1 -j THEIRS"),
    (
        TableName::Filter,
        "-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT",
    ),
];

fn add_foreign(ground: &Ground) -> Result<()> {
    for (table, arguments) in FOREIGN {
        ground.iptables(table, arguments)?;
    }
    Ok(())
}

pub(crate) fn rules_of_other_programs_stay_as_they_are(ground: &Ground) -> Result<()> {
    add_foreign(ground)?;
    let mut tables = ground.open()?;
    for (table, from) in FROM {
        let before = ground.save(table)?;
        tables.commit(&[program(table, from)])?;
        let during = ground.save(table)?;
        let is_own = |line: &&str| {
            line.starts_with(&format!(":{PREFIX}"))
                || line.ends_with("-j SIGNPOST-A")
                || line.contains(&format!("-A {PREFIX}"))
        };
        let own = during.lines().filter(is_own).count();
        ensure!(
            own == 2 + 2 + from.len(),
            "{own} lines are Signpost's:\n{during}"
        );
        let others: String = during
            .lines()
            .filter(|line| !is_own(line))
            .map(|line| format!("{line}\n"))
            .collect();
        ensure!(
            others == before,
            "rules of others were:\n{before}and are:\n{others}"
        );
        tables.commit(&[removal(table, from)])?;
        let after = ground.save(table)?;
        ensure!(
            after == before,
            "rules of others were:\n{before}and are:\n{after}"
        );
        ensure!(
            ground.observe(table)? == OwnRules::default(),
            "something is left"
        );
    }
    Ok(())
}

pub(crate) fn others_go_on_working_with_the_same_tables(ground: &Ground) -> Result<()> {
    let mut tables = ground.open()?;
    for (table, from) in FROM {
        tables.commit(&[program(table, from)])?;
        let before = ground.observe(table)?;
        let saved = ground.save(table)?;
        for arguments in [
            "-N THEIRS",
            "-A THEIRS -p udp -m udp --dport 53 -j RETURN",
            "-I OUTPUT -j THEIRS",
            "-A OUTPUT -s 127.0.0.1 -j ACCEPT",
            "-C OUTPUT -j THEIRS",
            "-D OUTPUT -s 127.0.0.1 -j ACCEPT",
            "-D OUTPUT -j THEIRS",
            "-F THEIRS",
            "-X THEIRS",
        ] {
            let localhost = match ground.family {
                xtables::Family::Ipv4 => "127.0.0.1",
                xtables::Family::Ipv6 => "::1",
            };
            ground.iptables(table, &arguments.replace("127.0.0.1", localhost))?;
            ensure!(
                ground.observe(table)? == before,
                "{arguments} changed Signpost's rules"
            );
        }
        ensure!(ground.save(table)? == saved, "something is left");
    }
    Ok(())
}

pub(crate) fn entries_come_before_rules_of_other_programs(ground: &Ground) -> Result<()> {
    add_foreign(ground)?;
    let (table, chain) = (TableName::Filter, BuiltIn::Forward);
    let mut tables = ground.open()?;
    let others = ground.listed(table, "FORWARD")?;
    let listed = |own: &[&str]| -> Result<()> {
        let listed = ground.listed(table, "FORWARD")?;
        let own = own.iter().map(|chain| format!("-j {chain}"));
        let expected: Vec<String> = own.chain(others.iter().cloned()).collect();
        ensure!(listed == expected, "{listed:#?}, not {expected:#?}");
        Ok(())
    };
    let enter = |rules: Vec<Rule>| TableChange {
        entries: vec![(chain, rules)],
        ..TableChange::new(table)
    };
    tables.commit(&[program(table, &[chain])])?;
    listed(&["SIGNPOST-A"])?;
    tables.commit(&[enter(vec![jump("SIGNPOST-B"), jump("SIGNPOST-A")])])?;
    listed(&["SIGNPOST-B", "SIGNPOST-A"])?;
    // Another program has added a different rule and moved one of Signpost's behind its own.
    ground.iptables(table, "-D FORWARD -j SIGNPOST-B")?;
    ground.iptables(table, "-A FORWARD -p udp -j SIGNPOST-B")?;
    ground.iptables(table, "-A FORWARD -o eth0 -j SIGNPOST-B")?;
    let held = tables.observe(table)?;
    ensure!(
        held.entries[&chain].len() == 3 && held.entries[&chain][2].is_none(),
        "{held:#?}"
    );
    tables.commit(&[enter(vec![jump("SIGNPOST-A"), jump("SIGNPOST-B")])])?;
    listed(&["SIGNPOST-A", "SIGNPOST-B"])?;
    tables.commit(&[enter(Vec::new())])?;
    listed(&[])
}

pub(crate) fn chains_are_replaced_and_go_together(ground: &Ground) -> Result<()> {
    let table = TableName::Nat;
    let mut tables = ground.open()?;
    // The chains jump to each other in both directions of their order.
    let first = [jump("SIGNPOST-3"), jump("SIGNPOST-2")];
    let mut change = chains(
        table,
        &[
            ("SIGNPOST-1", &first),
            ("SIGNPOST-2", &[jump("SIGNPOST-3")]),
            ("SIGNPOST-3", &[Rule::always(Target::Masquerade)]),
        ],
    );
    tables.commit(&[change.clone()])?;
    let second = [jump("SIGNPOST-2")];
    change.chains.truncate(1);
    change.chains[0].1 = second.clone().into();
    tables.commit(&[change])?;
    let held = ground.observe(table)?;
    ensure!(held.chains["SIGNPOST-1"] == second.map(Some), "{held:#?}");
    ensure!(held.chains.len() == 3, "{held:#?}");
    tables.commit(&[TableChange {
        removed: ["SIGNPOST-3", "SIGNPOST-2", "SIGNPOST-1"]
            .map(Into::into)
            .into(),
        ..TableChange::new(table)
    }])?;
    ensure!(
        ground.observe(table)? == OwnRules::default(),
        "something is left"
    );
    let nothing = TableChange::new(table);
    ensure!(tables.commit(&[nothing])? == 0, "nothing is written");
    Ok(())
}

pub(crate) fn quiet_is_distinguished_from_change(ground: &Ground) -> Result<()> {
    let mut tables = ground.open()?;
    for table in TableName::ALL {
        tables.observe(table)?;
    }
    for (table, from) in FROM {
        tables.commit(&[program(table, from)])?;
    }
    ensure!(
        !tables.observe_drift()?,
        "Signpost's own change counts as drift"
    );
    for (table, from) in FROM {
        // In the table read first, and in the one read last.
        ground.iptables(table, "-A INPUT -j ACCEPT")?;
        for other in TableName::ALL.into_iter().filter(|other| *other != table) {
            tables.observe(other)?;
        }
        ensure!(tables.observe_drift()?, "a change of {table} went unseen");
        tables.observe(table)?;
        ensure!(!tables.observe_drift()?, "what was read counts as drift");
        tables.commit(&[removal(table, from)])?;
    }
    ensure!(
        !tables.observe_drift()?,
        "Signpost's own removal counts as drift"
    );
    Ok(())
}

pub(crate) fn what_one_family_does_is_no_drift_of_the_other(ground: &Ground) -> Result<()> {
    let [mut ipv4, mut ipv6] = ground.open_families()?;
    ipv4.observe(TableName::Nat)?;
    ipv6.observe(TableName::Nat)?;
    for (table, from) in FROM {
        ipv4.commit(&[program(table, from)])?;
        ensure!(!ipv6.observe_drift()?, "IPv6 takes it for drift");
        ipv6.commit(&[program(table, from)])?;
        ensure!(!ipv4.observe_drift()?, "IPv4 takes it for drift");
    }
    ground.iptables(TableName::Nat, "-A INPUT -j ACCEPT")?;
    let (ipv4, ipv6) = (ipv4.observe_drift()?, ipv6.observe_drift()?);
    ensure!(ipv4 || ipv6, "a change went unseen");
    Ok(())
}
