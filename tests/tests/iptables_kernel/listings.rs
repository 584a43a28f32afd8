//! Signpost's rules in the kernel, as read by Signpost and by iptables.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use backend::{Backend, Change as _, Rendered};
use backend_iptables::{Iptables, PREFIX, Rules};
use dataplane::{Dataplane, Family, FrontendKey, Target};
use testkit::laws::Subject;
use tests::kernels::every_law_holds;
use tests::programmed::{generated_clusters, program};

use crate::ground::Ground;

/// The number of generated clusters programmed one after another in one kernel.
const CLUSTERS: usize = 60;
/// The number of generated histories, each in a fresh kernel.
const HISTORIES: usize = 6;

/// Fresh kernels for the laws: each is a separate network namespace.
struct Kernels<'a> {
    ground: &'a Ground,
    family: Family,
}

impl Subject for Kernels<'_> {
    type Backend = Iptables;
    type Canonical = Rules;

    fn fresh(&self) -> Iptables {
        let backends = self.ground.open_elsewhere().expect("tables");
        let expected = |backend: &Iptables| backend.family() == self.family;
        backends.into_iter().find(expected).expect("both families")
    }

    fn canonical(&self, rules: &Rules) -> Rules {
        rules.clone()
    }

    fn targets(&self, rules: &Rules, key: &FrontendKey) -> BTreeSet<Target> {
        rules.targets(key)
    }
}

pub(crate) fn every_law_of_backends_holds(ground: &Ground) -> Result<()> {
    every_law_holds(|family| Kernels { ground, family }, HISTORIES)
}

/// The chains of one table by name, with their rules in order.
type Chains = BTreeMap<String, Vec<String>>;

/// Programs cluster after cluster in one kernel. Each time, a new process must read the same rules
/// and have nothing to write.
pub(crate) fn iptables_lists_what_was_rendered(ground: &Ground) -> Result<()> {
    let clusters = generated_clusters(CLUSTERS)?;
    for mut backend in ground.open()? {
        let family = backend.family();
        let mut programmed = Rendered::default();
        for cluster in &clusters {
            programmed = program(&mut backend, &cluster.compile(), &programmed)?;
            let listed = chains_of(&ground.save(family)?)?;
            let rendered = chains_of(&programmed.rules.to_string())?;
            expect_same(&listed, &rendered, family)?;
            let mut other = ground.open()?.into_iter();
            let mut other = other
                .find(|b| b.family() == family)
                .context("there are both")?;
            let observed = Rendered {
                dataplane: Dataplane::default(),
                rules: other.observe()?,
            };
            let expected = other.render(&cluster.compile(), &observed);
            let change = other.diff(&observed.rules, &expected);
            ensure!(change.size().is_empty(), "it would write:\n{change}");
        }
        let _ = backend.commit_removal()?;
        let listed = chains_of(&ground.save(family)?)?;
        ensure!(listed.values().all(Chains::is_empty), "left is {listed:#?}");
    }
    Ok(())
}

/// Parses Signpost's chains and the rules that lead to them, by table, from the output of
/// `iptables-save` or of Signpost.
fn chains_of(saved: &str) -> Result<BTreeMap<String, Chains>> {
    let mut tables: BTreeMap<String, Chains> = BTreeMap::new();
    let mut open = None;
    for line in saved.lines() {
        if let Some(table) = line.strip_prefix('*') {
            open = Some(tables.entry(table.to_owned()).or_default());
            continue;
        }
        let Some(chains) = open.as_deref_mut() else {
            continue;
        };
        let line = match line.strip_prefix('[') {
            Some(counted) => counted.split_once("] ").context("counters end")?.1,
            None => line,
        };
        if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split(' ').next().unwrap_or_default();
            if name.starts_with(PREFIX) {
                chains.entry(name.to_owned()).or_default();
            }
        } else if let Some(rule) = line.strip_prefix("-A ")
            && rule.contains(PREFIX)
        {
            let (chain, rule) = rule.split_once(' ').context("a rule says something")?;
            // iptables quotes only texts of more than one word.
            let rule = rule.replace('"', "");
            chains.entry(chain.to_owned()).or_default().push(rule);
        }
    }
    Ok(tables)
}

fn expect_same(
    listed: &BTreeMap<String, Chains>,
    rendered: &BTreeMap<String, Chains>,
    family: Family,
) -> Result<()> {
    for (table, rendered) in rendered {
        let listed = listed.get(table).context("the table is listed")?;
        for (chain, rules) in rendered {
            let spelled: Vec<String> = rules.iter().map(|rule| spelled(rule, family)).collect();
            let found = listed.get(chain);
            ensure!(
                found == Some(&spelled),
                "{family} {table} {chain}: {found:#?}, not {spelled:#?}"
            );
        }
        let strange: Vec<_> = listed
            .keys()
            .filter(|c| !rendered.contains_key(*c))
            .collect();
        ensure!(
            strange.is_empty(),
            "{family} {table}: not rendered: {strange:?}"
        );
    }
    Ok(())
}

/// Returns a rule as iptables prints it, with its defaults written out.
fn spelled(rule: &str, family: Family) -> String {
    let (mask, unreachable) = match family {
        Family::Ipv4 => ("255.255.255.255", "icmp-port-unreachable"),
        Family::Ipv6 => (
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "icmp6-port-unreachable",
        ),
    };
    let rule = rule.replace("--rsource", &format!("--mask {mask} --rsource"));
    match rule.ends_with("-j REJECT") {
        true => format!("{rule} --reject-with {unreachable}"),
        false => rule,
    }
}

/// Manifests can contain names that the API server would reject.
pub(crate) fn whatever_a_name_has(ground: &Ground) -> Result<()> {
    let long = "long".repeat(300);
    let names = [
        "line\nCOMMIT\n*nat",
        "quote\"and\'another",
        "back\\slash",
        "tab\tand\u{7f}",
        "-j DROP",
        "ünï",
        &long,
    ];
    let mut dataplane = Dataplane::default();
    for (number, name) in (1..).zip(names) {
        let service = testkit::mk_service(&format!("{name}/{name}"))
            .cluster_ip(&format!("10.96.0.{number}"))
            .cluster_ip(&format!("fd00:10:96::{number}"))
            .port(name, 80)
            .port("none", 81)
            .build();
        let endpoints = testkit::mk_endpoints()
            .tcp(name)
            .ready(&format!("10.0.1.{number}:8080"), "node-2")
            .ready(&format!("[fd00:10::{number}]:8080"), "node-2")
            .build();
        let rules = dataplane::compile(&service, &endpoints, dataplane.node(), dataplane.config());
        dataplane.set(rules.into());
    }
    for (mut backend, programmed) in ground.program(&dataplane)? {
        let family = backend.family();
        let saved = ground.save(family)?;
        ensure!(saved.contains("line?COMMIT?*nat"), "no comments:\n{saved}");
        ground.expect_restorable(family)?;
        ensure!(
            backend.observe()? == programmed.rules,
            "something else is read"
        );
    }
    Ok(())
}
