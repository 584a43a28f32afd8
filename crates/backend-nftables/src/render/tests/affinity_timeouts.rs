//! Failure story T456: a tenant's Services ask for thousands of affinity timeouts.

use std::sync::Arc;
use std::time::Duration;

use backend::{Backend, Change, Rendered};
use dataplane::{Dataplane, Family, compile};
use netlink::nf_tables::Operation;
use nftables_model::AffinityTimeout;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::chains::ChainId;
use crate::layout::{AffinityMap, SetName};
use crate::{Nftables, Table};

/// A dataplane with one Service for each of `timeouts`, in seconds, reached by cluster IP and node port.
fn with_timeouts(timeouts: impl IntoIterator<Item = u16>) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for seconds in timeouts {
        let [high, low] = seconds.to_be_bytes();
        let service = mk_service(&format!("shop/{seconds}"))
            .cluster_ip(&format!("10.96.{high}.{low}"))
            .port("", 80)
            .node_port(seconds)
            .client_ip_affinity(Duration::from_secs(seconds.into()));
        let endpoints = mk_endpoints().tcp("").ready("10.0.2.1:80", "node-2");
        let rules = compile(&service.build(), &endpoints.build(), &node, &config);
        dataplane.set(rules.into());
    }
    dataplane
}

/// The chains and numbers by which clients are remembered.
fn learning(rules: &Table) -> [usize; 2] {
    let chains = rules.chains.keys();
    let chains = chains.filter(|name| name.contains("learn-") && !name.ends_with("-learn"));
    let numbers = &rules.sets[SetName::LearningChains.as_str()].elements;
    [chains.count(), numbers.len()]
}

#[test]
fn t456_thousands_of_timeouts_have_few_chains_and_another_one_has_none() {
    let backend = Nftables::detached(Family::Ipv4);
    // Eight thousand.
    let timeouts = || (1..=60).chain((61..=u16::MAX).step_by(3).filter(|n| n % 11 < 4));
    let dataplane = with_timeouts(timeouts());
    assert!(dataplane.services().len() > 5_000);
    let rules = backend.render(&dataplane, &Rendered::default());
    // Two for each timeout in the shared map, for cluster IPs and for node ports, and the same for
    // each Service with a map of its own.
    let most = 2 * (AffinityTimeout::COUNT + usize::from(AffinityMap::RESERVED));
    let [chains, numbers] = learning(&rules);
    assert!(chains <= most, "{chains} chains");
    assert_eq!(numbers, chains);

    // Another Service costs what it costs beside ten others with its timeout, which have taken the maps
    // that a namespace may have.
    let before = Rendered { dataplane, rules };
    let (another, same) = (50_000, 50_391..=50_400);
    assert!(!timeouts().any(|seconds| seconds == another));
    let after = backend.render(&with_timeouts(timeouts().chain([another])), &before);
    assert!(Arc::ptr_eq(&before.rules.chains, &after.chains));
    let written = backend.diff(&before.rules, &after).size();
    let dataplane = with_timeouts(same.clone());
    let rules = backend.render(&dataplane, &Rendered::default());
    let alone = Rendered { dataplane, rules };
    let after = backend.render(&with_timeouts(same.chain([another])), &alone);
    assert_eq!(written, backend.diff(&alone.rules, &after).size());
}

/// An older version had chains for each timeout. What packets have recorded is in the same maps.
#[test]
fn t456_a_timeout_of_an_older_version_becomes_another_one_in_the_same_maps() {
    let backend = Nftables::detached(Family::Ipv4);
    let mut found = backend.render(&with_timeouts([61]), &Rendered::default());
    let mut chains = Vec::new();
    for set in [SetName::Affinities, SetName::NodePortAffinities] {
        let elements = found.sets[set.as_str()].elements.clone();
        let mut elements = elements.iter();
        let (key, data) = elements.next().expect("the Service has affinity");
        let Some(ChainId::Numbered(new)) = ChainId::of(set, data) else {
            panic!("{data:?} leads to no chain");
        };
        assert_eq!(new.number, 63);
        let mut old = new;
        old.number = 61;
        let [was, is] = [old, new].map(ChainId::Numbered);
        found.set_element(set, key.clone(), was.value());
        found.remove_element(is.map(), &is.key());
        let verdict = netlink::nf_tables::ElementData::Verdict(was.verdict());
        found.set_element(was.map(), was.key(), verdict);
        let all = Arc::make_mut(&mut found.chains);
        all.remove(&new.name());
        let old_chain = old.render(Family::Ipv4, &mk_config().build());
        all.insert(old.name(), Arc::new(old_chain));
        chains.push([old.name(), new.name()]);
    }
    let from = Rendered {
        dataplane: Dataplane::default(),
        rules: found.clone(),
    };
    let desired = backend.render(&with_timeouts([61]), &from);
    for transaction in backend.diff(&found, &desired).transactions() {
        let mut operations = transaction.operations.iter();
        let keeps_maps = operations.all(|operation| match operation {
            Operation::AddChain(_) | Operation::AddRule { .. } => true,
            Operation::AddElements { set, .. } | Operation::DeleteElements { set, .. } => {
                !set.name.contains("clients")
            }
            _ => false,
        });
        assert!(keeps_maps, "{transaction}");
        found.replay(transaction).expect("the kernel takes it");
    }
    assert_eq!(found, desired);
    for [old, new] in chains {
        // The rules of one write the maps that those of the other wrote. The old one goes as all
        // chains that are unused.
        let [old, new] = [old, new].map(|name| &found.chains[&name]);
        let written = |chain: &crate::table::ChainWithRules| {
            let text = chain.rules.iter().map(ToString::to_string);
            text.collect::<String>()
                .replace("timeout 61s", "timeout 63s")
        };
        assert_eq!(written(old), written(new));
    }
}
