use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, socket};
use tokio::time::Instant;

use super::*;

/// A name for one test in this process.
fn name(test: &str) -> String {
    format!("{NAME}-{}-{test}", process::id())
}

/// An agent that holds `name` and identifies itself.
async fn hold(name: &str) -> (Listener, runtime::CancellationToken) {
    let listener = wait_for(name).await.expect("no process has it");
    let introductions = listener.try_clone().expect("a descriptor");
    let introductions = UnixListener::from_std(introductions).expect("it is registered");
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    let introduction = introduction("node-1");
    tokio::spawn(introduce(introductions, introduction, stop));
    (listener, stopper)
}

#[tokio::test]
async fn t83_a_second_agent_names_the_first_and_goes_on_when_that_has_ended() {
    let name = name("second");
    let (listener, stopper) = hold(&name).await;
    let mut reported = None;
    let patience = Duration::from_millis(300);
    let waiting = timeout(patience, attempt(&name, &mut reported)).await;
    assert!(waiting.is_err(), "{waiting:?}");
    let reported = reported.expect("it has said who it is");
    let expected = format!("process {}, for node node-1", process::id());
    assert!(reported.contains(&expected), "{reported}");

    let second = tokio::spawn(async move { wait_for(&name).await });
    // After a stop it may still be writing.
    stopper.cancel();
    sleep(patience).await;
    assert!(!second.is_finished());
    drop(listener);
    let second = timeout(INTRODUCED_WITHIN, second).await;
    let second = second.expect("it does not wait any more");
    assert!(second.expect("it does not panic").is_ok());
}

/// Any process that may create sockets on the node can create one of this name.
#[tokio::test]
async fn a_socket_that_no_process_listens_on_keeps_no_node_from_being_served() {
    let name = name("deaf");
    let deaf = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
    rustix::net::bind(&deaf, &address).expect("no process has it");
    let began = Instant::now();
    let waited = wait_for(&name).await;
    assert!(matches!(waited, Err(Reason::NotListening)), "{waited:?}");
    assert!(
        began.elapsed() >= PAUSE * NOT_LISTENING_ATTEMPTS,
        "an end is given its time"
    );
}

#[test]
fn a_holder_is_described_by_what_is_known_of_it() {
    let reported = |introduction: &str, process| describe(introduction.as_bytes(), process);
    let introduction = "signpost-agent 1, process 7, for node a\n";
    let text = "signpost-agent 1, process 7, for node a";
    assert_eq!(reported(introduction, Some(7)).as_deref(), Some(text));
    let expected = format!("{text} (here process 70)");
    assert_eq!(reported(introduction, Some(70)), Some(expected));
    let expected = format!("{text} (in another container)");
    assert_eq!(reported(introduction, None), Some(expected));
    assert_eq!(reported("", None), None);
    let expected = "process 7, which does not identify itself";
    assert_eq!(reported("", Some(7)).as_deref(), Some(expected));
    let made_up = "\u{1b}[2J\r\nfoo";
    assert_eq!(
        reported(made_up, None).as_deref(),
        Some("[2Jfoo (in another container)")
    );
}
