//! Changes by other programs to Signpost's rules are found and repaired.

use anyhow::{Context, Result, ensure};
use backend::{Backend, Change as _, Recovery, Rendered};
use backend_iptables::{Iptables, Rules};
use dataplane::{Dataplane, Family};
use reconciler::{FamilyReconciler, Outcome, Reason, SystemClock};
use tests::programmed::program;
use xtables::Variant;

use crate::ground::Ground;

/// Returns a Service for each number, at consecutive addresses, with one endpoint.
pub(crate) fn services(numbers: std::ops::RangeInclusive<u8>, port: u16) -> Dataplane {
    let mut dataplane = Dataplane::default();
    for number in numbers {
        let service = testkit::mk_service(&format!("shop/service-{number}"))
            .cluster_ip(&format!("10.96.0.{number}"))
            .cluster_ip(&format!("fd00:10:96::{number}"))
            .port("http", 80)
            .build();
        let endpoints = testkit::mk_endpoints()
            .tcp("http")
            .ready(&format!("10.0.1.5:{port}"), "node-1")
            .ready(&format!("[fd00:10:0:1::5]:{port}"), "node-1")
            .build();
        let rules = dataplane::compile(&service, &endpoints, dataplane.node(), dataplane.config());
        dataplane.set(rules.into());
    }
    dataplane
}

/// Returns the chain that forwards connections to the endpoints of a Service, from the listing of
/// iptables.
fn chain_of(ground: &Ground, family: Family, service: &str) -> Result<String> {
    let saved = ground.save(family)?;
    let comment = format!("\"{service}:http cluster IP\"");
    let rule = saved.lines().find(|line| line.contains(&comment));
    let (_, chain) = rule
        .and_then(|rule| rule.rsplit_once(' '))
        .with_context(|| format!("{service} is not there:\n{saved}"))?;
    Ok(chain.to_owned())
}

/// Failure story T20 (kubernetes#121362, calico#10538): another program has deleted a chain to
/// which the next change refers, without a notification. The reconciler repairs it in the same
/// round, and a bare commit reports that a check is needed.
pub(crate) fn a_change_to_what_was_deleted(ground: &Ground) -> Result<()> {
    let before = services(1..=3, 8080);
    // The new Service is in the same leaf of the address tree, which is therefore written again.
    let after = services(1..=4, 8080);
    for (mut backend, observed) in ground.program(&before)? {
        let family = backend.family();
        let delete = || -> Result<()> {
            let chain = chain_of(ground, family, "shop/service-2")?;
            let leading = leading_to(ground, family, &chain)?;
            ground.iptables(family, &format!("-t nat -F {leading}"))?;
            ground.iptables(family, &format!("-t nat -F {chain}"))?;
            ground.iptables(family, &format!("-t nat -X {chain}"))?;
            Ok(())
        };
        delete()?;
        let expected = backend.render(&after, &observed);
        let change = backend.diff(&observed.rules, &expected);
        let Err(error) = backend.commit(change) else {
            anyhow::bail!("the kernel took a change to a chain that is not there");
        };
        ensure!(error.recovery == Recovery::Observe, "{error:?}");

        let mut domain = FamilyReconciler::new(backend);
        let sync = domain.sync(&before, Reason::Startup, &SystemClock);
        ensure!(sync.succeeded(), "{sync}");
        delete()?;
        let sync = domain.sync(&after, Reason::Changed, &SystemClock);
        ensure!(sync.outcome == Outcome::Committed, "{sync}");
        expect_held(ground, family, &after)?;
    }
    Ok(())
}

/// Returns the chain with the rule that leads to `chain`.
fn leading_to(ground: &Ground, family: Family, chain: &str) -> Result<String> {
    let saved = ground.save(family)?;
    let end = format!(" -g {chain}");
    let rule = saved.lines().find(|line| line.ends_with(&end));
    let from = rule.and_then(|rule| rule.split_once("-A ")?.1.split(' ').next());
    Ok(from.context("something leads there")?.to_owned())
}

/// Asserts that a new process reads the rules of `dataplane`.
fn expect_held(ground: &Ground, family: Family, dataplane: &Dataplane) -> Result<()> {
    let mut backends = ground.open()?.into_iter();
    let mut backend = backends
        .find(|b| b.family() == family)
        .context("both are there")?;
    let expected = backend.render(dataplane, &Rendered::default());
    let observed = backend.observe()?;
    let change = backend.diff(&observed, &expected);
    ensure!(change.size().is_empty(), "the kernel lacks:\n{change}");
    Ok(())
}

/// Failure stories T30 and T32: rke2#10469, kubernetes#129128, kubernetes#133767.
pub(crate) fn whatever_was_damaged(ground: &Ground) -> Result<()> {
    let dataplane = services(1..=30, 8080);
    for (mut backend, _) in ground.program(&dataplane)? {
        let family = backend.family();
        // A change of the other family may also have affected this one.
        let found = backend.observe()?;
        let mut observed = repaired(&mut backend, &dataplane, found)?;
        let chain = chain_of(ground, family, "shop/service-2")?;
        let leading = leading_to(ground, family, &chain)?;
        let elsewhere = match family {
            Family::Ipv4 => "203.0.113.99:1",
            Family::Ipv6 => "[2001:db8:113::99]:1",
        };
        let damages = [
            "-t nat -F".to_owned(),
            "-t filter -F".to_owned(),
            "-t nat -D PREROUTING 1".to_owned(),
            "-t filter -D FORWARD 1".to_owned(),
            "-t nat -I SIGNPOST-SERVICES -j RETURN".to_owned(),
            "-t nat -A SIGNPOST-SERVICES -m limit --limit 5/sec -j ACCEPT".to_owned(),
            format!("-t nat -D {leading} 2"),
            format!("-t nat -F {chain}"),
            format!("-t nat -R {chain} 1 -p tcp -j DNAT --to-destination {elsewhere}"),
            "-t filter -F SIGNPOST-OUTPUT".to_owned(),
            "-t nat -N SIGNPOST-STRANGE".to_owned(),
            "-t filter -I OUTPUT -j SIGNPOST-FORWARD".to_owned(),
            "-t nat -I OUTPUT -p tcp -j SIGNPOST-SERVICES".to_owned(),
        ];
        let mut does: Vec<String> = damages.map(|damage| ground.line(family, &damage)).into();
        if ground.variant == Variant::NfTables {
            does.push("nft flush ruleset".to_owned());
        }
        for damage in &does {
            ground.shell(damage)?;
            let found = backend.observe()?;
            ensure!(found != observed.rules, "the damage did no harm: {damage}");
            observed = repaired(&mut backend, &dataplane, found)
                .with_context(|| format!("after {damage}"))?;
            let held = backend.observe()?;
            ensure!(held == observed.rules, "not repaired: {damage}\n{held}");
        }
    }
    Ok(())
}

fn repaired(
    backend: &mut Iptables,
    dataplane: &Dataplane,
    found: Rules,
) -> Result<Rendered<Rules>> {
    let observed = Rendered {
        dataplane: Dataplane::default(),
        rules: found,
    };
    program(backend, dataplane, &observed)
}
