//! The real agent while other programs change its rules.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::condition::RULES_CONTESTED;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tests::deadline::wait_for;
use xtables::Variant;

use crate::node::{Node, PROMPTLY, Place};

/// The deadline for a repair: an agent without notifications repairs after an hour, and one that
/// delays a repair does so for four seconds.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(3);
/// The deadline for the agent's end. A task that does not stop would take ten seconds.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// The agent's text for a program that the kernel names.
const NFT: &str = "nft (process ";
/// The agent's text for a program that the kernel does not name, because it changed legacy tables.
pub(crate) const UNNAMED_PROGRAM: &str = "another program";
/// The interval between two flushes, and the duration of the flushes.
const FLUSHES_EVERY: Duration = Duration::from_millis(200);
const FLUSHES_FOR: Duration = Duration::from_secs(5);
/// The deadline for the report of flushes where the agent checks its rules periodically.
const CONTESTED_WITHIN: Duration = Duration::from_secs(60);
/// The command that flushes legacy tables of both families concurrently.
const FLUSH_LEGACY: &str = "iptables-legacy -w -t nat -F & ip6tables-legacy -w -t nat -F & wait";

/// Waits for the repair of `damage`, and until the agent reports `actor` as the cause.
pub(crate) fn expect_repair(node: &Node, damage: &str, drifts: f64, actor: &str) -> Result<()> {
    wait_for(&format!("the repair of: {damage}"), AT_ONCE, || {
        Ok(node.is_as_before()?.then_some(()))
    })
    .with_context(|| node.syncs().unwrap_or_default())?;
    // The repair is counted first and reported after it is done.
    wait_for("the repair to be counted", AT_ONCE, || {
        let counted = node.agent.metric("signpost_drift_total")? - drifts;
        Ok((counted > 0.0).then_some(()))
    })
    .with_context(|| format!("there was no harm in: {damage}"))?;
    wait_for("the culprit to be named", AT_ONCE, || {
        let (status, message) = node.condition(RULES_CONTESTED)?;
        let named = message.contains(actor) && message.contains(" had changed ");
        Ok((status == "False" && named).then_some(()))
    })
}

/// Failure stories T30 (spatiumddi#382) and T31 (rke2#10469, k3s#7542).
pub(crate) fn flushed_rulesets_are_repaired() -> Result<()> {
    let node = Node::start(Place::Nftables)?;
    let reload = "flush ruleset; add table inet firewalld; \
        add chain inet firewalld input { type filter hook input priority 10; policy accept; }";
    for damage in ["flush ruleset", reload] {
        let drifts = node.agent.metric("signpost_drift_total")?;
        node.nft(damage)?;
        expect_repair(&node, damage, drifts, NFT)?;
        ensure!(node.answers()?, "no answer after {damage}");
        let counted = node.agent.metric("signpost_drift_total")? - drifts;
        ensure!(counted == 2.0, "{counted} repairs after {damage}");
    }
    node.nft("list chain inet firewalld input")
        .context("what another program has written is gone")?;
    let log = node.agent.log();
    ensure!(
        log.contains("RulesDrifted"),
        "the log does not report it:\n{log}"
    );
    Ok(())
}

/// Failure story T32: kubernetes#129128, kubernetes#133767.
pub(crate) fn every_damage_is_repaired_at_once() -> Result<()> {
    let damages: [fn(&Node) -> Result<String>; 8] = [
        |_| Ok("delete table ip6 signpost".to_owned()),
        |_| Ok("flush chain ip signpost dispatch".to_owned()),
        |node| first_rule_of(node, "masquerading"),
        |_| Ok("flush map ip6 signpost services".to_owned()),
        |_| Ok("flush map ip signpost service-chains".to_owned()),
        // Failure story T242: all rules are there, and no packet meets them.
        |_| Ok("add table ip signpost { flags dormant; }".to_owned()),
        |node| {
            let (key, _) = first_endpoint(node)?;
            Ok(format!("delete element ip signpost endpoints {{ {key} }}"))
        },
        |node| {
            let (key, target) = first_endpoint(node)?;
            Ok(format!(
                "delete element ip signpost endpoints {{ {key} : {target} }}; \
                 add element ip signpost endpoints {{ {key} : 10.0.1.99 . 9999 }}"
            ))
        },
    ];
    // More repairs in a row would be delayed.
    for few in damages.chunks(3) {
        let node = Node::start(Place::Nftables)?;
        for damage in few {
            let damage = damage(&node)?;
            let drifts = node.agent.metric("signpost_drift_total")?;
            node.nft(&damage)?;
            expect_repair(&node, &damage, drifts, NFT)?;
        }
        ensure!(node.answers()?, "no answer");
    }
    Ok(())
}

/// The same in mode ipvs. Without the notification, the agent would find the damage as well, but not
/// the program, and with thousands of Services after half a minute.
pub(crate) fn damage_in_mode_ipvs_is_repaired() -> Result<()> {
    let node = Node::start(Place::Ipvs)?;
    for damage in [
        "flush chain ip signpost-ipvs dispatch",
        "flush map ip6 signpost-ipvs services",
        "add table ip signpost-ipvs { flags dormant; }",
    ] {
        let drifts = node.agent.metric("signpost_drift_total")?;
        node.nft(damage)?;
        expect_repair(&node, damage, drifts, NFT)?;
        ensure!(node.answers()?, "no answer after {damage}");
    }
    // The owners of marks are in the table: without it, other virtual servers take the place of all.
    node.nft("flush ruleset")?;
    wait_for("an answer after the flush", PROMPTLY, || {
        Ok(node.answers()?.then_some(()))
    })
}

/// Returns an element of the map of endpoints: its key and its target.
fn first_endpoint(node: &Node) -> Result<(String, String)> {
    let listed = node.nft("list map ip signpost endpoints")?;
    let (_, elements) = listed
        .split_once("elements = {")
        .context("it has elements")?;
    let (element, _) = elements.split_once([',', '}']).context("it ends")?;
    let (key, target) = element.split_once(" : ").context("it has a target")?;
    Ok((key.trim().to_owned(), target.trim().to_owned()))
}

/// Returns a command that deletes the first rule of a chain.
fn first_rule_of(node: &Node, chain: &str) -> Result<String> {
    let command = ["--handle", "list", "chain", "ip", "signpost", chain];
    let listed = node.namespace()?.nft(&command)?;
    let handle = listed
        .lines()
        .filter(|line| !line.contains('{') || line.contains("vmap"))
        .find_map(|line| Some(line.rsplit_once("# handle ")?.1.to_owned()))
        .with_context(|| format!("chain {chain} has no rule:\n{listed}"))?;
    Ok(format!("delete rule ip signpost {chain} handle {handle}"))
}

/// Failure story T38: another program flushes continuously. The agent makes the first repairs at
/// once, and then with increasing delays; it reports this and uses a limited share of a processor;
/// afterwards everything works.
pub(crate) fn t38_a_program_that_does_not_stop_is_not_answered_every_time(
    place: Place,
) -> Result<()> {
    let node = Node::start(place)?;
    let (drifts, busy) = (node.agent.metric("signpost_drift_total")?, busy_for(&node)?);
    let began = Instant::now();
    let mut flushes = 0.0;
    while began.elapsed() < FLUSHES_FOR {
        match place {
            Place::Nftables | Place::Ipvs | Place::Iptables(Variant::NfTables) => {
                node.nft("flush ruleset")?
            }
            Place::Iptables(Variant::Legacy) => node.shell(FLUSH_LEGACY)?,
        };
        flushes += 1.0;
        let next = began + FLUSHES_EVERY.mul_f64(flushes);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    // Each flush counts once in each family.
    let repairs = (node.agent.metric("signpost_drift_total")? - drifts) / 2.0;
    let share = (busy_for(&node)? - busy).as_secs_f64() / began.elapsed().as_secs_f64();
    ensure!(
        (4.0..=10.0).contains(&repairs),
        "{repairs} repairs after {flushes} flushes"
    );
    ensure!(share < 0.5, "the agent was busy for {share:.2} of the time");
    let (status, message) = wait_for("the condition to be written", AT_ONCE, || {
        let condition = node.condition(RULES_CONTESTED)?;
        Ok((condition.0 == "True").then_some(condition))
    })?;
    let actor = match place {
        Place::Nftables | Place::Ipvs | Place::Iptables(Variant::NfTables) => NFT,
        Place::Iptables(Variant::Legacy) => UNNAMED_PROGRAM,
    };
    ensure!(
        message.contains(actor) && message.contains("keeps changing the rules"),
        "{status}: {message}"
    );
    wait_for("the last repair", Duration::from_secs(6), || {
        Ok(node.is_as_before()?.then_some(()))
    })?;
    ensure!(node.answers()?, "no answer");
    wait_for("the condition to end", Duration::from_secs(15), || {
        let (status, _) = node.condition(RULES_CONTESTED)?;
        Ok((status == "False").then_some(()))
    })
}

/// The same in mode ipvs, without a limit of processor time.
pub(crate) fn flushes_in_mode_ipvs_are_reported_and_repaired() -> Result<()> {
    let node = Node::start(Place::Ipvs)?;
    let is_reported = |expected: &str| {
        let (status, message) = node.condition(RULES_CONTESTED)?;
        anyhow::Ok((status == expected).then_some(message))
    };
    let message = wait_for("the condition to be written", CONTESTED_WITHIN, || {
        node.nft("flush ruleset")?;
        std::thread::sleep(FLUSHES_EVERY);
        is_reported("True")
    })?;
    let is_named = message.contains(NFT);
    let is_contested = message.contains("keeps changing the rules");
    ensure!(is_named && is_contested, "{message}");
    wait_for("an answer after the last flush", PROMPTLY, || {
        Ok(node.answers()?.then_some(()))
    })?;
    wait_for("the condition to end", PROMPTLY, || is_reported("False")).map(drop)
}

/// Returns the processor time of the agent since its start.
fn busy_for(node: &Node) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", node.agent.process_id()))?;
    let (_, fields) = stat.rsplit_once(')').context("it has a name")?;
    // utime and stime are fields 14 and 15 of proc(5); the first after the name is field 3.
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks
        .map(|field| field.parse::<u64>())
        .sum::<Result<_, _>>()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(ticks * 1000 / per_second))
}

/// Changes by another firewall in its own table cause no check of Signpost's tables.
pub(crate) fn changes_elsewhere_cause_no_sync() -> Result<()> {
    let node = Node::start(Place::Nftables)?;
    let before = node.agent.metric("signpost_syncs_total")?;
    node.nft("add table inet theirs; add set inet theirs s { type ipv4_addr; }")?;
    node.nft("add table ip theirs; add map ip theirs services { type ipv4_addr : verdict; }")?;
    for number in 1..=50 {
        node.nft(&format!("add element inet theirs s {{ 10.9.0.{number} }}"))?;
    }
    // The kernel sends notifications in order: once this damage is repaired, the agent has received
    // all earlier ones.
    let drifts = node.agent.metric("signpost_drift_total")?;
    let damage = "flush chain ip signpost dispatch";
    node.nft(damage)?;
    expect_repair(&node, damage, drifts, NFT)?;
    let syncs = node.agent.metric("signpost_syncs_total")? - before;
    ensure!(syncs == 1.0, "{syncs} syncs:\n{}", node.syncs()?);
    Ok(())
}

/// A listener waits for the kernel, which may send nothing for days. It must end at once when the
/// process receives a signal.
pub(crate) fn it_ends_at_once(place: Place) -> Result<()> {
    let node = Node::start(place)?;
    let process = i32::try_from(node.agent.process_id())?;
    let process = Pid::from_raw(process).context("no process has the id 0")?;
    kill_process(process, Signal::TERM)?;
    let ended = wait_for("the agent to end", ENDS_WITHIN, || {
        // Check without reaping, so that the process ID remains the agent's.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(process), options)?)
    })
    .with_context(|| node.agent.log())?;
    ensure!(ended.exit_status() == Some(0), "{ended:?}");
    Ok(())
}
