//! The tables that everybody replaces whole, with somebody else at work between our looks and our
//! changes.

use anyhow::{Context, Result, ensure};
use tests::network::{Namespace, Process};
use xtables::{BuiltIn, Fault, TableChange, TableName, Tables, Variant};

use crate::ground::{Ground, PREFIX, chains};
use crate::legacy::{PROMPTLY, chain, jump, ports, with};

/// A way in, a way on, and a chain that changes often.
fn tree(table: TableName, port: u16) -> TableChange {
    let top = [jump("SIGNPOST-LEAF")];
    let steps = chains(
        table,
        &[("SIGNPOST-TOP", &top), ("SIGNPOST-LEAF", &ports(&[port]))],
    );
    with(steps, &[(BuiltIn::Prerouting, &["SIGNPOST-TOP"])], &[])
}

/// Another program holds the lock and flushes the table while we wait for it. Our change of a chain
/// further down succeeded, and hid for a minute that no packet came there any more.
pub(crate) fn damage_before_a_change_is_not_hidden_by_it(ground: &Ground) -> Result<()> {
    let nat = TableName::Nat;
    let mut tables = ground.open()?;
    tables.observe(nat)?;
    tables.commit(&[tree(nat, 80)])?;
    ensure!(!tables.observe_drift()?, "our own change counts as drift");
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

    // What others do with what is theirs costs no change of ours, but a look afterwards: a rule of
    // ours that was replaced by another of the same length shows in no other way.
    ground.iptables(nat, "-A PREROUTING -p udp -j ACCEPT")?;
    tables.commit(&leaf(82))?;
    ensure!(tables.observe_drift()?, "what somebody did is hidden");
    tables.commit(&leaf(83))?;
    ensure!(tables.observe_drift()?, "another change hides it");
    tables.observe(nat)?;
    ensure!(!tables.observe_drift()?, "what was read counts as drift");
    tables.commit(&leaf(84))?;
    ensure!(!tables.observe_drift()?, "our own change counts as drift");
    Ok(())
}

/// A rule of somebody else that the kernel looks at in the namespaces of whoever writes the table
/// (`-m owner`: the user namespace; `-m cgroup --path`: that of the cgroups). No table that holds it
/// can be written by us, which is the fault of no Service.
pub(crate) fn a_rule_that_cannot_be_carried_over_is_told(ground: &Ground) -> Result<()> {
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

    // A table without such a rule is as good as any other there.
    let nat = TableName::Nat;
    tables.commit(&[chains(nat, &[("SIGNPOST-A", &ports(&[80]))])])?;
    other.finish(PROMPTLY)?;
    Ok(())
}
