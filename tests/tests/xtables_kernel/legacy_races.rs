//! Races in the legacy tables, which every writer replaces as a whole: another program writes
//! between Signpost's checks and changes.

use anyhow::{Context, Result, ensure};
use tests::network::{Namespace, Process};
use xtables::{BuiltIn, Fault, TableChange, TableName, Tables, Variant};

use crate::ground::{Ground, PREFIX, chains};
use crate::legacy::{PROMPTLY, chain, jump, ports, with};

/// Returns an entry rule, an intermediate chain, and a chain that changes often.
fn tree(table: TableName, port: u16) -> TableChange {
    let top = [jump("SIGNPOST-LEAF")];
    let steps = chains(
        table,
        &[("SIGNPOST-TOP", &top), ("SIGNPOST-LEAF", &ports(&[port]))],
    );
    with(steps, &[(BuiltIn::Prerouting, &["SIGNPOST-TOP"])], &[])
}

/// Another program holds the lock and flushes the table while Signpost waits for it. The change of
/// a chain further down used to succeed, and hid for a minute that packets no longer reached the
/// chain.
pub(crate) fn damage_before_a_change_is_not_hidden_by_it(ground: &Ground) -> Result<()> {
    let nat = TableName::Nat;
    let mut tables = ground.open()?;
    tables.observe(nat)?;
    tables.commit(&[tree(nat, 80)])?;
    ensure!(
        !tables.observe_drift()?,
        "Signpost's own change counts as drift"
    );
    let leaf = |port| [chains(nat, &[("SIGNPOST-LEAF", &ports(&[port]))])];

    for damage in ["-F PREROUTING", "-F SIGNPOST-TOP", "-F"] {
        ground.iptables(nat, damage)?;
        let damaged = ground.save(nat)?;
        let outcome = tables.commit(&leaf(81));
        let error = outcome
            .err()
            .with_context(|| format!("{damage} is hidden"))?;
        let text = chain(&error);
        ensure!(error.fault == Fault::Changed && error.done == 0, "{text}");
        ensure!(
            text.contains("chains or rules of Signpost are missing"),
            "{text}"
        );
        ensure!(
            ground.save(nat)? == damaged,
            "{damage}: something was written"
        );
        tables.observe(nat)?;
        tables.commit(&[tree(nat, 80)])?;
        ensure!(!tables.observe_drift()?, "what was mended counts as drift");
    }

    // A change by another program to its own rules costs Signpost no failed change, but requires a
    // check afterwards: a replaced rule of the same length would show in no other way.
    ground.iptables(nat, "-A PREROUTING -p udp -j ACCEPT")?;
    tables.commit(&leaf(82))?;
    ensure!(
        tables.observe_drift()?,
        "the change of another program is hidden"
    );
    tables.commit(&leaf(83))?;
    ensure!(tables.observe_drift()?, "another change hides it");
    tables.observe(nat)?;
    ensure!(!tables.observe_drift()?, "what was read counts as drift");
    tables.commit(&leaf(84))?;
    ensure!(
        !tables.observe_drift()?,
        "Signpost's own change counts as drift"
    );
    Ok(())
}

/// Another program's rule that the kernel validates in the namespaces of the process that writes
/// the table (`-m owner`: the user namespace; `-m cgroup --path`: the cgroup namespace). Signpost
/// cannot write a table that contains it, which no Service has caused.
pub(crate) fn a_rule_that_cannot_be_carried_over_is_reported(ground: &Ground) -> Result<()> {
    let filter = TableName::Filter;
    let program = ground.program("");
    let script = format!(
        "set -e; {program} -A OUTPUT -m owner --uid-owner 0 -j ACCEPT; echo ready; read line || true"
    );
    let mut other = std::process::Command::new("unshare");
    other.args(["--user", "--map-root-user", "--net", "sh", "-c", &script]);
    other.env("XTABLES_LOCKFILE", ground.lock());
    let mut other = Process::start("the owner of another namespace", other)?;
    other.wait_for_line("ready", PROMPTLY)?;
    let namespace = Namespace::of_process(other.id());
    let lock = ground.lock();
    let open = || Tables::open(Variant::Legacy, ground.family, PREFIX, &lock, PROMPTLY);
    let mut tables = namespace.enter(open)??;
    tables.observe(filter)?;
    let outcome = tables.commit(&[chains(filter, &[("SIGNPOST-A", &ports(&[80]))])]);
    let error = outcome.err().context("the kernel takes it")?;
    let text = chain(&error);
    ensure!(error.fault == Fault::Impossible, "{text}");
    let said = "a rule of another program cannot be written back";
    ensure!(text.contains(said), "{text}");

    // A table without such a rule can be written as usual.
    let nat = TableName::Nat;
    tables.commit(&[chains(nat, &[("SIGNPOST-A", &ports(&[80]))])])?;
    other.finish(PROMPTLY)?;
    Ok(())
}
