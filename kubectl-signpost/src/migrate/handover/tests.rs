use std::time::Duration;

use crds::condition::FOREIGN_PROXY_DETECTED;

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
        ("n5", &[READY_BACK, NONE_FOUND]),
    ]);
    run_kube_proxy(&mut evidence, "n1");
    let plan = plan(&evidence);
    let turns = |direction: Direction, options: &HandoverOptions| -> String {
        let turns = plan.nodes.iter().map(|node| turn(node, direction, options));
        let letters = turns.map(|turn| match turn {
            NodeAction::Over => 'o',
            NodeAction::Stopped(_) => 's',
            NodeAction::Ask(_) => 'a',
        });
        letters.collect()
    };
    let (careful, dry_run, forced) = (
        options(false, false),
        options(true, false),
        options(false, true),
    );
    assert_eq!(turns(Direction::Takeover, &careful), "sosaa");
    assert_eq!(turns(Direction::Takeover, &dry_run), "aoaaa");
    assert_eq!(turns(Direction::Takeover, &forced), "soaaa");
    assert_eq!(turns(Direction::Handback, &careful), "aaaos");
    assert_eq!(turns(Direction::Handback, &forced), "aaaos");
    let unserved = turn(&plan.nodes[4], Direction::Handback, &careful);
    assert_eq!(
        unserved,
        NodeAction::Stopped(vec![Obstacle::unserved("n5")])
    );
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
        matches!(turn(node, direction, &options), NodeAction::Stopped(obstacles) if obstacles == [Obstacle::no_agent()])
    };
    assert!(stopped(&plan.nodes[0], Direction::Handback));
    assert!(stopped(&plan.nodes[1], Direction::Handback));
    assert!(stopped(&plan.nodes[1], Direction::Takeover));
}

#[test]
fn a_node_has_moved_when_the_proxy_of_its_direction_alone_serves_it() {
    let failed = ("Ready", "False", "CommitFailed");
    let unread = (FOREIGN_PROXY_DETECTED, "Unknown", "LegacyRulesUnread");
    for (of, takeover, takeover_forced, handback, handback_forced) in [
        ([READY_TRUE, NONE_FOUND], true, true, false, false),
        ([READY_TRUE, FOUND], false, true, false, false),
        ([failed, NONE_FOUND], false, false, false, false),
        ([READY_BACK, FOUND], false, false, true, true),
        ([READY_BACK, NONE_FOUND], false, false, false, true),
        ([READY_BACK, unread], false, false, true, true),
        ([READY_TRUE, unread], true, true, false, false),
    ] {
        let conditions = conditions(&of);
        let reached = |direction: Direction, force| direction.reached(&conditions, force).is_some();
        assert_eq!(reached(Direction::Takeover, false), takeover, "{of:?}");
        assert_eq!(
            reached(Direction::Takeover, true),
            takeover_forced,
            "{of:?}"
        );
        assert_eq!(reached(Direction::Handback, false), handback, "{of:?}");
        assert_eq!(
            reached(Direction::Handback, true),
            handback_forced,
            "{of:?}"
        );
    }
    let forced = Direction::Handback.reached(&conditions(&[READY_BACK, NONE_FOUND]), true);
    assert_ne!(forced, Some("kube-proxy serves"));
}

/// Failure story T431.
#[test]
fn t431_signpost_does_not_serve_a_node_whose_families_are_not_programmed() {
    let failed = ("Ready", "False", "CommitFailed");
    let ipv4 = ("IPv4Programmed", "True", "FamilyProgrammed");
    let ipv6 = |status, reason| ("IPv6Programmed", status, reason);
    const SERVES: Option<&str> = Some("Signpost serves");
    // Where the kernel refuses a family, kube-proxy had no rules in it: the agent has seen to that.
    const IN_PART: Option<&str> = Some("Signpost serves, but not in each address family");
    for (of, expected, beside_kube_proxy) in [
        (vec![ipv4, ipv6("True", "FamilyProgrammed")], SERVES, SERVES),
        (vec![ipv4, ipv6("False", "CommitFailed")], IN_PART, None),
        (vec![ipv4, ipv6("Unknown", "Starting")], None, None),
        // The kernel has no IPv6.
        (
            vec![ipv4, ipv6("False", "KernelUnsupported")],
            SERVES,
            SERVES,
        ),
        (vec![ipv6("False", "KernelUnsupported")], None, None),
        (vec![ipv6("False", "CommitFailed")], None, None),
        (vec![], None, None),
    ] {
        for (found, expected) in [(NONE_FOUND, expected), (FOUND, beside_kube_proxy)] {
            let of = [&[failed, found], of.as_slice()].concat();
            let reached = Direction::Takeover.reached(&conditions(&of), true);
            assert_eq!(reached, expected, "{of:?}");
            let careful = Direction::Takeover.reached(&conditions(&of), false);
            assert_eq!(careful, None, "{of:?}");
        }
    }
}

/// Failure story T433.
#[test]
fn t433_the_node_proxy_tells_what_came_of_a_handover_whose_answer_was_lost() {
    let node = || "n1".to_owned();
    let lost = AskError::Read {
        node: node(),
        source: std::io::ErrorKind::UnexpectedEof.into(),
    };
    let not_run = AskError::NotRun {
        node: node(),
        text: "container not found".to_owned(),
    };
    assert!(goes_on(&lost, &options(false, false)));
    assert!(!goes_on(&lost, &options(true, false)));
    assert!(!goes_on(&not_run, &options(false, false)));
    // A dry run only fails, and says why.
    let text = fail("n1", &lost, lost.advice());
    let expected = "n1: failed: the answer of the agent on node n1 ended early: ";
    assert!(text.starts_with(expected), "{text}");
    assert!(
        text.ends_with(&format!("\n  next: {}\n", lost.advice())),
        "{text}"
    );
    assert!(!text.contains("can-i"), "{text}");
    let text = fail("n1", &not_run, not_run.advice());
    assert!(text.contains("can-i get pods --subresource=exec"), "{text}");
}

/// Failure story T435.
#[test]
fn t435_a_dry_run_names_the_nodes_that_the_real_run_would_skip() {
    let mut evidence = evidence(&[
        ("n1", &[READY_TRUE, FOUND]),
        ("n2", &[READY_TRUE, FOUND]),
        ("n3", &[READY_TRUE, NONE_FOUND]),
    ]);
    run_kube_proxy(&mut evidence, "n1");
    let plan = plan(&evidence);
    let turns = |dry_run| {
        let turns = Turns::of(&plan, Direction::Takeover, &options(dry_run, false));
        let asked: Vec<String> = turns.asked.iter().map(|agent| agent.node.clone()).collect();
        (turns.stopped, asked)
    };
    let (stopped, asked) = turns(false);
    assert_eq!(asked, ["n2"]);
    assert!(stopped.iter().all(|(name, _)| *name == "n1"), "{stopped:?}");
    let (would_stop, asked) = turns(true);
    assert_eq!(asked, ["n1", "n2"]);
    assert!(!would_stop.is_empty());
    assert_eq!(would_stop, stopped);
}

/// Failure story T437.
#[test]
fn t437_a_node_proxy_that_cannot_be_read_fails_its_node_alone() {
    let status = kube::core::Status::failure("it is gone", "NotFound").with_code(404);
    let error = ClusterError::Request {
        doing: "read NodeProxy n1".to_owned(),
        server: String::new(),
        source: kube::Error::Api(status.boxed()),
    };
    let conclude = |reported| conclude("n1", Direction::Takeover, &options(false, false), reported);
    let (text, ending) = conclude(Err(error));
    assert_eq!(ending, Ending::ProblemFound);
    assert!(
        text.starts_with("n1: failed: failed to read NodeProxy n1: it is gone\n  next: "),
        "{text}"
    );
    let (text, ending) = conclude(Ok(None));
    assert_eq!(ending, Ending::ProblemFound);
    assert!(
        text.contains("did not report Signpost as the active proxy within 1 s"),
        "{text}"
    );
    assert_eq!(conclude(Ok(Some("Signpost serves"))).1, Ending::Success);
}
