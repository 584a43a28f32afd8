//! Failure story T456: a tenant's Services ask for thousands of affinity timeouts.

use std::sync::Arc;
use std::time::Duration;

use backend::{Backend, Change as _, Rendered};
use dataplane::{Dataplane, Family, Mode, compile};
use netlink::nf_tables::{Bytes, ElementData, Operation, Verdict};
use nftables_model::{AffinityTimeout, name};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::chains::affinity::AffinityGroup;
use crate::diff::Step;
use crate::kernel::Ipvs;
use crate::layout::SetName;
use crate::rules::Rules;

/// A dataplane with one Service for each of `timeouts`, in seconds, all in one namespace.
fn with_timeouts(timeouts: impl IntoIterator<Item = u16>) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().mode(Mode::Ipvs).build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for seconds in timeouts {
        let [high, low] = seconds.to_be_bytes();
        let service = mk_service(&format!("shop/{seconds}"))
            .cluster_ip(&format!("10.96.{high}.{low}"))
            .port("", 80)
            .client_ip_affinity(Duration::from_secs(seconds.into()));
        let endpoints = mk_endpoints().tcp("").ready("10.0.2.1:80", "node-2");
        let rules = compile(&service.build(), &endpoints.build(), &node, &config);
        dataplane.set(rules.into());
    }
    dataplane
}

fn chains(rules: &Rules, prefix: &str) -> usize {
    let chains = rules.table.chains.keys();
    let of_groups = chains.filter(|chain| chain.contains("-clients-"));
    of_groups.filter(|chain| chain.starts_with(prefix)).count()
}

#[test]
fn t456_thousands_of_timeouts_have_few_chains_and_another_one_has_none() {
    let backend = Ipvs::detached(Family::Ipv4);
    // Eight thousand.
    let timeouts = || (1..=60).chain((61..=u16::MAX).step_by(3).filter(|n| n % 11 < 4));
    let dataplane = with_timeouts(timeouts());
    assert!(dataplane.services().len() > 5_000);
    let rules = backend.render(&dataplane, &Rendered::default());
    let groups = rules.affinity_groups.len();
    assert!(groups <= AffinityTimeout::COUNT, "{groups} groups");
    let each = ["return-", "learn-"].map(|prefix| chains(&rules, prefix));
    assert_eq!(each, [groups; 2]);

    // Another Service costs what it costs beside one other with its timeout.
    let before = Rendered { dataplane, rules };
    let [another, same] = [50_000, 50_400];
    assert!(!timeouts().any(|seconds| seconds == another));
    let after = backend.render(&with_timeouts(timeouts().chain([another])), &before);
    assert!(Arc::ptr_eq(&before.rules.table.chains, &after.table.chains));
    let written = backend.diff(&before.rules, &after).size();
    let dataplane = with_timeouts([same]);
    let rules = backend.render(&dataplane, &Rendered::default());
    let alone = Rendered { dataplane, rules };
    let after = backend.render(&with_timeouts([same, another]), &alone);
    assert_eq!(written, backend.diff(&alone.rules, &after).size());
}

/// An older version had chains for each timeout. What packets have recorded is in the same maps.
#[test]
fn t456_a_timeout_of_an_older_version_becomes_another_one_in_the_same_maps() {
    let backend = Ipvs::detached(Family::Ipv4);
    let rendered = backend.render(&with_timeouts([61]), &Rendered::default());
    let affinities = SetName::Affinities.as_str();
    let [was, is] = [61, 63].map(|seconds| {
        let any = AffinityTimeout::covering(Duration::from_secs(60));
        let of_a_minute = AffinityGroup::of("shop", any).number();
        AffinityGroup::parse(of_a_minute - 60 + seconds).expect("it is a group")
    });
    let mut found = rendered.clone();
    let sets = &mut found.table.sets;
    let held = sets[affinities].elements.clone();
    let (mark, _) = held.iter().next().expect("the Service has affinity");
    let value = |group: AffinityGroup| mark.clone().with(&group.number().to_ne_bytes());
    assert_eq!(held.get(mark), Some(&ElementData::Value(value(is))));
    let mut put = |set: SetName, key: &Bytes, data| {
        let set = sets.get_mut(set.as_str()).expect("the table has it");
        match data {
            Some(data) => drop(set.elements.insert(key.clone(), data)),
            None => drop(set.elements.remove(key)),
        }
    };
    let old = ElementData::Value(value(was));
    put(SetName::Affinities, mark, Some(old));
    for (set, chain) in [
        (SetName::ReturnChains, was.return_chain()),
        (SetName::LearningChains, was.learn_chain()),
    ] {
        let key = |group: AffinityGroup| Bytes::new().with(&group.number().to_ne_bytes());
        let lead = ElementData::Verdict(Verdict::Goto(name(&chain)));
        put(set, &key(was), Some(lead));
        put(set, &key(is), None);
    }
    let all = Arc::make_mut(&mut found.table.chains);
    for chain in is.chains(Family::Ipv4) {
        all.remove(&chain.chain.name);
    }
    let old = was
        .chains(Family::Ipv4)
        .map(|chain| (Arc::clone(&chain.chain.name), Arc::new(chain)));
    all.extend(old);

    let from = Rendered {
        dataplane: Dataplane::default(),
        rules: found.clone(),
    };
    let desired = backend.render(&with_timeouts([61]), &from);
    for step in backend.diff(&found, &desired).steps() {
        let Step::Table(transaction) = step else {
            panic!("{step:?}");
        };
        let keeps_maps = transaction
            .operations
            .iter()
            .all(|operation| match operation {
                Operation::AddElements { set, .. } | Operation::DeleteElements { set, .. } => {
                    !set.name.contains("clients")
                }
                Operation::AddChain(_) | Operation::AddRule { .. } => true,
                Operation::FlushChain(chain) | Operation::DeleteChain(chain) => {
                    chain.contains("-61-")
                }
                _ => false,
            });
        assert!(keeps_maps, "{transaction}");
        found
            .table
            .replay(transaction)
            .expect("the kernel takes it");
    }
    assert_eq!(found, desired);
    assert_eq!(
        [
            desired.affinity_groups.get(&was),
            desired.affinity_groups.get(&is)
        ],
        [None, Some(&1)]
    );
    assert_eq!(was.clients(), is.clients());
}
