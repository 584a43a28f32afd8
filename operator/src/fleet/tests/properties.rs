//! Convergence: any events in any order lead to the same final state, after which nothing is
//! written.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::Cluster;

/// An event in the cluster.
#[derive(Clone, Debug)]
enum Happening {
    NodeJoins(u8, bool),
    NodeLeaves(u8),
    ProfileIs(u8, Value),
    ProfileGoes(u8),
    /// A configuration of a profile's history is undone; of a profile without one, nothing.
    RevisionIsUndone(u8, usize),
    OperatorRestarts,
    EverythingIsWritten,
}

fn spec() -> impl Strategy<Value = Value> {
    let selector = prop_oneof![
        Just(json!({})),
        Just(json!({"matchLabels": {"role": "edge"}}))
    ];
    let mode = prop_oneof![Just("nftables"), Just("iptables"), Just("teleport")];
    (0..3_u8, selector, mode, "1s|30s|90s").prop_map(|(priority, selector, mode, period)| {
        json!({"priority": priority, "nodeSelector": selector, "mode": mode, "syncPeriod": period})
    })
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (0..6_u8, any::<bool>()).prop_map(|(node, edge)| Happening::NodeJoins(node, edge)),
        1 => (0..6_u8).prop_map(Happening::NodeLeaves),
        3 => (0..3_u8, spec()).prop_map(|(profile, spec)| Happening::ProfileIs(profile, spec)),
        1 => (0..3_u8).prop_map(Happening::ProfileGoes),
        1 => (0..3_u8, 0..3_usize).prop_map(|(profile, revision)| Happening::RevisionIsUndone(profile, revision)),
        1 => Just(Happening::OperatorRestarts),
        2 => Just(Happening::EverythingIsWritten),
    ]
}

fn happen(cluster: &mut Cluster, happening: Happening) {
    let labels = |edge: bool| {
        if edge {
            json!({"role": "edge"})
        } else {
            json!({})
        }
    };
    match happening {
        Happening::NodeJoins(node, edge) => {
            let name = format!("n{node}");
            if cluster.nodes.contains_key(&name) {
                cluster.relabel_node(&name, labels(edge));
            } else {
                cluster.add_node(&name, labels(edge));
            }
        }
        Happening::NodeLeaves(node) => cluster.remove_node(&format!("n{node}")),
        Happening::ProfileIs(profile, spec) => cluster.put_profile(&format!("p{profile}"), spec),
        Happening::ProfileGoes(profile) => cluster.remove_profile(&format!("p{profile}")),
        Happening::RevisionIsUndone(profile, revision) => {
            let name = format!("p{profile}");
            let Some(mut profile) = cluster.profiles.get(&name).cloned() else {
                return;
            };
            let hash = &profile["status"]["history"][revision]["configHash"];
            profile["spec"]["rollout"]["undo"] = hash.as_str().unwrap_or_default().into();
            cluster.put_profile(&name, profile["spec"].take());
        }
        Happening::OperatorRestarts => cluster.restart_operator(),
        Happening::EverythingIsWritten => cluster.run(),
    }
}

fn statuses(cluster: &Cluster) -> Vec<Value> {
    cluster
        .profiles
        .values()
        .map(|profile| profile["status"].clone())
        .collect()
}

proptest! {
    #[test]
    fn it_comes_to_rest_and_a_restart_changes_nothing(happenings in prop::collection::vec(happening(), 1..30)) {
        let mut cluster = Cluster::new();
        for happening in happenings {
            happen(&mut cluster, happening);
        }
        cluster.run();
        cluster.forget_writes();
        cluster.restart_operator();
        cluster.run();
        cluster.advance(7200);
        prop_assert_eq!((&cluster.assigned, &cluster.reported), (&Vec::new(), &Vec::new()));
    }

    #[test]
    fn t307_what_is_undone_stays_undone_whatever_happens_to_nodes_and_operator(
        periods in prop::collection::vec("[1-4]s", 2..4),
        undone_at in 0..8_usize,
        happenings in prop::collection::vec(happening().prop_filter("of nodes and operator", |happening| {
            !matches!(happening, Happening::ProfileIs(..) | Happening::ProfileGoes(_) | Happening::RevisionIsUndone(..))
        }), 1..10),
    ) {
        let mut cluster = Cluster::with_nodes(3);
        let mut spec = json!({});
        for period in &periods {
            spec = json!({"syncPeriod": period});
            cluster.put_profile("default", spec.clone());
            cluster.run();
        }
        let status = cluster.status("default");
        let undone = status.history[0].config_hash.clone();
        let earlier = status.history[1].config_hash.clone();
        for (index, happening) in happenings.into_iter().enumerate() {
            if index == undone_at {
                spec["rollout"]["undo"] = undone.clone().into();
                cluster.put_profile("default", spec.clone());
            }
            happen(&mut cluster, happening);
        }
        spec["rollout"]["undo"] = undone.into();
        cluster.put_profile("default", spec);
        cluster.run();
        let has_it = |proxy: &Value| proxy["spec"]["configHash"] == *earlier;
        prop_assert_eq!(cluster.proxies.len(), cluster.nodes.len());
        prop_assert!(cluster.proxies.values().all(has_it));
        cluster.forget_writes();
        cluster.restart_operator();
        cluster.run();
        cluster.advance(7200);
        prop_assert_eq!((&cluster.assigned, &cluster.reported), (&Vec::new(), &Vec::new()));
    }

    #[test]
    fn t5_the_order_in_which_things_are_heard_decides_nothing(
        specs in prop::collection::vec(spec().prop_filter("valid", |spec| spec["mode"] != "teleport"), 3),
        edges in prop::collection::vec(any::<bool>(), 4),
        order in Just((0..7_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let play = |order: &[usize]| {
            let mut cluster = Cluster::new();
            for &step in order {
                match step {
                    0..3 => happen(&mut cluster, Happening::ProfileIs(u8::try_from(step).expect("small"), specs[step].clone())),
                    _ => happen(&mut cluster, Happening::NodeJoins(u8::try_from(step).expect("small"), edges[step - 3])),
                }
            }
            cluster.run();
            (cluster.assignments(), statuses(&cluster))
        };
        prop_assert_eq!(play(&order), play(&(0..7).collect::<Vec<_>>()));
    }

    #[test]
    fn never_more_nodes_change_at_once_than_may_be_unavailable(
        count in 1..12_usize, most in 1..5_usize, canary in 0..3_usize, muted in prop::collection::vec(any::<bool>(), 12),
    ) {
        let mut cluster = Cluster::with_nodes(count);
        cluster.mute = (0..count).filter(|index| muted[*index]).map(|index| format!("n{}", index + 1)).collect();
        let rollout = json!({"maxUnavailable": most, "canary": canary, "progressDeadline": "60s", "onFailure": "Halt"});
        cluster.put_profile("default", json!({"mode": "iptables", "rollout": rollout}));
        for _ in 0..60 {
            for action in cluster.fleet.plan(cluster.now, cluster.instant()).actions {
                cluster.write(action);
            }
            let changing = cluster.proxies.values().filter(|proxy| {
                proxy["spec"]["config"]["mode"] == "iptables" && proxy["status"]["appliedHash"] != proxy["spec"]["configHash"]
            });
            prop_assert!(changing.count() <= most);
            cluster.report();
            cluster.now += jiff::SignedDuration::from_secs(7);
        }
    }
}
