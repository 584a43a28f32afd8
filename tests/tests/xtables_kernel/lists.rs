//! Single rules, as printed by Signpost and by iptables.

use anyhow::{Context, Result, ensure};
use xtables::{Family, Rule, TableName, Target};

use crate::ground::{Ground, chains};
use crate::samples::{ELSEWHERE, samples};

const CHAIN: &str = "SIGNPOST-SAMPLES";

/// Returns the samples of each table.
fn by_table(family: Family) -> [(TableName, Vec<Rule>); 2] {
    TableName::ALL.map(|table| {
        let samples = samples(family).into_iter();
        let of_table = samples.filter(|(of, _)| *of == table);
        (table, of_table.map(|(_, rule)| rule).collect())
    })
}

fn write_samples(ground: &Ground, table: TableName, rules: &[Rule]) -> Result<()> {
    let change = chains(table, &[(CHAIN, rules), (ELSEWHERE, &[])]);
    ensure!(ground.open()?.commit(&[change])? == 1, "one transaction");
    Ok(())
}

pub(crate) fn iptables_lists_every_rule_as_it_prints(ground: &Ground) -> Result<()> {
    for (table, rules) in by_table(ground.family) {
        write_samples(ground, table, &rules)?;
        let listed = ground.listed(table, CHAIN)?;
        let expected: Vec<String> = rules
            .iter()
            .map(|rule| spelled(rule, ground.family))
            .collect();
        for (listed, expected) in listed.iter().zip(&expected) {
            ensure!(listed == expected, "{listed}, not {expected}");
        }
        ensure!(listed.len() == expected.len(), "{listed:#?}");
        let held = ground.observe(table)?;
        let expected_value: Vec<_> = rules.into_iter().map(Some).collect();
        ensure!(held.chains[CHAIN] == expected_value, "{held:#?}");
    }
    // Some rules make nft abort.
    ground.list_ruleset()
}

/// Returns a rule in the notation that iptables prefers. Parts that iptables omits are its defaults
/// when it reads the rule.
fn spelled(rule: &Rule, family: Family) -> String {
    let mut text = rule.to_string();
    let mask = match family {
        Family::Ipv4 => "255.255.255.255",
        Family::Ipv6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    };
    text = text.replace("--rsource", &format!("--mask {mask} --rsource"));
    if rule.target == Target::Reject {
        text.push_str(match family {
            Family::Ipv4 => " --reject-with icmp-port-unreachable",
            Family::Ipv6 => " --reject-with icmp6-port-unreachable",
        });
    }
    text
}

pub(crate) fn iptables_deletes_every_rule_by_its_words(ground: &Ground) -> Result<()> {
    for (table, rules) in by_table(ground.family) {
        write_samples(ground, table, &rules)?;
        for rule in &rules {
            if rule.target == Target::Drop && table == TableName::Nat {
                continue;
            }
            ground.iptables(table, &format!("-D {CHAIN} {rule}"))?;
        }
        let left = ground.listed(table, CHAIN)?;
        ensure!(left.is_empty(), "{left:#?}");
    }
    Ok(())
}

pub(crate) fn rules_of_iptables_read_as_the_same(ground: &Ground) -> Result<()> {
    for (table, rules) in by_table(ground.family) {
        for chain in [ELSEWHERE, CHAIN] {
            ground.iptables(table, &format!("-N {chain}"))?;
        }
        for rule in &rules {
            ground.iptables(table, &format!("-A {CHAIN} {rule}"))?;
        }
        let held = ground.observe(table)?;
        let read = held.chains.get(CHAIN).context("the chain is seen")?;
        for (read, written) in read.iter().zip(&rules) {
            let read = read
                .as_ref()
                .with_context(|| format!("not read: {written}"))?;
            ensure!(read == written, "{read:?}, not {written:?}");
        }
        ensure!(read.len() == rules.len(), "{read:#?}");
    }
    Ok(())
}

pub(crate) fn what_signposts_rules_never_ask_reads_as_nothing(ground: &Ground) -> Result<()> {
    let strange = [
        "-o eth0 -j RETURN",
        "-p tcp -m tcp --sport 80 -j RETURN",
        "-p tcp -m tcp ! --dport 80 -j RETURN",
        "-p tcp -m tcp --dport 80 --tcp-flags SYN,ACK SYN -j RETURN",
        "! -p tcp -j RETURN",
        "-p icmp -j RETURN",
        "-m addrtype ! --dst-type LOCAL -j RETURN",
        "-m conntrack ! --ctstate NEW -j RETURN",
        "-m conntrack --ctstate NEW --ctproto tcp -j RETURN",
        "-m mark ! --mark 0x4000/0x4000 -j RETURN",
        "-m statistic --mode nth --every 3 --packet 1 -j RETURN",
        "-m statistic --mode nth ! --every 3 --packet 0 -j RETURN",
        "-m statistic --mode random ! --probability 0.5 -j RETURN",
        "-m recent --update --seconds 10 --name other --rsource -j RETURN",
        "-m recent --set --name other --rdest -j RETURN",
        "-m limit --limit 5/s -j RETURN",
        "-p tcp -j REDIRECT --to-ports 80",
        "-j MASQUERADE",
        "-m mark --mark 1",
    ];
    ground.iptables(TableName::Nat, &format!("-N {CHAIN}"))?;
    for rule in strange {
        ground.iptables(TableName::Nat, &format!("-A {CHAIN} {rule}"))?;
        let held = ground.observe(TableName::Nat)?;
        ensure!(held.chains[CHAIN] == [None], "{rule}: {held:?}");
        ground.iptables(TableName::Nat, &format!("-F {CHAIN}"))?;
    }
    Ok(())
}
