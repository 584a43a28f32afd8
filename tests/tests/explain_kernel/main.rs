//! `signpost-agent explain` and `trace` query the real agent about a real kernel.

mod ipvsadm;
mod stage;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Arguments;
use serde_json::Value;
use tests::deadline::wait_for;
use tests::ipvs_support::find_ipvs;
use tests::network::enter_private_namespaces;
use tests::trial::trial;
use xtables::Variant;

use stage::{SECOND_ENDPOINT, Stage};

/// How long repairs may be too fast to be observed, and answers may differ.
const PATIENCE: Duration = Duration::from_secs(60);

type Test = fn(&Stage) -> Result<()>;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let tests: [(&str, Test); 6] = [
        ("explain_reads_the_kernel", explain_reads_the_kernel),
        ("a_missing_element_is_named", a_missing_element_is_named),
        (
            "trace_follows_the_kernels_rules",
            trace_follows_the_kernels_rules,
        ),
        ("what_is_not_known_is_refused", what_is_not_known_is_refused),
        (
            "an_answer_that_is_not_the_agents_is_not_taken_for_one",
            another_programs_answer,
        ),
        (
            "t154_show_prints_what_the_agent_has_over_its_socket",
            everything_is_shown,
        ),
    ];
    let trials = tests.map(|(name, test)| trial(name, move || test(&Stage::build()?)));
    let with_iptables = [Variant::NfTables, Variant::Legacy].map(|variant| {
        let name = format!("{variant}/rules_of_iptables_are_read_and_followed");
        trial(&name, move || {
            rules_of_iptables(&Stage::build_with_iptables(variant)?, variant)
        })
    });
    let missing = find_ipvs(&["rr", "mh", "lc"])?;
    let with_ipvs: [(&str, Test); 3] = [
        (
            "virtual_servers_are_read_counted_and_followed::ipvs",
            virtual_servers,
        ),
        (
            "t378_what_ipvsadm_lists_is_what_explain_prints::ipvs",
            ipvsadm::lists_what_is_explained,
        ),
        (
            "t378_what_ipvsadm_lists_after_others_changed_it_is_explained::ipvs",
            ipvsadm::lists_what_is_explained_to_differ,
        ),
    ];
    let with_ipvs = with_ipvs.map(|(name, test)| {
        let trial = trial(name, move || test(&Stage::build_with_ipvs()?));
        trial.with_ignored_flag(missing.is_some())
    });
    if let Some(why) = &missing {
        println!("SKIPPED: mode ipvs: {why}");
    }
    let trials = trials.into_iter().chain(with_iptables).chain(with_ipvs);
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

fn contains_all(text: &str, expected: &[&str]) -> Result<()> {
    for words in expected {
        ensure!(text.contains(words), "no {words:?} in:\n{text}");
    }
    Ok(())
}

fn explain_reads_the_kernel(stage: &Stage) -> Result<()> {
    let text = wait_for("the same answer at /debug", PATIENCE, || {
        // A round between the two requests changes the second answer: one follows directly after
        // the agent becomes ready.
        let text = stage.agent.ask(&["explain", "demo/web:http"])?;
        let at_agent = stage.agent.get("/debug/services/demo/web:http")?;
        Ok((at_agent == text).then_some(text))
    })?;
    contains_all(
        &text,
        &[
            "Service demo/web\n",
            "10.0.1.5:8080 on node-1 (here), ready: used\n",
            "services { 10.96.0.10 . tcp . 80 : 3 . 0x03000003 } # cluster-3\n",
            "IPv4: the kernel holds what was programmed, ",
            "IPv6: the kernel holds what was programmed, ",
            "  last sync: ",
        ],
    )?;
    ensure!(!text.contains('!'), "something is wrong:\n{text}");

    let text = stage.agent.ask(&["explain", "10.0.1.6:8080"])?;
    contains_all(&text, &["10.0.1.6:8080 is an endpoint of 1 Service\n"])?;
    let json = stage
        .agent
        .ask(&["explain", "10.96.0.10:80/tcp", "-o", "json"])?;
    let json: Value = serde_json::from_str(&json)?;
    let element = &json["services"][0]["frontends"][0]["elements"][0];
    ensure!(element["state"] == "present", "{json:#}");
    Ok(())
}

/// The agent repairs damage at once, but delays the repair of repeated damage.
fn a_missing_element_is_named(stage: &Stage) -> Result<()> {
    let missing =
        format!("! missing in the kernel: endpoints {{ {SECOND_ENDPOINT} : 10.0.1.6 . 8080 }}\n");
    let text = wait_for("an element that is gone to be named", PATIENCE, || {
        stage.delete_second_endpoint();
        let (text, agrees) = stage.agent.compare(&["explain", "demo/web:http"])?;
        let named = text.contains(&missing);
        ensure!(named != agrees, "agrees: {agrees}\n{text}");
        Ok(named.then_some(text))
    })?;
    contains_all(
        &text,
        &["IPv4: ! the kernel differs from what was programmed: 1 element to repair\n"],
    )
}

fn trace_follows_the_kernels_rules(stage: &Stage) -> Result<()> {
    let packet = "10.0.1.9 -> 10.96.0.10:80/tcp";
    let text = stage.agent.ask(&["trace", packet])?;
    contains_all(
        &text,
        &[
            "pod 10.0.1.9 -> 10.96.0.10:80/tcp\n  taken for a pod of this node",
            "the rules in the kernel: 10.0.1.5:8080, 10.0.1.6:8080, 10.0.1.7:8080\nthey agree\n",
            "      services { 10.96.0.10 . tcp . 80 : 3 . 0x03000003 }\n",
            "      or dnat to 10.0.1.6:8080\n",
        ],
    )?;
    let misled = wait_for("an element that is gone to be missed", PATIENCE, || {
        stage.delete_second_endpoint();
        let (text, agrees) = stage.agent.compare(&["trace", packet])?;
        ensure!(text.contains("! they do not agree\n") != agrees, "{text}");
        Ok((!agrees).then_some(text))
    })?;
    // Connections that draw the missing slot are sent to the first one.
    let taken = "the rules in the kernel: 10.0.1.5:8080 x2, 10.0.1.7:8080\n";
    contains_all(&misled, &[taken])
}

fn rules_of_iptables(stage: &Stage, variant: Variant) -> Result<()> {
    let packet = "10.0.1.9 -> 10.96.0.10:80/tcp";
    let text = stage.agent.ask(&["explain", "demo/web:http"])?;
    contains_all(
        &text,
        &[
            " -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -m comment",
            "    ip6tables -t nat -A SIGNPOST-",
            "IPv4: the kernel holds what was programmed, ",
            "IPv6: the kernel holds what was programmed, ",
            &format!(" rules of iptables ({variant})\n"),
        ],
    )?;
    ensure!(!text.contains("! missing"), "something is wrong:\n{text}");
    let mut words = text.split_whitespace();
    let chain = words.find(|word| word.starts_with("SIGNPOST-SVC-"));
    let chain = chain.context("no rule leads to the Service")?;

    let text = stage.agent.ask(&["trace", packet])?;
    contains_all(
        &text,
        &[
            "the rules in the kernel: 10.0.1.5:8080, 10.0.1.6:8080, 10.0.1.7:8080\nthey agree\n",
            "  PREROUTING (nat)\n    SIGNPOST-SERVICES\n",
            "      or dnat to 10.0.1.6:8080\n",
        ],
    )?;

    let differs = format!("! differs: nat chain {chain}\n      in the kernel it is empty\n");
    let text = wait_for("an empty chain to be seen", PATIENCE, || {
        stage.flush(variant, chain)?;
        let text = stage.agent.ask(&["explain", "demo/web:http"])?;
        Ok(text.contains(&differs).then_some(text))
    })?;
    let missing = format!("    ! missing in the kernel: iptables -t nat -A {chain} ");
    let mending = "IPv4: ! the kernel differs from what was programmed: 1 chain to repair\n";
    contains_all(&text, &[&missing, mending])?;
    let misled = wait_for("a packet that goes astray", PATIENCE, || {
        stage.flush(variant, chain)?;
        let (text, agrees) = stage.agent.compare(&["trace", packet])?;
        ensure!(text.contains("! they do not agree\n") != agrees, "{text}");
        Ok((!agrees).then_some(text))
    })?;
    contains_all(&misled, &["the rules in the kernel: reject\n"])
}

/// The agent looks for such changes every second or two, since the kernel announces none.
fn virtual_servers(stage: &Stage) -> Result<()> {
    let packet = "10.0.1.9 -> 10.96.0.10:80/tcp";
    let endpoint: SocketAddr = ([10, 0, 1, 6], 8080).into();
    let text = stage.agent.ask(&["explain", "demo/web:http"])?;
    contains_all(
        &text,
        &[
            "    services { 10.96.0.10 . tcp . 80 : 0x5340",
            " } # FWM 13967032",
            "    virtual server FWM 13967032",
            ", scheduler rr\n",
            " -> 10.0.1.6:8080, Masq, weight 1, 0 active, 0 inactive connections\n",
            " IPv6 -> [fd00:10:0:1::6]:8080, Masq, weight 1, 0 active, 0 inactive connections\n",
            "IPv4: the kernel holds what was programmed, ",
            "IPv6: the kernel holds what was programmed, ",
        ],
    )?;
    ensure!(!text.contains('!'), "something is wrong:\n{text}");
    let text = stage.agent.ask(&["trace", packet])?;
    contains_all(
        &text,
        &["the rules in the kernel: 10.0.1.5:8080, 10.0.1.6:8080, 10.0.1.7:8080\nthey agree\n"],
    )?;

    let text = wait_for("an endpoint that is gone to be named", PATIENCE, || {
        stage.remove_destination(endpoint)?;
        let (text, agrees) = stage.agent.compare(&["explain", "demo/web:http"])?;
        let named = text.contains(" -> 10.0.1.6:8080, Masq, weight 1\n");
        ensure!(named != agrees, "agrees: {agrees}\n{text}");
        Ok(named.then_some(text))
    })?;
    let missing = "    ! missing in the kernel: FWM 13967032";
    contains_all(&text, &[missing, "IPv4: ! the kernel differs from what"])?;
    let misled = wait_for("a packet whose endpoint is gone", PATIENCE, || {
        stage.remove_destination(endpoint)?;
        let (text, agrees) = stage.agent.compare(&["trace", packet])?;
        ensure!(text.contains("! they do not agree\n") != agrees, "{text}");
        Ok((!agrees).then_some(text))
    })?;
    contains_all(
        &misled,
        &["the rules in the kernel: 10.0.1.5:8080, 10.0.1.7:8080\n"],
    )
}

fn what_is_not_known_is_refused(stage: &Stage) -> Result<()> {
    for (arguments, words) in [
        (
            ["explain", "demo/absent"],
            "does not know Service demo/absent",
        ),
        (
            ["explain", "demo/web:nope"],
            "Service demo/web has no port \"nope\": it has http (80/tcp, node port 30080)",
        ),
        (["explain", "absent"], "\"absent\" is not namespace/name"),
        (["trace", "10.0.1.9"], "a packet is [ORIGIN] SOURCE"),
    ] {
        let error = stage.agent.ask(&arguments).err();
        let error = error.with_context(|| format!("{arguments:?} was answered"))?;
        contains_all(&format!("{error:#}"), &[words])?;
    }
    Ok(())
}

/// Next to a kube-proxy that holds the port, its "404 page not found" was taken to mean that the
/// Service does not exist. The probe server has no `/debug` either. The agent's socket does not
/// depend on ports.
fn another_programs_answer(stage: &Stage) -> Result<()> {
    let arguments = [
        "explain",
        "demo/web:http",
        "--metrics-address",
        "127.0.0.1:10261",
    ];
    let text = stage.agent.ask(&arguments)?;
    ensure!(text.starts_with("Service demo/web\n"), "{text}");
    let arguments = [&arguments[..], &["--state", "/nonexistent"]].concat();
    let error = stage.agent.ask(&arguments).err();
    let error = error.context("it took the answer of another program")?;
    let text = format!("{error:#}");
    ensure!(text.contains("another program"), "{text}");
    Ok(())
}

/// The parts of an archive for a bug report.
fn everything_is_shown(stage: &Stage) -> Result<()> {
    for (part, words) in [
        (
            "rules",
            [
                "table ip signpost\n",
                "10.96.0.10 . tcp . 80 : 3 . 0x03000003",
            ],
        ),
        ("dataplane", ["10.96.0.10", "10.0.1.5:8080"]),
        ("syncs", ["IPv4", "IPv6"]),
        ("status", ["appliedHash:", "type: Ready"]),
        (
            "metrics",
            [
                "signpost_services ",
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds{",
            ],
        ),
    ] {
        let text = stage.agent.ask(&["show", part])?;
        contains_all(&text, &words).with_context(|| part)?;
    }
    let error = stage
        .agent
        .ask(&["show", "rules", "--state", "/nonexistent"]);
    let error = error.err().context("no server answers there")?;
    contains_all(&format!("{error:#}"), &["no agent answers in /nonexistent"])
}
