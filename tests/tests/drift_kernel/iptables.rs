//! The real agent in mode iptables while other programs change its rules.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dataplane::Family;
use tests::deadline::wait_for;
use xtables::Variant;

use crate::agent::{AT_ONCE, UNNAMED_PROGRAM, expect_repair};
use crate::node::{Node, Place, Setting, program};

/// How often to retry flushing a table: iptables-nft-restore lists the chains, and the kernel
/// rejects its whole transaction (`CHAIN_DEL failed`) if the agent has repaired rules in between.
const TRIES: usize = 5;
/// How often other programs change unrelated rules.
const CHANGES: u16 = 50;
/// The number of repairs in a row within ten seconds that are not delayed.
const IN_A_ROW: usize = 4;

/// A change of another program to the rules of one family: the arguments of `iptables`.
type Damage = (Family, String);

/// Returns the agent's text for the program that changed the rules: the kernel names it only in
/// variant nf_tables.
fn actor(variant: Variant, program: &'static str) -> &'static str {
    match variant {
        Variant::NfTables => program,
        Variant::Legacy => UNNAMED_PROGRAM,
    }
}

/// Failure story T30 (spatiumddi#382): the rules of all programs are flushed.
pub(crate) fn flushed_rulesets_are_repaired(variant: Variant) -> Result<()> {
    let node = Node::start(Place::Iptables(variant))?;
    let drifts = node.agent.metric("signpost_drift_total")?;
    let damage = match variant {
        Variant::NfTables => "nft flush ruleset".to_owned(),
        // A chain that was repaired meanwhile cannot be deleted; a flushing program ignores that.
        Variant::Legacy => in_every_table(|family, table| {
            let program = program(variant, family, "");
            let wait = format!("{program} --wait -t {table}");
            format!("{wait} -F; {wait} -X || true; ")
        }),
    };
    node.shell(&damage)?;
    expect_repair(&node, &damage, drifts, actor(variant, "nft (process "))?;
    ensure!(node.answers()?, "no answer");
    let counted = node.agent.metric("signpost_drift_total")? - drifts;
    match variant {
        // The flush is one transaction.
        Variant::NfTables => ensure!(counted == 2.0, "{counted} repairs"),
        Variant::Legacy => ensure!((2.0..=4.0).contains(&counted), "{counted} repairs"),
    }
    let log = node.agent.log();
    ensure!(log.contains("RulesDrifted"), "it was not reported:\n{log}");
    Ok(())
}

/// Failure story T31 (rke2#10469, k3s#7542): the effect of a firewalld reload with
/// `FlushAllOnReload` on iptables, without firewalld. It passes these lines to `iptables-restore`,
/// table by table (`build_flush_rules` and `set_rules` of its ipXtables.py).
pub(crate) fn a_firewalls_reload_is_repaired(variant: Variant) -> Result<()> {
    let node = Node::start(Place::Iptables(variant))?;
    let drifts = node.agent.metric("signpost_drift_total")?;
    let reload = in_every_table(|family, table| {
        let restore = program(variant, family, "-restore");
        let flush = format!("printf '*{table}\\n-F\\n-X\\n-Z\\nCOMMIT\\n' | {restore} -w -n");
        let tries = vec![flush; TRIES].join(" || ");
        format!("{tries}; ")
    });
    node.shell(&reload)?;
    // ip6tables-nft-restore, truncated to the kernel's fifteen characters.
    let named = actor(variant, "ip6tables-nft-r (process ");
    expect_repair(&node, &reload, drifts, named)?;
    ensure!(node.answers()?, "no answer");
    let counted = node.agent.metric("signpost_drift_total")? - drifts;
    ensure!((2.0..=4.0).contains(&counted), "{counted} repairs");
    Ok(())
}

fn in_every_table(line: impl Fn(Family, &str) -> String) -> String {
    let mut lines = String::new();
    for family in Family::ALL {
        for table in ["raw", "mangle", "nat", "filter"] {
            lines.push_str(&line(family, table));
        }
    }
    lines
}

/// Failure story T32: kubernetes#129128, kubernetes#133767.
pub(crate) fn every_damage_is_repaired_at_once(variant: Variant) -> Result<()> {
    let mut done = 0;
    loop {
        let node = Node::start(Place::Iptables(variant))?;
        let damages = damages(&node, variant)?;
        for (family, damage) in damages.iter().skip(done).take(IN_A_ROW) {
            let drifts = node.agent.metric("signpost_drift_total")?;
            node.iptables(variant, *family, damage)?;
            let named = actor(variant, "tables-nft (process ");
            expect_repair(&node, damage, drifts, named)?;
            ensure!(node.answers()?, "no answer after {damage}");
        }
        done += IN_A_ROW;
        if done >= damages.len() {
            return Ok(());
        }
    }
}

/// Returns the changes that are noticed at once.
fn damages(node: &Node, variant: Variant) -> Result<Vec<Damage>> {
    let (ipv4, ipv6) = (Family::Ipv4, Family::Ipv6);
    let Found { leaf, service, .. } = find(node, variant, ipv4)?;
    let other = find(node, variant, ipv6)?;
    let mut damages = vec![
        (ipv4, "-t nat -F".to_owned()),
        (ipv6, "-t filter -F".to_owned()),
        (ipv4, "-t nat -D PREROUTING 1".to_owned()),
        (ipv6, "-t filter -D FORWARD 1".to_owned()),
        (ipv4, format!("-t nat -D {leaf} 1")),
        (ipv6, format!("-t nat -D {} 1", other.service)),
        (ipv4, format!("-t nat -F {service}")),
        (ipv4, "-t nat -I SIGNPOST-SERVICES -p tcp -j RETURN".into()),
    ];
    if variant == Variant::NfTables {
        damages.push((ipv4, redirection(node, variant, ipv4)?));
    }
    Ok(damages)
}

/// The chains of a Service of the example.
struct Found {
    /// The chain of the address tree that contains its rule.
    leaf: String,
    /// The chain that chooses an endpoint.
    service: String,
    /// Its rules in the form of `iptables -A`.
    rules: Vec<String>,
}

fn find(node: &Node, variant: Variant, family: Family) -> Result<Found> {
    let saved = node.saved(variant, family)?;
    let added = |chain: &str| format!("{family} nat -A {chain}");
    let comment = "--comment \"demo/web:http cluster IP\"";
    let is_lookup = |line: &&String| line.starts_with(&added("")) && line.contains(comment);
    let lookup = saved.iter().find(is_lookup).context("it is looked up")?;
    let (_, rest) = lookup.split_once("-A ").context("it is in a chain")?;
    let (leaf, _) = rest.split_once(' ').context("it asks for something")?;
    let (_, service) = lookup.rsplit_once(" -g ").context("it leads somewhere")?;
    ensure!(leaf != "SIGNPOST-SERVICES", "the tree has no branches");
    let begin = added(&format!("{service} "));
    let rules = saved.iter().filter_map(|line| line.strip_prefix(&begin));
    Ok(Found {
        leaf: leaf.to_owned(),
        service: service.to_owned(),
        rules: rules.map(str::to_owned).collect(),
    })
}

/// Returns a change that replaces the target of one endpoint. The number of rules and bytes stays
/// the same.
fn redirection(node: &Node, variant: Variant, family: Family) -> Result<String> {
    let Found { service, rules, .. } = find(node, variant, family)?;
    let mut targets = rules.iter().zip(1..).filter_map(|(rule, number)| {
        let (asked, _) = rule.split_once("--to-destination ")?;
        Some((asked, number))
    });
    let (asked, number) = targets.next().context("it has endpoints")?;
    Ok(format!(
        "-t nat -R {service} {number} {asked}--to-destination 10.0.1.99:9999"
    ))
}

/// Failure story T32 in legacy tables, where replacing a rule by another one of the same length
/// does not show in the kernel's information about a table: it is found by the comparison every
/// `syncPeriod`.
pub(crate) fn what_does_not_show_is_found_every_sync_period() -> Result<()> {
    let (variant, family) = (Variant::Legacy, Family::Ipv4);
    let node = Node::start_with(&Setting {
        place: Place::Iptables(variant),
        sync_period: "1s",
        others: vec![(variant, 1)],
    })?;
    let drifts = node.agent.metric("signpost_drift_total")?;
    node.iptables(variant, family, &redirection(&node, variant, family)?)?;
    let began = Instant::now();
    wait_for("the repair", 2 * AT_ONCE, || {
        Ok(node.is_as_before()?.then_some(()))
    })
    .with_context(|| node.syncs().unwrap_or_default())?;
    println!("    repaired after {:.0?}", began.elapsed());
    expect_repair(&node, "a redirection", drifts, UNNAMED_PROGRAM)?;
    ensure!(node.answers()?, "no answer");
    Ok(())
}

/// Other programs continuously change their rules in the same tables, as a CNI plugin does for host
/// ports: Signpost's rules are not written again, and the other programs' rules stay unchanged.
pub(crate) fn changes_of_others_cause_no_repair(variant: Variant) -> Result<()> {
    let node = Node::start(Place::Iptables(variant))?;
    let family = Family::Ipv4;
    let committed = || {
        let total = "signpost_syncs_total";
        let of = |family| format!("{total}{{ip_family=\"{family}\",outcome=\"committed\"}}");
        let [ipv4, ipv6] = Family::ALL.map(|family| node.agent.metric(&of(family)));
        Ok::<f64, anyhow::Error>(ipv4? + ipv6?)
    };
    let (drifts, before) = (node.agent.metric("signpost_drift_total")?, committed()?);
    let written = node.agent.metric("signpost_elements_written_total")?;
    node.iptables(variant, family, "-t nat -N CNI-HOSTPORT-DNAT")?;
    let jump = "PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT";
    node.iptables(variant, family, &format!("-t nat -A {jump}"))?;
    for number in 0..CHANGES {
        let port = 40_000 + number;
        let mut changes = String::new();
        let program = program(variant, family, " --wait");
        let mut change = |arguments: &str| writeln!(changes, "{program} {arguments} &&");
        change(&format!(
            "-t nat -A CNI-HOSTPORT-DNAT -p tcp --dport {port} -j DNAT --to-destination 10.0.1.9:80"
        ))?;
        change("-t filter -I FORWARD -d 10.0.1.9 -j ACCEPT")?;
        match number % 3 {
            // A rule removed from one of the kernel's own chains could have been Signpost's.
            0 => change("-t filter -D FORWARD -d 10.0.1.9 -j ACCEPT")?,
            1 => {
                change(&format!("-t nat -D {jump}"))?;
                change(&format!("-t nat -I {jump}"))?;
            }
            _ => {}
        }
        node.shell(&format!("{changes} true"))?;
    }
    let others = node.saved_of_others(variant, family)?;
    let quiet = node.agent.metric("signpost_drift_total")?;
    ensure!(quiet == drifts, "{} repairs of nothing", quiet - drifts);
    let commits = committed()? - before;
    ensure!(commits == 0.0, "{commits} commits:\n{}", node.syncs()?);
    let rules = node.agent.metric("signpost_elements_written_total")? - written;
    ensure!(rules == 0.0, "{rules} rules were written");
    // Once this damage is repaired, the agent has received all earlier notifications.
    let Found { service, .. } = find(&node, variant, family)?;
    let damage = format!("-t nat -F {service}");
    node.iptables(variant, family, &damage)?;
    let named = actor(variant, "iptables-nft (process ");
    expect_repair(&node, &damage, drifts, named)?;
    let commits = committed()? - before;
    ensure!(commits == 1.0, "{commits} commits:\n{}", node.syncs()?);
    ensure!(node.answers()?, "no answer");
    let left = node.saved_of_others(variant, family)?;
    ensure!(left == others, "{left:#?}\nwas\n{others:#?}");
    let ports = left.iter().filter(|line| line.contains("--dport 4"));
    ensure!(ports.count() == usize::from(CHANGES), "{left:#?}");
    Ok(())
}

/// Failure story T36 (cilium#28260, kube-router#1069): another program has left rules in the other
/// variant. Signpost uses the variant with more rules of other programs, reports the split, and
/// stops reporting it once the leftovers are gone.
pub(crate) fn rules_of_others_in_both_variants_are_reported(variant: Variant) -> Result<()> {
    let other = match variant {
        Variant::NfTables => Variant::Legacy,
        Variant::Legacy => Variant::NfTables,
    };
    let node = Node::start_with(&Setting {
        place: Place::Iptables(variant),
        sync_period: "1s",
        others: vec![(variant, 3), (other, 2)],
    })?;
    let (nf_tables, legacy) = match variant {
        Variant::NfTables => (3, 2),
        Variant::Legacy => (2, 3),
    };
    let split = crds::condition::IPTABLES_SPLIT;
    let expect = |status: &str| -> Result<String> {
        node.agent.wait_for("the condition", |_| {
            let (found, message) = node.condition(split)?;
            Ok((found == status).then_some(message))
        })
    };
    let message = expect("True")?;
    let reported = format!(
        "other programs have {nf_tables} rules in iptables-nft and {legacy} in iptables-legacy; \
         the chains SIGNPOST-* are in variant {variant}"
    );
    ensure!(message == reported, "{message}");
    ensure!(node.answers()?, "no answer");
    for family in Family::ALL {
        let strange = node.saved(other, family)?;
        let own = strange.iter().filter(|line| line.contains("SIGNPOST-"));
        ensure!(
            own.count() == 0,
            "Signpost's rules are in both: {strange:#?}"
        );
    }
    node.iptables(other, Family::Ipv4, "-t filter -F")?;
    expect("False")?;
    ensure!(node.answers()?, "no answer");
    wait_for(
        "Signpost's rules to be where they were",
        Duration::from_secs(5),
        || Ok(node.is_as_before()?.then_some(())),
    )
}

/// The mode leaves iptables and returns: the earlier listener must end, and a new one must start.
pub(crate) fn who_comes_back_is_listened_for_again() -> Result<()> {
    let place = Place::Iptables(Variant::NfTables);
    let node = Node::start(place)?;
    for place in [Place::Nftables, place] {
        node.switch_to(place)?;
    }
    let drifts = node.agent.metric("signpost_drift_total")?;
    let damage = "-t nat -F";
    node.iptables(Variant::NfTables, Family::Ipv4, damage)?;
    expect_repair(&node, damage, drifts, "tables-nft (process ")
}
