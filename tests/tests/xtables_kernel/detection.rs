//! Detection of the variant that other programs use, and of Signpost's chains in either variant.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::network::{BusyWriter, Namespace};
use xtables::{
    BuiltIn, Choice, Family, Fault, Found, OwnChains, Rule, Split, TableChange, TableName, Tables,
    Target, Variant, VariantReason, observe_variants,
};

use crate::ground::PREFIX;

/// The number of Signpost's chains: a dump of them takes many datagrams.
const CHAINS: u32 = 20_000;

fn run(namespace: &Namespace, command: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut words = command.split(' ');
    let program = words.next().context("a program")?;
    let mut command_line = namespace.command(program);
    command_line.env("XTABLES_LOCKFILE", folder.path().join("lock"));
    let output = command_line.args(words).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command}: {errors}");
    Ok(())
}

fn observe(namespace: &Namespace) -> Result<Found> {
    Ok(namespace.enter(|| observe_variants(PREFIX))??)
}

/// Failure story T36 (cilium#28260, kube-router#1069): rules of both variants on one machine.
/// Signpost chooses the variant of the other programs, and reports a split with the numbers of
/// rules.
pub(crate) fn the_variant_of_the_others_is_chosen(namespace: &Namespace) -> Result<()> {
    let expect = |what: &str, variant, why, split| -> Result<()> {
        let found = observe(namespace)?;
        let chosen = found.choose();
        let expected = Choice {
            variant,
            why,
            split,
        };
        ensure!(chosen == expected, "after {what}: {chosen:?} of {found:?}");
        Ok(())
    };
    let (nf, legacy) = (Variant::NfTables, Variant::Legacy);
    expect("nothing", nf, VariantReason::Preferred, None)?;
    let names =
        namespace.enter(|| std::fs::read_to_string("/proc/thread-self/net/ip_tables_names"))?;
    ensure!(names?.is_empty(), "to look has made a table");

    run(namespace, "iptables-legacy -t nat -N KUBE-KUBELET-CANARY")?;
    expect("a chain without rules", nf, VariantReason::Preferred, None)?;
    run(
        namespace,
        "iptables-legacy -t nat -A POSTROUTING -j MASQUERADE",
    )?;
    expect("a legacy rule", legacy, VariantReason::MoreRules, None)?;
    run(namespace, "iptables-nft -A INPUT -j ACCEPT")?;
    run(namespace, "ip6tables-nft -A INPUT -j ACCEPT")?;
    let split = |nf_tables, legacy| Some(Split { nf_tables, legacy });
    expect("two of nft", nf, VariantReason::MoreRules, split(2, 1))?;
    run(namespace, "iptables-legacy -t mangle -N KUBE-IPTABLES-HINT")?;
    expect(
        "the legacy hint",
        legacy,
        VariantReason::Kubelet,
        split(2, 1),
    )?;
    run(namespace, "ip6tables-nft -t mangle -N KUBE-KUBELET-CANARY")?;
    expect("two hints", nf, VariantReason::MoreRules, split(2, 1))?;
    run(namespace, "iptables-legacy -t mangle -X")?;
    expect("the nft hint", nf, VariantReason::Kubelet, split(2, 1))
}

/// Signpost's own leftovers in a variant are detected, and do not count as use by another program.
pub(crate) fn signposts_rules_are_distinguished_from_others(namespace: &Namespace) -> Result<()> {
    for variant in [Variant::NfTables, Variant::Legacy] {
        let folder = tempfile::tempdir()?;
        let mut tables = namespace.enter(|| open(variant, folder.path()))??;
        let mut step = TableChange::new(TableName::Nat);
        let rule = Rule::always(Target::Return);
        step.chains.push(("SIGNPOST-A".into(), [rule].into()));
        let entry = Rule::always(Target::Jump("SIGNPOST-A".into()));
        step.entries.push((BuiltIn::Prerouting, vec![entry]));
        tables.commit(&[step])?;
        let found = observe(namespace)?;
        let presence = found.of(variant);
        let only_own = presence.own_chains == OwnChains::Present && presence.rules == 0;
        ensure!(only_own, "{found:?}");
        ensure!(found.choose().why == VariantReason::Preferred, "{found:?}");

        let mut step = TableChange::new(TableName::Nat);
        step.entries.push((BuiltIn::Prerouting, Vec::new()));
        step.removed.push("SIGNPOST-A".into());
        tables.commit(&[step])?;
        let left = observe(namespace)?.of(variant).own_chains;
        ensure!(left == OwnChains::None, "it is still there");
    }
    Ok(())
}

/// While another program continuously changes an unrelated table of nf_tables, no dump of thousands
/// of chains finishes uninterrupted. A restart on such a node treated Signpost's chains as gone,
/// and wrote all of them to the legacy tables as well.
pub(crate) fn signposts_rules_are_found_while_others_never_rest(
    namespace: &Namespace,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut tables = namespace.enter(|| open(Variant::NfTables, folder.path()))??;
    let mut step = TableChange::new(TableName::Nat);
    let rules: Arc<[Rule]> = [Rule::always(Target::Return)].into();
    let chains =
        (0..CHAINS).map(|number| (format!("SIGNPOST-{number}").into(), Arc::clone(&rules)));
    step.chains = chains.collect();
    let entry = Rule::always(Target::Jump("SIGNPOST-0".into()));
    step.entries.push((BuiltIn::Prerouting, vec![entry]));
    tables.commit(&[step])?;

    let others = BusyWriter::start(namespace)?;
    let look = || -> Result<Variant> {
        match namespace.enter(|| observe_variants(PREFIX))? {
            Ok(found) => Ok(found.choose().variant),
            Err(error) => {
                ensure!(error.fault == Fault::Passing, "{error:?}");
                let suspected = error.known.suspected();
                ensure!(suspected == [Variant::NfTables], "{suspected:?}");
                let variant = error.known.choose_without_counting();
                variant.context("it is known where they are")
            }
        }
    };
    for _ in 0..3 {
        ensure!(look()? == Variant::NfTables);
    }
    others.finish()
}

fn open(variant: Variant, folder: &Path) -> Result<Tables, xtables::OpenError> {
    let lock = folder.join("lock");
    let patience = Duration::from_secs(10);
    Tables::open(variant, Family::Ipv6, PREFIX, &lock, patience)
}
