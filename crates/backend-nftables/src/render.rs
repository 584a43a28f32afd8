//! What the kernel should hold, from what the node should do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use backend::Rendered;
use dataplane::{
    Claims, Config, Dataplane, Family, Frontend, FrontendKey, FrontendKind, PersistentMap, Target,
    TrafficPolicy,
};
use netlink::nf_tables::{Bytes, ElementData, Verdict};

use crate::chains::{self, BalancingChain, Job, REFUSE};
use crate::layout::{self, Keyed, LOCAL_SLOTS, SetName};
use crate::slots::arrange;
use crate::table::{ChainWithRules, SetWithElements, Table};

/// Renders one family of `desired`. Where `from` is a dataplane's rules, only what differs from that
/// dataplane is looked at; in any case endpoints keep the slots they have in `from.rules`.
pub(crate) fn render(family: Family, desired: &Dataplane, from: &Rendered<Table>) -> Table {
    let incremental = !from.dataplane.services().is_empty();
    let mut table = if incremental {
        from.rules.clone()
    } else {
        Table::default()
    };
    table.exists = true;
    for name in SetName::ALL {
        let at = layout::name(name.as_str());
        table.sets.entry(at).or_insert_with(|| SetWithElements {
            set: Arc::new(name.set(family)),
            elements: PersistentMap::default(),
        });
    }
    let before = if incremental {
        from.dataplane.clone()
    } else {
        Dataplane::default()
    };
    let mut wanted_chains = kept_chains(&from.rules);
    render_memberships(family, desired, &before, &mut table);
    for difference in before.frontends().differences(desired.frontends()) {
        if difference.key.family() != family {
            continue;
        }
        let winner = |claims: &Claims<Arc<Frontend>>| Arc::clone(claims.winner().1);
        let after = difference.after.map(winner);
        if difference.before.map(winner) != after {
            place(
                family,
                difference.key,
                after.as_deref(),
                &from.rules,
                &mut table,
                &mut wanted_chains,
            );
        }
    }
    table.chains = render_chains(family, desired.config(), wanted_chains, &from.rules);
    table
}

/// The set of a frontend that no mechanism here restricts to its source ranges yet.
pub(crate) fn is_withheld(frontend: &Frontend) -> bool {
    !frontend.source_ranges.is_empty()
}

/// The balancing chains that are there: they stay.
fn kept_chains(rules: &Table) -> BTreeSet<BalancingChain> {
    rules
        .chains
        .keys()
        .filter_map(|name| BalancingChain::parse(name))
        .flat_map(BalancingChain::closure)
        .collect()
}

/// Takes each chain from `before` where it is the same there, so that it is shared.
fn render_chains(
    family: Family,
    config: &Config,
    balancing: BTreeSet<BalancingChain>,
    before: &Table,
) -> BTreeMap<Arc<str>, Arc<ChainWithRules>> {
    let balancing = balancing
        .into_iter()
        .map(|chain| chain.render(family, config));
    chains::fixed(family, config)
        .into_iter()
        .chain(balancing)
        .map(|chain| {
            let name = Arc::clone(&chain.chain.name);
            let shared = before.chains.get(&name).filter(|old| ***old == chain);
            let chain = shared.cloned().unwrap_or_else(|| Arc::new(chain));
            (name, chain)
        })
        .collect()
}

/// The sets that are not about frontends.
fn render_memberships(family: Family, desired: &Dataplane, before: &Dataplane, table: &mut Table) {
    for difference in before.cluster_ips().differences(desired.cluster_ips()) {
        if Family::of(*difference.key) == family {
            let key = layout::address(*difference.key);
            member(table, SetName::ClusterIps, key, difference.after.is_some());
        }
    }
    for difference in before.hairpins().differences(desired.hairpins()) {
        if Family::of(difference.key.address) == family {
            let key = layout::hairpin(difference.key);
            member(table, SetName::Hairpins, key, difference.after.is_some());
        }
    }
    // Loopback never accepts node ports: replies to a redirected packet would be martians.
    let addresses = |dataplane: &Dataplane| -> BTreeSet<IpAddr> {
        let list = dataplane.config().node_ports.of(family);
        let list = list.into_iter().flatten();
        list.copied().filter(|a| !a.is_loopback()).collect()
    };
    let (old, new) = (addresses(before), addresses(desired));
    for address in old.symmetric_difference(&new) {
        let key = layout::address(*address);
        member(
            table,
            SetName::NodePortAddresses,
            key,
            new.contains(address),
        );
    }
}

fn member(table: &mut Table, set: SetName, key: Bytes, is_member: bool) {
    if is_member {
        table.set_element(set, key, ElementData::None);
    } else {
        table.remove_element(set, &key);
    }
}

/// Puts the elements of one frontend in the place of those it had.
fn place(
    family: Family,
    key: &FrontendKey,
    frontend: Option<&Frontend>,
    near: &Table,
    table: &mut Table,
    chains: &mut BTreeSet<BalancingChain>,
) {
    let (keyed, bytes) = (Keyed::of(key), layout::frontend(key));
    let plan = frontend.map_or_else(Plan::default, |frontend| Plan::of(keyed, frontend));
    for (set, verdict) in [
        (keyed.services(), plan.service),
        (keyed.short_circuits(), plan.short_circuit),
        (keyed.locals(), plan.local),
        (keyed.refusals(), plan.refusal),
    ] {
        match verdict {
            Some(verdict) => table.set_element(set, bytes, ElementData::Verdict(verdict)),
            None => drop(table.remove_element(set, &bytes)),
        }
    }
    chains.extend(plan.chains.into_iter().flat_map(BalancingChain::closure));
    for (first, targets) in [(0, plan.targets), (LOCAL_SLOTS, plan.local_targets)] {
        let before = near.slots(family, key, first);
        let mut slots = first..;
        for target in arrange(&before, targets) {
            let Some(slot) = slots.next() else { break };
            let value = ElementData::Value(layout::target(&target));
            table.set_element(keyed.endpoints(), layout::slot(bytes, slot), value);
        }
        for slot in slots {
            if !table.remove_element(keyed.endpoints(), &layout::slot(bytes, slot)) {
                break;
            }
        }
    }
}

/// The elements of one frontend, before its endpoints have slots.
#[derive(Default)]
struct Plan<'a> {
    service: Option<Verdict>,
    short_circuit: Option<Verdict>,
    local: Option<Verdict>,
    refusal: Option<Verdict>,
    chains: Vec<BalancingChain>,
    targets: &'a [Target],
    local_targets: &'a [Target],
}

impl<'a> Plan<'a> {
    fn of(keyed: Keyed, frontend: &'a Frontend) -> Plan<'a> {
        let refuse = || {
            Some(if frontend.has_endpoints {
                Verdict::Drop
            } else {
                Verdict::Goto(layout::name(REFUSE))
            })
        };
        // An address that refuses must not be looked up as a node port of someone else's next.
        let ends_here = (keyed == Keyed::Address).then_some(Verdict::Accept);
        if is_withheld(frontend) {
            return Plan {
                service: ends_here,
                refusal: Some(Verdict::Drop),
                ..Plan::default()
            };
        }
        let mut chains = Vec::new();
        let mut goto = |job, targets: &[Target]| {
            let count = u32::try_from(targets.len()).unwrap_or(u32::MAX);
            (count > 0).then(|| {
                let chain = BalancingChain { keyed, job, count };
                chains.push(chain);
                Verdict::Goto(chain.name())
            })
        };
        let plan = match (frontend.kind, frontend.policy) {
            (FrontendKind::ClusterIp, policy) => {
                let targets = match policy {
                    TrafficPolicy::Cluster => &*frontend.cluster,
                    TrafficPolicy::Local => &*frontend.local,
                };
                Plan {
                    service: goto(Job::Cluster, targets),
                    targets,
                    ..Plan::default()
                }
            }
            (_, TrafficPolicy::Cluster) => Plan {
                service: goto(Job::External, &frontend.cluster),
                targets: &frontend.cluster,
                ..Plan::default()
            },
            (_, TrafficPolicy::Local) => {
                let short_circuit = goto(Job::Balance, &frontend.cluster);
                let local = goto(Job::Local, &frontend.local);
                let any = short_circuit.is_some() || local.is_some();
                let chain = format!("{}external-local", keyed.prefix());
                Plan {
                    service: any.then(|| Verdict::Goto(chain.into())),
                    short_circuit,
                    local,
                    targets: &frontend.cluster,
                    local_targets: &frontend.local,
                    ..Plan::default()
                }
            }
        };
        let nothing_for_strangers = match (frontend.is_external(), frontend.policy) {
            (true, TrafficPolicy::Local) => plan.local.is_none(),
            _ => plan.service.is_none(),
        };
        Plan {
            service: plan.service.or(ends_here),
            refusal: nothing_for_strangers.then(refuse).flatten(),
            chains,
            ..plan
        }
    }
}
