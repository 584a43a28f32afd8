use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use super::*;
use crate::{
    profile::{
        ProxyProfileSpec,
        mode::Mode,
        node_selector::{NodeSelector, Operator, Requirement},
    },
    span::Span,
};

/// A profile of `priority`, created `created` seconds after the epoch, or read from a file.
fn profile(name: &str, priority: i32, created: Option<i64>) -> ProxyProfile {
    let mut profile = ProxyProfile::new(
        name,
        ProxyProfileSpec {
            priority,
            ..ProxyProfileSpec::default()
        },
    );
    profile.metadata.generation = Some(1);
    profile.metadata.creation_timestamp =
        created.map(|second| Time(Timestamp::from_second(second).expect("a time")));
    profile
}

fn only(label: &str, value: &str) -> NodeSelector {
    NodeSelector {
        match_labels: [(label.into(), value.into())].into(),
        ..NodeSelector::default()
    }
}

fn node(labels: &[(&str, &str)]) -> NodeFacts {
    NodeFacts {
        name: "n1".into(),
        labels: Arc::new(
            labels
                .iter()
                .map(|(key, value)| ((*key).into(), (*value).into()))
                .collect(),
        ),
        current: None,
    }
}

fn role<'a>(resolution: &'a Resolution, name: &str) -> &'a ProfileRole {
    &resolution
        .candidates
        .iter()
        .find(|candidate| candidate.profile == name)
        .expect("a candidate")
        .role
}

#[test]
fn the_lowest_priority_number_decides_and_the_loser_is_reported() {
    let profiles = [
        profile("default", 1000, Some(1)),
        profile("edge", 10, Some(2)),
    ];
    let resolution = resolve(&profiles, &node(&[]));
    assert_eq!(resolution.winner.as_deref(), Some("edge"));
    assert_eq!(
        *role(&resolution, "default"),
        ProfileRole::Outranked {
            to: "edge".into(),
            by: Precedence::Priority
        }
    );
    assert_eq!(
        resolution.reason,
        "profile edge applies with priority 10; default selects the node too but has a higher priority number (1000)"
    );
    assert_eq!(resolution.conflicts().count(), 0);
}

#[test]
fn t5_two_profiles_selecting_one_node_have_one_winner_a_conflict_and_no_flapping() {
    let (old, young, file) = (
        profile("b", 5, Some(1)),
        profile("a", 5, Some(2)),
        profile("c", 5, None),
    );
    let first = resolve([&old, &young, &file], &node(&[]));
    assert_eq!(first.winner.as_deref(), Some("b"));
    assert_eq!(
        *role(&first, "a"),
        ProfileRole::Outranked {
            to: "b".into(),
            by: Precedence::Age
        }
    );
    let conflicts: Vec<&str> = first
        .conflicts()
        .map(|candidate| candidate.profile.as_str())
        .collect();
    assert_eq!(conflicts, ["a", "c"]);

    for order in [
        [&young, &file, &old],
        [&file, &old, &young],
        [&young, &old, &file],
    ] {
        let mut asked_again = node(&[]);
        asked_again.current.clone_from(&first.effective);
        assert_eq!(resolve(order, &asked_again), first);
    }
}

#[test]
fn profiles_of_the_same_priority_and_age_are_ordered_by_name() {
    let profiles = [profile("b", 5, None), profile("a", 5, None)];
    let resolution = resolve(&profiles, &node(&[]));
    assert_eq!(resolution.winner.as_deref(), Some("a"));
    assert_eq!(
        *role(&resolution, "b"),
        ProfileRole::Outranked {
            to: "a".into(),
            by: Precedence::Name
        }
    );
}

#[test]
fn no_profile_for_a_node_is_not_an_error() {
    let mut edge = profile("edge", 1, None);
    edge.spec.node_selector = only("role", "edge");
    let resolution = resolve(&[edge], &node(&[("role", "core")]));
    assert_eq!(
        (resolution.effective.as_ref(), resolution.winner.as_ref()),
        (None, None)
    );
    assert_eq!(*role(&resolution, "edge"), ProfileRole::NotSelected);
    assert_eq!(resolution.reason, "no profile selects node n1");
    assert_eq!(resolve([], &node(&[])).candidates, []);
}

#[test]
fn relabelling_a_node_moves_it_to_another_profile() {
    let mut edge = profile("edge", 1, None);
    edge.spec.node_selector = only("role", "edge");
    let profiles = [profile("default", 1000, None), edge];
    assert_eq!(
        resolve(&profiles, &node(&[("role", "edge")]))
            .winner
            .as_deref(),
        Some("edge")
    );
    assert_eq!(
        resolve(&profiles, &node(&[])).winner.as_deref(),
        Some("default")
    );
}

#[test]
fn a_profile_with_an_invalid_selector_is_rejected_by_name_and_the_others_still_decide() {
    let mut broken = profile("broken", 1, None);
    broken.spec.node_selector.match_expressions = vec![Requirement {
        key: "role".into(),
        operator: Operator::In,
        values: Vec::new(),
    }];
    let profiles = [profile("default", 1000, None), broken];
    let resolution = resolve(&profiles, &node(&[]));
    assert_eq!(resolution.winner.as_deref(), Some("default"));
    let ProfileRole::Rejected(errors) = role(&resolution, "broken") else {
        panic!("broken was not rejected")
    };
    assert_eq!(
        errors[0].field,
        "spec.nodeSelector.matchExpressions[0].values"
    );
}

#[test]
fn a_mistake_in_the_profile_a_node_runs_leaves_the_node_as_it_is() {
    let mut edge = profile("edge", 1, None);
    let fallback = profile("default", 1000, None);
    let mut node = node(&[]);
    node.current = resolve([&edge, &fallback], &node).effective;

    edge.spec.min_sync_period = Span::hours(1);
    let resolution = resolve([&edge, &fallback], &node);
    assert_eq!(resolution.effective, node.current);
    assert_eq!(resolution.hold, Some(Hold::Rejected));
    assert!(
        resolution
            .reason
            .ends_with("it is no longer valid, so the node keeps its configuration"),
        "{}",
        resolution.reason
    );

    let urgent = profile("urgent", 0, None);
    assert_eq!(
        resolve([&edge, &urgent], &node).winner.as_deref(),
        Some("urgent")
    );
}

#[test]
fn a_paused_profile_keeps_every_node_at_what_it_has() {
    let mut paused = profile("edge", 1, None);
    let mut running = node(&[]);
    running.current = resolve([&paused], &running).effective;

    paused.spec.paused = true;
    paused.spec.mode = Mode::Ipvs;
    let resolution = resolve([&paused], &running);
    assert_eq!(resolution.effective, running.current);
    assert_eq!(
        (resolution.winner.as_deref(), resolution.hold),
        (Some("edge"), Some(Hold::Paused))
    );

    let new_node = resolve([&paused], &node(&[]));
    let given = new_node
        .effective
        .expect("a node without anything is given the paused profile");
    assert_eq!(given.config.mode, Mode::Ipvs);
}

#[test]
fn what_a_node_is_given_says_where_it_comes_from() {
    let mut profile = profile("edge", 1, None);
    profile.metadata.generation = Some(7);
    profile.spec.oom_score_adj = Some(-999);
    let given = resolve([&profile], &node(&[]))
        .effective
        .expect("a configuration");
    assert_eq!(
        (given.profile_name.as_str(), given.profile_generation),
        ("edge", 7)
    );
    assert_eq!(given.config_hash, ConfigHash::of(&given.config));
    assert_eq!(given.written_fields, ["oomScoreAdj"]);
}

proptest! {
    #[test]
    fn the_order_in_which_profiles_are_read_changes_nothing(
        drawn in proptest::collection::vec((0_i32..3, proptest::option::of(0_i64..3)), 1..6),
        seed in any::<u64>(),
    ) {
        let profiles: Vec<ProxyProfile> = drawn
            .iter()
            .enumerate()
            .map(|(index, (priority, created))| profile(&format!("p{index}"), *priority, *created))
            .collect();
        let mut shuffled: Vec<&ProxyProfile> = profiles.iter().collect();
        let turns = usize::try_from(seed % 7).expect("a small number");
        let length = shuffled.len();
        shuffled.rotate_left(turns % length);
        if seed % 2 == 0 {
            shuffled.reverse();
        }
        prop_assert_eq!(resolve(&profiles, &node(&[])), resolve(shuffled, &node(&[])));
    }
}
