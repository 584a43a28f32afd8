//! The legacy tables, which every writer replaces as a whole: no program's rules are lost, and a
//! wait for the lock is limited.

use std::error::Error;
use std::fmt::Write as _;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use tests::deadline::patience;
use tests::network::Process;
use xtables::{
    BuiltIn, CommitError, Family, Fault, Match, OwnRules, Protocol, Rule, TableChange, TableName,
    Target,
};

use crate::ground::{Ground, PREFIX, chains};

/// The deadline for operations that do not wait for other processes.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(10);
/// The minimum number of Signpost's changes during those of another process.
const CHANGES: usize = 200;
/// The number of packets that a rule counts.
const PACKETS: u64 = 7;
/// The minimum number of rules that the other process adds.
const RULES: usize = 150;

pub(crate) fn jump(chain: &str) -> Rule {
    Rule::always(Target::Jump(chain.into()))
}

fn port(port: u16) -> Rule {
    Rule {
        protocol: Some(Protocol::Tcp),
        matches: vec![Match::DestinationPorts {
            first: port,
            last: port,
        }],
        comment: Some("shop/web:http".into()),
        ..Rule::always(Target::Return)
    }
}

pub(crate) fn ports(numbers: &[u16]) -> Vec<Rule> {
    numbers.iter().map(|number| port(*number)).collect()
}

/// Extends `change` with rules in built-in chains and with chains to remove.
pub(crate) fn with(
    change: TableChange,
    entries: &[(BuiltIn, &[&str])],
    removed: &[&str],
) -> TableChange {
    let jumps = |chains: &[&str]| chains.iter().map(|chain| jump(chain)).collect();
    let entries = entries.iter().map(|(chain, to)| (*chain, jumps(to)));
    TableChange {
        entries: entries.collect(),
        removed: removed.iter().map(|name| (*name).into()).collect(),
        ..change
    }
}

/// Returns an error with all of its causes.
pub(crate) fn chain(error: &CommitError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    text
}

/// Returns rules of another program: every form of jump, unknown modules, rules without a target,
/// policies, chains without references, and counters on all of them.
fn rules_of_others(family: Family) -> String {
    let (range, reason) = match family {
        Family::Ipv4 => ("10.0.0.0/8", "icmp-host-prohibited"),
        Family::Ipv6 => ("fd00::/8", "icmp6-adm-prohibited"),
    };
    format!(
        "*filter\n\
         :INPUT DROP [11:1111]\n\
         :FORWARD ACCEPT [12:1212]\n\
         :OUTPUT ACCEPT [13:1313]\n\
         :ALPHA - [0:0]\n\
         :EMPTY - [0:0]\n\
         :ZULU - [0:0]\n\
         [1:100] -A INPUT -s {range} -i eth+ -p tcp -m multiport --dports 80,443 -j ALPHA\n\
         [2:200] -A INPUT -p udp -m udp ! --sport 53 -m limit --limit 5/min\n\
         [3:300] -A INPUT -g ZULU\n\
         [4:400] -A FORWARD ! -o eth0 -m conntrack --ctstate INVALID -m comment --comment \"a \\\"word\\\"\" -j DROP\n\
         [5:500] -A ALPHA -j ZULU\n\
         [6:600] -A ALPHA -j RETURN\n\
         [7:700] -A ZULU -j EMPTY\n\
         [8:800] -A ZULU -j REJECT --reject-with {reason}\n\
         COMMIT\n\
         *nat\n\
         :PREROUTING ACCEPT [21:2121]\n\
         :INPUT ACCEPT [0:0]\n\
         :OUTPUT ACCEPT [0:0]\n\
         :POSTROUTING ACCEPT [22:2222]\n\
         :CNI - [0:0]\n\
         [9:900] -A POSTROUTING -s {range} -j CNI\n\
         [10:1000] -A CNI -m mark --mark 0x1/0x1 -j MASQUERADE\n\
         COMMIT\n"
    )
}

fn restore(ground: &Ground, text: &str) -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), text)?;
    let restore = ground.program("-restore");
    ground.shell(&format!("{restore} --counters <{}", file.path().display()))?;
    Ok(())
}

/// Returns both tables with counters.
fn save(ground: &Ground) -> Result<String> {
    let tables = TableName::ALL.map(|table| ground.save(table));
    tables.into_iter().collect()
}

fn of_others(saved: &str) -> String {
    let lines = saved.lines().filter(|line| !line.contains(PREFIX));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Rules, counters, policies and chains of other programs stay byte for byte the same while
/// Signpost adds, changes and removes its own.
pub(crate) fn others_keep_everything_at_every_step(ground: &Ground) -> Result<()> {
    let text = rules_of_others(ground.family);
    restore(ground, &text)?;
    let before = save(ground)?;
    for line in text.lines().filter(|line| line.contains('[')) {
        ensure!(before.contains(line), "{line} is not in\n{before}");
    }
    let mut tables = ground.open()?;
    let (nat, filter) = (TableName::Nat, TableName::Filter);
    let (input, forward) = (BuiltIn::Input, BuiltIn::Forward);
    let top = [jump("SIGNPOST-WEB"), jump("ALPHA")];
    let steps = [
        with(
            chains(
                filter,
                &[("SIGNPOST-TOP", &top), ("SIGNPOST-WEB", &ports(&[80, 81]))],
            ),
            &[(input, &["SIGNPOST-TOP"]), (forward, &["SIGNPOST-TOP"])],
            &[],
        ),
        with(
            chains(nat, &[("SIGNPOST-NAT", &[Rule::always(Target::Return)])]),
            &[(BuiltIn::Postrouting, &["SIGNPOST-NAT"])],
            &[],
        ),
        with(
            chains(filter, &[("SIGNPOST-WEB", &ports(&[80, 82, 81]))]),
            &[(input, &["SIGNPOST-TOP", "SIGNPOST-WEB"])],
            &[],
        ),
        with(
            chains(filter, &[("SIGNPOST-TOP", &[])]),
            &[(input, &[]), (forward, &[])],
            &["SIGNPOST-WEB"],
        ),
        with(TableChange::new(filter), &[], &["SIGNPOST-TOP"]),
        with(
            TableChange::new(nat),
            &[(BuiltIn::Postrouting, &[])],
            &["SIGNPOST-NAT"],
        ),
    ];
    for step in &steps {
        let said = || format!("at {step:?}");
        let committed = tables.commit(std::slice::from_ref(step));
        committed.with_context(said)?;
        let saved = save(ground)?;
        ensure!(
            of_others(&saved) == before,
            "{}\n{before}became\n{saved}",
            said()
        );
    }
    ensure!(save(ground)? == before, "something of Signpost's is left");
    let transactions = tables.commit(&steps)?;
    ensure!(
        transactions == 4,
        "neighbours of one table were not carried out together: {transactions} transactions"
    );
    ensure!(save(ground)? == before, "together they leave something");
    Ok(())
}

/// An unchanged rule keeps its counters, as administrators expect who search for lost packets.
pub(crate) fn a_rule_that_stays_goes_on_counting(ground: &Ground) -> Result<()> {
    let filter = TableName::Filter;
    let mut tables = ground.open()?;
    let localhost = match ground.family {
        Family::Ipv4 => "127.0.0.1",
        Family::Ipv6 => "::1",
    };
    let accept = Rule::always(Target::Accept);
    tables.commit(&[with(
        chains(
            filter,
            &[
                ("SIGNPOST-A", std::slice::from_ref(&accept)),
                ("SIGNPOST-B", &[]),
            ],
        ),
        &[(BuiltIn::Output, &["SIGNPOST-A"])],
        &[],
    )])?;
    ground.namespace.enter(|| -> std::io::Result<()> {
        let socket = UdpSocket::bind((localhost, 0))?;
        // To itself, so that the packet is not refused.
        let own = socket.local_addr()?;
        (0..PACKETS).try_for_each(|_| socket.send_to(&[], own).map(drop))
    })??;
    let counted = |rule: &str| -> Result<u64> {
        let saved = ground.save(filter)?;
        let line = saved.lines().find(|line| line.ends_with(rule));
        let line = line.with_context(|| format!("no {rule} in\n{saved}"))?;
        let packets = line.trim_start_matches('[').split(':').next();
        Ok(packets.context("counters come first")?.parse()?)
    };
    let before = counted("-A SIGNPOST-A -j ACCEPT")?;
    ensure!(before == PACKETS, "{before} packets were seen");
    for step in [
        chains(filter, &[("SIGNPOST-B", &ports(&[80]))]),
        chains(filter, &[("SIGNPOST-A", &[port(80), accept.clone()])]),
        with(
            TableChange::new(filter),
            &[(BuiltIn::Output, &["SIGNPOST-B", "SIGNPOST-A"])],
            &[],
        ),
    ] {
        tables.commit(&[step])?;
        for rule in ["-A SIGNPOST-A -j ACCEPT", "-A OUTPUT -j SIGNPOST-A"] {
            let now = counted(rule)?;
            ensure!(now == before, "{rule} forgot packets: {now} of {before}");
        }
    }
    Ok(())
}

/// If the kernel rejects a change, nothing has changed, and the change is not retried.
pub(crate) fn what_the_kernel_refuses_changes_nothing(ground: &Ground) -> Result<()> {
    let filter = TableName::Filter;
    restore(ground, &rules_of_others(ground.family))?;
    let before = save(ground)?;
    let mut tables = ground.open()?;
    let circle = [
        ("SIGNPOST-A", &[jump("SIGNPOST-B")] as &[Rule]),
        ("SIGNPOST-B", &[jump("SIGNPOST-A")]),
    ];
    let misplaced = [("SIGNPOST-A", &[Rule::always(Target::Masquerade)] as &[Rule])];
    for wrong in [&circle as &[(&str, &[Rule])], &misplaced] {
        let step = chains(filter, wrong);
        let step = with(step, &[(BuiltIn::Input, &["SIGNPOST-A"])], &[]);
        let outcome = tables.commit(&[step]);
        let error = outcome.err().context("the kernel took what cannot be")?;
        let text = chain(&error);
        ensure!(error.fault == Fault::Refused && error.done == 0, "{text}");
        ensure!(save(ground)? == before, "{text}");
    }
    Ok(())
}

/// Another process continuously adds rules, as CNI plugins and Docker do, while Signpost changes
/// its own.
pub(crate) fn two_writers_lose_nothing(ground: &Ground) -> Result<()> {
    let nat = TableName::Nat;
    ground.iptables(nat, "-N OTHERS")?;
    let enough = tempfile::tempdir()?;
    let enough = enough.path().join("enough");
    let script = format!(
        "set -e; i=0; echo begun; while ! [ -e {} ]; do {} -w -t nat -A OTHERS -m mark --mark $i -j \
         RETURN; i=$((i + 1)); done; echo $i",
        enough.display(),
        ground.program("")
    );
    let mut other = ground.namespace.command("sh");
    other.args(["-c", &script]);
    other.env("XTABLES_LOCKFILE", ground.lock());
    let mut other = Process::start("another writer", other)?;
    other.wait_for_line("begun", PROMPTLY)?;
    let mut tables = ground.open()?;
    let end = Instant::now() + patience(Duration::from_secs(120));
    let mut changes = 0;
    while changes < CHANGES || ground.listed(nat, "OTHERS")?.len() < RULES {
        for _ in 0..20 {
            let name = format!("SIGNPOST-{changes}");
            tables.commit(&[chains(nat, &[(&name, &ports(&[80]))])])?;
            changes += 1;
        }
        ensure!(Instant::now() < end, "the other writer does not get on");
    }
    std::fs::write(enough, "")?;
    let lines = other.finish(PROMPTLY)?;
    let added: usize = lines.last().context("it counts")?.parse()?;
    let others = ground.listed(nat, "OTHERS")?;
    for number in 0..added {
        let rule = format!("-m mark --mark {number:#x} -j RETURN");
        ensure!(others.get(number) == Some(&rule), "{rule} is lost");
    }
    ensure!(others.len() == added, "{} of {added} rules", others.len());
    let left = tables.observe(nat)?.chains.len();
    ensure!(left == changes, "of {changes} chains {left} are left");
    Ok(())
}

/// Failure story T37 (k/k#105742, vpc-cni#2948): another process holds the lock. The wait is
/// limited, and the error names the holder; after the release, the change succeeds at once.
pub(crate) fn a_held_lock_is_not_waited_for_without_end(ground: &Ground) -> Result<()> {
    let nat = TableName::Nat;
    let wait = Duration::from_millis(300);
    let mut hasty = ground.open_with(wait)?;
    let mut patient = ground.open_with(patience(Duration::from_secs(60)))?;
    let step = [chains(nat, &[("SIGNPOST-A", &[])])];
    hasty.commit(&[chains(nat, &[("SIGNPOST-B", &[])])])?;
    ensure!(hasty.waited() < wait, "no process held the lock");

    let mut holder = ground.namespace.command("flock");
    holder.arg("--no-fork").arg(ground.lock());
    // Holds the lock until its input ends.
    holder.args(["sh", "-c", "echo held; read line || true"]);
    let mut holder = Process::start("the holder of the lock", holder)?;
    holder.wait_for_line("held", PROMPTLY)?;
    let outcome = hasty.commit(&step);
    let error = outcome.err().context("the lock was not asked for")?;
    let text = chain(&error);
    ensure!(error.fault == Fault::Passing && error.done == 0, "{text}");
    let named = format!("which sh (process {}) holds", holder.id());
    ensure!(
        text.contains(&named) && text.contains(" waiting for the lock "),
        "{text}"
    );
    let waited = hasty.waited();
    // The lock is held until this has ended. With the default patience, the wait would take five
    // seconds.
    let bounds = wait..patience(Duration::from_secs(4));
    ensure!(bounds.contains(&waited), "waited {waited:?}");

    let late = std::thread::scope(|scope| -> Result<Duration> {
        let commit = scope.spawn(|| patient.commit(&step).map(|_| Instant::now()));
        // While the other one waits.
        hasty.commit(&step).err().context("the lock was released")?;
        let released = Instant::now();
        holder.finish(PROMPTLY)?;
        let committed = commit.join().map_err(|_| anyhow!("it panicked"))??;
        Ok(committed.saturating_duration_since(released))
    })?;
    ensure!(late < patience(Duration::from_secs(5)), "{late:?} late");
    let held = hasty.observe(nat)?;
    ensure!(held.chains.contains_key("SIGNPOST-A"), "{held:?}");
    Ok(())
}

/// Reading a table that does not exist must not create it: from then on every packet would traverse
/// it.
pub(crate) fn a_look_makes_no_table(ground: &Ground) -> Result<()> {
    let names = || -> Result<String> {
        let family = match ground.family {
            Family::Ipv4 => "ip",
            Family::Ipv6 => "ip6",
        };
        let file = format!("/proc/thread-self/net/{family}_tables_names");
        let names = ground.namespace.enter(|| std::fs::read_to_string(file))?;
        Ok(names?)
    };
    let mut tables = ground.open()?;
    for table in TableName::ALL {
        ensure!(tables.observe(table)? == OwnRules::default());
    }
    ensure!(
        !tables.observe_drift()?,
        "there was nothing, and still is not"
    );
    tables.commit(&[TableChange::new(TableName::Nat)])?;
    ensure!(names()?.is_empty(), "there is a table: {}", names()?);
    ground.iptables(TableName::Filter, "-A INPUT -j ACCEPT")?;
    ensure!(
        tables.observe_drift()?,
        "another program's table does not show"
    );
    ensure!(names()?.trim() == "filter", "{}", names()?);
    Ok(())
}
