use super::{Action, Dump, Expectation, Script};

const STORY: &str = "\
# A story.

apply   service slice
packet  pod 10.0.1.9 -> 10.96.0.10:80/tcp = reject
expect  dataplane later
restart
expect  no change
delete  slice
configure masquerade-all

-- service --
kind: Service

-- slice --
-- dataplane later --
shop/web
";

fn error_of(text: &str) -> String {
    match Script::parse(text) {
        Ok(script) => panic!("it parsed: {script:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn steps_keep_their_order_and_their_lines() {
    let script = Script::parse(STORY).expect("the story above is complete");
    let lines: Vec<usize> = script.steps.iter().map(|step| step.line).collect();
    assert_eq!(lines, [3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(script.steps[0].text, "apply service slice");
    let Action::Expect(Expectation::Prints { dump, section }) = &script.steps[2].action else {
        panic!("{:?}", script.steps[2]);
    };
    assert_eq!(
        (*dump, section.as_str()),
        (Dump::Dataplane, "dataplane later")
    );
}

#[test]
fn sections_know_their_text_and_their_lines() {
    let script = Script::parse(STORY).expect("the story above is complete");
    let service = &script.sections["service"];
    assert_eq!(service.text, "kind: Service\n\n");
    assert_eq!(service.lines, 12..=13);
    assert!(script.sections["slice"].lines.is_empty());
    assert_eq!(script.sections["dataplane later"].text, "shop/web\n");
}

#[test]
fn what_is_wrong_is_reported_with_its_line() {
    for (text, message) in [
        (
            "\nstop everything\n",
            "line 2: \"stop\" is not a step: apply, delete, configure, restart, packet, keeps or expect",
        ),
        ("apply\n", "line 1: which sections?"),
        (
            "apply web\n-- we --\n",
            "line 1: there is no section called \"web\"",
        ),
        ("restart now\n", "line 1: restart takes nothing"),
        (
            "expect haproxy\n",
            "line 1: expect takes `no change`, `dataplane`, `nftables`, `iptables`, `ipvs` or `rejections`",
        ),
        (
            "expect dataplane a b\n",
            "line 1: a dump takes at most one label",
        ),
        (
            "-- a --\n\n-- a --\n",
            "line 3: there are two sections called \"a\"",
        ),
        (
            "configure masquerade-some\n",
            "line 1: \"masquerade-some\" is not a setting: masquerade-all, node-ports-anywhere, node-ports-link-local, \
             no-local-detection, detect-interface, detect-prefix, detect-cluster-cidr, service-cidrs-unknown, external-ips-ignored, round-robin or mode-ipvs",
        ),
        (
            "packet pod 10.0.1.9 -> 10.96.0.10:80/tcp\n",
            "line 1: a packet line is ORIGIN SOURCE -> DESTINATION:PORT/PROTOCOL = VERDICT",
        ),
    ] {
        assert_eq!(error_of(text), message);
    }
}
