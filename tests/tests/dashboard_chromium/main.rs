//! The page of `kubectl signpost dashboard` in Chromium, with a real API server and a real
//! operator. The test acts as the agents.

mod fleet;
mod legibility;
mod stage;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use crds::condition::reason::advice;
use jiff::Timestamp;
use libtest_mimic::{Arguments, Trial};
use serde_json::json;
use tests::browser;
use tests::control_plane::build_programs;
use tests::deadline::wait_for;
use tests::trial::trial;
use ureq::Agent;
use ureq::http::StatusCode;

use stage::{NODES, Stage, State};

/// Everything happens within a second or two; the rest is a reserve for busy machines.
const DEADLINE: Duration = Duration::from_secs(60);

/// The maximum size of pictures for the documentation, in bytes.
const LARGEST_PICTURE: usize = 150_000;

type Test = fn(&mut Stage) -> Result<()>;

/// The tests in order; each continues with the state that the previous one left behind.
const TESTS: [(&str, Test); 10] = [
    (
        "what_blocks_a_rollout_is_shown_as_it_happens_with_what_to_do",
        rollouts,
    ),
    (
        "every_node_is_a_square_for_keyboard_and_screen_reader",
        nodes,
    ),
    ("rejections_are_grouped_by_service", rejections),
    ("drift_is_grouped_by_program", drift),
    ("questions_that_no_agent_answers_say_why", questions),
    (
        "t234_every_view_is_legible_in_light_and_dark_and_fits_a_narrow_window",
        legibility::all_views,
    ),
    ("a_lost_api_server_is_reported_and_found_again", connection),
    ("other_hosts_methods_and_tokens_are_refused", refusals),
    ("five_thousand_nodes_are_shown_and_searched", fleet::shown),
    (
        "t233_five_thousand_nodes_change_and_only_those_in_sight_are_drawn",
        fleet::changing,
    ),
];

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    if let Some(problem) = browser::missing() {
        println!("SKIPPED: the page of kubectl signpost dashboard in Chromium: {problem}");
        let skipped = Trial::test("SKIPPED_everything_with_chromium", || Ok(()));
        let skipped = vec![skipped.with_ignored_flag(true)];
        libtest_mimic::run(&arguments, skipped).exit();
    }
    build_programs()?;
    let stage: Arc<Mutex<Option<Stage>>> = Arc::default();
    let of = |(name, test): (&str, Test)| {
        let stage = Arc::clone(&stage);
        trial(name, move || {
            let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
            let stage = match &mut *stage {
                Some(stage) => stage,
                none => none.insert(Stage::start()?),
            };
            test(stage)?;
            let errors = stage.browser.errors()?;
            ensure!(errors.is_empty(), "errors in the browser: {errors:#?}");
            Ok(())
        })
    };
    arguments.test_threads = Some(1);
    let conclusion = libtest_mimic::run(&arguments, TESTS.map(of).into());
    // `exit` would leave the processes running.
    drop(stage);
    conclusion.exit();
}

/// A first configuration that every node applies, and a change with which the first node fails.
fn rollouts(stage: &mut Stage) -> Result<()> {
    let browser = &stage.browser;
    browser.wait_for_text("#connection", &["live"])?;
    let address = browser.evaluate("location.href")?;
    ensure!(
        !address.to_string().contains(stage.token()?),
        "the token stays in the address: {address}"
    );
    browser.wait_for_text("#rollouts", &["There is no ProxyProfile", "n1, n2, n3"])?;
    // A marker in the page, to prove that it is never reloaded.
    browser.evaluate("window.isSamePage = true")?;

    let rollout = json!({"minReady": "0s", "progressDeadline": "20s", "onFailure": "Halt"});
    stage.put_profile("default", &json!({"rollout": rollout}))?;
    for node in NODES {
        stage.wait_for_mode(node, "nftables")?;
        stage.report(node, State::Ready, &json!({}))?;
    }
    browser.wait_for_text(
        "#rollouts article",
        &["ProxyProfile default: healthy", "Nothing blocks it"],
    )?;

    let change = json!({"mode": "iptables", "rollout": rollout});
    stage.put_profile("default", &change)?;
    stage.wait_for_mode("n1", "iptables")?;
    browser.wait_for_text(
        "#rollouts .commands",
        &["kubectl signpost rollout abort default --context=test takes the change back"],
    )?;
    stage.report("n1", State::Failing, &json!({}))?;
    let what_to_do = advice("Halted").context("advice")?;
    browser.wait_for_text(
        "#rollouts article",
        &[
            "ProxyProfile default: unhealthy",
            "It has stopped: Halted: 1 of 3 nodes failed: n1 (CommitFailed",
            what_to_do,
            advice("CommitFailed").context("advice")?,
            // Failure story T232: what to do, as commands that can be typed as they are.
            "kubectl signpost rollout undo default --context=test returns to generation 1: mode",
            "kubectl signpost rollout retry default",
        ],
    )?;
    browser.wait_for_text("nav a[href='#rollouts']", &["1"])?;
    // Failure story T235: a screen reader says it, in whichever view.
    let said = ["ProxyProfile default: It has stopped: Halted"];
    browser.wait_for_text("#news[role='status']", &said)?;
    picture(stage, "light", "rollouts")?;
    ensure!(
        browser.evaluate("window.isSamePage === true")? == json!(true),
        "the page was loaded again"
    );
    Ok(())
}

fn nodes(stage: &mut Stage) -> Result<()> {
    const RIGHT: &str = "\u{e014}";
    const END: &str = "\u{e010}";
    stage.go_to("nodes")?;
    let browser = &stage.browser;
    browser.wait_for_text("#nodes-count", &["3 nodes"])?;
    let unhealthy = ".group[data-group='unhealthy'] .cell";
    browser.wait_for_count(unhealthy, 1)?;
    let read = browser.accessible()?;
    for expected in [
        "option: n1, unhealthy, CommitFailed, iptables, p99 4ms",
        "option: n2, healthy, Programmed, nftables, p99 4ms",
        "listbox: unhealthy: 1 node",
        "heading: How is each node?",
        "complementary: Chosen node",
    ] {
        ensure!(
            read.iter().any(|line| line.starts_with(expected)),
            "a screen reader is not given {expected:?} but {read:#?}"
        );
    }

    // Tab focuses the first square, and arrow keys move to the others.
    browser.evaluate("document.querySelector('#nodes-grid [tabindex=\"0\"]').focus()")?;
    browser.wait_for_text("#node", &["n1: unhealthy", "CommitFailed"])?;
    browser.press(RIGHT)?;
    browser.wait_for_text("#node", &["n2: healthy", "6.12.48"])?;
    browser.press(END)?;
    browser.wait_for_text("#node", &["n3: healthy"])?;
    browser.wait_for_count("#nodes-grid [tabindex='0']", 1)?;

    // A change of a node moves its square, and the focus with it.
    stage.report("n3", State::Failing, &json!({}))?;
    let browser = &stage.browser;
    browser.wait_for_count(unhealthy, 2)?;
    browser.wait_for_text("#node", &["n3: unhealthy"])?;
    ensure!(
        browser.evaluate("document.activeElement.dataset.node")? == json!("n3"),
        "the focus is lost"
    );
    stage.report("n3", State::Ready, &json!({}))?;
    stage.browser.wait_for_count(unhealthy, 1)
}

fn rejections(stage: &mut Stage) -> Result<()> {
    stage.go_to("rejections")?;
    stage
        .browser
        .wait_for_text("#rejections", &["Nodes reject nothing"])?;
    let rejection = json!({
        "object": "Service shop/cart", "field": "spec.externalIPs[0]",
        "message": "<b>10.0.0.1</b> is an address of a node and is not served",
    });
    let mut other = rejection.clone();
    other["object"] = json!("Service shop/a-pay");
    let one = json!({"rejections": {"total": 1, "first": [rejection]}});
    let both = json!({"rejections": {"total": 2, "first": [rejection, other]}});
    stage.report("n2", State::Ready, &one)?;
    stage.report("n3", State::Ready, &both)?;
    // Data from the cluster is rendered as text, even if it looks like HTML.
    let expected = [
        "Service shop/cart",
        "spec.externalIPs[0]",
        "<b>10.0.0.1</b>",
        "2: n2, n3",
    ];
    stage
        .browser
        .wait_for_text("#rejections article", &expected)?;
    // What most nodes reject comes first.
    let other = "#rejections article:nth-of-type(2)";
    let browser = &stage.browser;
    browser.wait_for_text(other, &["Service shop/a-pay", "1: n3"])?;
    browser.wait_for_count("#rejections article", 2)
}

fn drift(stage: &mut Stage) -> Result<()> {
    stage.go_to("drift")?;
    stage
        .browser
        .wait_for_text("#drift", &["No agent has repaired anything"])?;
    stage.report("n2", State::Contested, &json!({}))?;
    let of = |program: &str| {
        json!({
            "program": program, "continues": false, "repairs": 1, "lastFound": Timestamp::now(),
            "elements": 1, "objects": 0,
        })
    };
    let more = json!({"drift": [of("flush-rules"), of("nft")]});
    stage.report("n3", State::Ready, &more)?;
    let what_to_do = advice("RepairsHeldBack").context("advice")?;
    let expected = [
        "flush-rules",
        "Changed rules on 2 nodes, and keeps changing them on 1 node.",
        "12 elements, 1 object\t",
        what_to_do,
    ];
    let browser = &stage.browser;
    browser.wait_for_text("#drift article", &expected)?;
    let other = "#drift article:nth-of-type(2)";
    browser.wait_for_text(other, &["nft", "Changed rules on 1 node.", "n3"])?;
    browser.wait_for_count("#drift article", 2)
}

/// No Pods run here, so there is no agent to query.
fn questions(stage: &mut Stage) -> Result<()> {
    const ENTER: &str = "\u{e007}";
    let browser = &stage.browser;
    browser.evaluate("document.querySelector('#rejections a[href^=\"#service\"]').click()")?;
    let no_agent = "no answer: no agent runs";
    browser.wait_for_text("#service-answer", &[no_agent])?;
    ensure!(
        browser.evaluate("document.querySelector('#service-question input').value")?
            == json!("shop/cart"),
        "the link leads to another Service"
    );
    stage.go_to("packet")?;
    let browser = &stage.browser;
    for (field, text) in [("from", "10.0.1.9"), ("to", "10.96.0.10:80")] {
        browser.evaluate(&format!(
            "document.querySelector('#packet-question [name={field}]').focus()"
        ))?;
        browser.press(text)?;
    }
    browser.press(ENTER)?;
    browser.wait_for_text("#packet-answer", &[no_agent])?;
    // The browser also logs responses with an error status.
    browser.errors().map(drop)?;

    // The rest uses recorded responses.
    browser.evaluate(&format!(
        "void (window.ownFetch = window.fetch, window.fetch = async (path) => Response.json(path.startsWith('trace') ? {TRACE} : {COMPARISON}))"
    ))?;
    browser.press(ENTER)?;
    let expected = [
        "It does not go where it should",
        "services",
        "or dnat to 10.0.2.4:8080",
    ];
    browser.wait_for_text("#packet-answer", &expected)?;
    browser.wait_for_count("#packet-answer ol > li", 3)?;
    stage.go_to("service/shop%2Fweb")?;
    let browser = &stage.browser;
    let expected = [
        "1 node without differences",
        "n2, n3",
        "! missing in the kernel",
        "n1",
    ];
    browser.wait_for_text("#service-answer", &expected)?;
    // Restore the page's own requests.
    browser
        .evaluate("void (window.fetch = window.ownFetch)")
        .map(drop)
}

/// A response about a Service that is missing on two nodes, with one node that does not answer.
const COMPARISON: &str = r#"{
    "summary": "1 node without differences, 2 with, 1 without an answer",
    "differing": [{"nodes": ["n2", "n3"], "lines": ["! missing in the kernel: services { x }"]}],
    "unanswered": [{"nodes": ["n1"], "lines": ["the Pod is gone"]}]
}"#;

/// A response about a packet that is forwarded incorrectly.
const TRACE: &str = r#"{
    "node": "n2", "agrees": false,
    "trace": {
        "packet": "10.0.1.9 -> 10.96.0.10:80/tcp", "assumedOrigin": null, "desired": "10.0.1.4:8080", "rulesOf": "kernel",
        "actual": "10.0.2.4:8080", "agree": false,
        "paths": [{"outcome": "10.0.2.4:8080", "steps": [
            {"kind": "base", "texts": ["prerouting"]},
            {"kind": {"chain": {"depth": 1}}, "texts": ["services"]},
            {"kind": "event", "texts": ["dnat to 10.0.1.4:8080", "dnat to 10.0.2.4:8080"]}
        ]}]
    }
}"#;

fn connection(stage: &mut Stage) -> Result<()> {
    // A tab from before the command was started again with the same --port.
    let browser = &stage.browser;
    browser.evaluate("void sessionStorage.setItem('token', '0123')")?;
    let token = json!(format!("token={}", stage.token()?));
    browser.evaluate(&format!("void (location.hash = {token})"))?;
    wait_for("the page to take the token", DEADLINE, || {
        let taken = browser.evaluate("sessionStorage.getItem('token') + location.hash")?;
        Ok((taken == json!(stage.token()?)).then_some(()))
    })?;
    browser.wait_for_text("#connection[data-state='live']", &["live"])?;
    stage.control_plane.stop_api_server();
    let place = "#connection[data-state='lost']";
    stage
        .browser
        .wait_for_text(place, &["not live: failed to watch ", "(since ", "Next: "])?;
    stage.control_plane.start_api_server()?;
    stage
        .browser
        .wait_for_text("#connection[data-state='live']", &["live"])
        .map(drop)
}

fn refusals(stage: &mut Stage) -> Result<()> {
    let config = Agent::config_builder().http_status_as_error(false);
    let agent: Agent = config.build().into();
    let url = |path: &str| Ok::<_, anyhow::Error>(format!("http://{}{path}", stage.host()?));
    let own = format!("Bearer {}", stage.token()?);
    let ask = |path: &str, host: &str, token: &str| -> Result<StatusCode> {
        let request = agent.get(url(path)?).header("Host", host);
        Ok(request.header("Authorization", token).call()?.status())
    };
    let host = stage.host()?;
    ensure!(ask("/changes", host, &own)? == StatusCode::OK);
    ensure!(ask("/", host, "")? == StatusCode::OK);
    for path in ["/", "/changes"] {
        let refused = ask(path, "attacker.example", &own)?;
        ensure!(refused == StatusCode::MISDIRECTED_REQUEST, "{refused}");
    }
    for token in ["", "Bearer 0123", "Bearer "] {
        let refused = ask("/changes", host, token)?;
        ensure!(refused == StatusCode::UNAUTHORIZED, "{token}: {refused}");
    }
    let posted = agent.post(url("/changes")?).header("Authorization", &own);
    let refused = posted.send_empty()?.status();
    ensure!(refused == StatusCode::METHOD_NOT_ALLOWED, "{refused}");
    Ok(())
}

/// Writes a screenshot to `docs/` if `UPDATE` is set.
fn picture(stage: &Stage, scheme: &str, name: &str) -> Result<()> {
    if env::var_os("UPDATE").is_none() {
        return Ok(());
    }
    stage.browser.prefer(scheme)?;
    let picture = stage.browser.picture()?;
    ensure!(
        picture.len() <= LARGEST_PICTURE,
        "{name} has {} bytes",
        picture.len()
    );
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures");
    fs::create_dir_all(&folder)?;
    let file = folder.join(format!("dashboard-{name}.png"));
    fs::write(&file, picture).with_context(|| format!("failed to write {}", file.display()))
}
