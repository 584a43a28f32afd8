use std::time::Duration;

use super::super::plan::tests::{
    FOUND, NONE_FOUND, READY_BACK, READY_TRUE, conditions, evidence, plan, run_kube_proxy,
};
use super::*;

fn options(dry_run: bool, force: bool) -> HandoverOptions {
    HandoverOptions {
        nodes: Vec::new(),
        dry_run,
        force,
        timeout: Duration::from_secs(1),
    }
}

#[test]
fn t170_the_first_node_goes_alone_and_the_others_a_few_at_once() {
    let nodes: Vec<u8> = (0..18).collect();
    let mut ahead = nodes.as_slice();
    let mut sizes = Vec::new();
    while let Some((wave, rest)) = next_wave(ahead, nodes.len()) {
        sizes.push(wave.len());
        ahead = rest;
    }
    assert_eq!(sizes, [1, 8, 8, 1]);
}

#[test]
fn t170_no_agent_is_asked_to_take_over_while_kube_proxy_runs() {
    let failed = ("Ready", "False", "CommitFailed");
    let mut evidence = evidence(&[
        ("n1", &[READY_TRUE, FOUND]),
        ("n2", &[READY_TRUE, NONE_FOUND]),
        ("n3", &[failed, FOUND]),
        ("n4", &[READY_BACK, FOUND]),
    ]);
    run_kube_proxy(&mut evidence, "n1");
    let plan = plan(&evidence);
    let turns = |direction: Direction, options: &HandoverOptions| -> String {
        let turns = plan.nodes.iter().map(|node| turn(node, direction, options));
        let letters = turns.map(|turn| match turn {
            Turn::Over => 'o',
            Turn::Stopped(_) => 's',
            Turn::Ask(_) => 'a',
        });
        letters.collect()
    };
    let (careful, dry_run, forced) = (
        options(false, false),
        options(true, false),
        options(false, true),
    );
    assert_eq!(turns(Direction::Takeover, &careful), "sosa");
    assert_eq!(turns(Direction::Takeover, &dry_run), "aoaa");
    assert_eq!(turns(Direction::Takeover, &forced), "soaa");
    assert_eq!(turns(Direction::Handback, &careful), "aaao");
}

#[test]
fn a_node_without_an_agent_is_left_out_in_both_directions() {
    let mut evidence = evidence(&[
        ("n1", &[READY_TRUE, NONE_FOUND]),
        ("n2", &[READY_TRUE, FOUND]),
    ]);
    evidence.agents.clear();
    run_kube_proxy(&mut evidence, "n1");
    let plan = plan(&evidence);
    let stopped = |node: &NodePlan, direction: Direction| {
        let options = options(false, true);
        matches!(turn(node, direction, &options), Turn::Stopped(obstacles) if obstacles == [&Obstacle::no_agent()])
    };
    assert!(stopped(&plan.nodes[0], Direction::Handback));
    assert!(stopped(&plan.nodes[1], Direction::Handback));
    assert!(stopped(&plan.nodes[1], Direction::Takeover));
}

#[test]
fn a_takeover_has_ended_when_the_node_is_ready_without_kube_proxys_rules() {
    let failed = ("Ready", "False", "CommitFailed");
    for (of, takeover, forced, handback) in [
        ([READY_TRUE, NONE_FOUND], true, true, false),
        ([READY_TRUE, FOUND], false, true, false),
        ([failed, NONE_FOUND], false, true, false),
        ([READY_BACK, FOUND], false, false, true),
        ([READY_BACK, NONE_FOUND], false, false, true),
    ] {
        let conditions = conditions(&of);
        let reached = |direction: Direction, force| direction.is_reached(&conditions, force);
        assert_eq!(reached(Direction::Takeover, false), takeover, "{of:?}");
        assert_eq!(reached(Direction::Takeover, true), forced, "{of:?}");
        assert_eq!(reached(Direction::Handback, false), handback, "{of:?}");
    }
}
