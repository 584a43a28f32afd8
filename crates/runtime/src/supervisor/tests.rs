use std::future::pending;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::*;

const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Debug, Error)]
#[error("disk full")]
struct DiskFull;

fn fall_over(slot: u8) {
    panic!("slot {slot}")
}

fn signals() -> (UnboundedSender<Signal>, Signals) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, Signals::from_channel(receiver))
}

/// Supervises the tasks of `start` until the end, without any signal.
async fn end_of(start: impl FnOnce(&Supervisor) + Send + 'static) -> End {
    let (_sender, signals) = signals();
    let supervised = supervise(signals, GRACE, Handle::current(), |supervisor| async move {
        start(&supervisor);
    });
    timeout(DEADLINE, supervised).await.expect("a task ends")
}

#[track_caller]
fn assert_ended(end: &End, name: &str, how: &str) {
    match end {
        End::TaskEnded { task, end } => {
            assert_eq!(task, name);
            assert_eq!(
                end.as_ref().err().map_or_else(
                    || "returned".to_owned(),
                    |error| chain(&**error).to_string()
                ),
                how
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(end.exit_code(), 1);
}

#[tokio::test]
async fn any_task_that_ends_is_the_end() {
    let end = end_of(|supervisor| supervisor.spawn("a", async {})).await;
    assert_ended(&end, "a", "returned");
    let end = end_of(|supervisor| supervisor.spawn("b", async { Err::<(), _>(DiskFull) })).await;
    assert_ended(&end, "b", "disk full");
    let end = end_of(|supervisor| supervisor.spawn("c", async { fall_over(7) })).await;
    assert_ended(&end, "c", "panicked: slot 7");
}

#[tokio::test]
async fn so_is_any_thread() {
    let end = end_of(|supervisor| supervisor.spawn_thread("a", |_| ())).await;
    assert_ended(&end, "a", "returned");
    let end = end_of(|supervisor| supervisor.spawn_thread("b", |_| Err::<(), _>(DiskFull))).await;
    assert_ended(&end, "b", "disk full");
    let end = end_of(|supervisor| supervisor.spawn_thread("c", |_| fall_over(7))).await;
    assert_ended(&end, "c", "panicked: slot 7");
}

#[tokio::test]
async fn a_start_that_fails_is_the_end() {
    let (_sender, signals) = signals();
    let supervised = supervise(signals, GRACE, Handle::current(), |_| async {
        Err::<(), _>(DiskFull)
    });
    let end = timeout(DEADLINE, supervised).await.expect("it failed");
    assert_ended(&end, "start", "disk full");
}

#[tokio::test]
async fn the_others_are_reported_to_stop_when_one_ends() {
    let (reported, was_reported) = oneshot::channel();
    let end = end_of(|supervisor| {
        let stop = supervisor.stop();
        supervisor.spawn("other", async move {
            stop.cancelled().await;
            let _ = reported.send(());
        });
        supervisor.spawn("first", async { Err::<(), _>(DiskFull) });
    })
    .await;
    assert_ended(&end, "first", "disk full");
    was_reported.await.expect("the other task was told");
}

#[tokio::test]
async fn a_task_may_start_tasks() {
    let end = end_of(|supervisor| {
        let inner = supervisor.clone();
        supervisor.spawn("outer", async move {
            inner.spawn("inner", async { Err::<(), _>(DiskFull) });
            inner.stop().cancelled().await;
        });
    })
    .await;
    assert_ended(&end, "inner", "disk full");
}

#[tokio::test]
async fn after_a_signal_tasks_and_threads_end_in_order_and_all_is_well() {
    let (sender, signals) = signals();
    let supervised = supervise(
        signals,
        DEADLINE,
        Handle::current(),
        move |supervisor| async move {
            let stop = supervisor.stop();
            supervisor.spawn("task", async move { stop.cancelled().await });
            let handle = Handle::current();
            supervisor.spawn_thread("thread", move |stop| handle.block_on(stop.cancelled()));
            let stop = supervisor.stop();
            supervisor.spawn("fails late", async move {
                stop.cancelled().await;
                Err::<(), _>(DiskFull)
            });
            sender
                .send(Signal::Terminate)
                .expect("the supervisor listens");
            pending::<()>().await;
        },
    );
    let end = timeout(DEADLINE, supervised)
        .await
        .expect("all were told to stop");
    assert!(
        matches!(&end, End::Stopped { overdue } if overdue.is_empty()),
        "{end:?}"
    );
    assert_eq!(end.exit_code(), 0);
}

#[tokio::test(start_paused = true)]
async fn grace_is_bounded_and_names_who_overran_it() {
    let (sender, signals) = signals();
    let began = tokio::time::Instant::now();
    let end = supervise(
        signals,
        GRACE,
        Handle::current(),
        move |supervisor| async move {
            let signal = sender.clone();
            supervisor.spawn("stubborn", async move {
                signal
                    .send(Signal::Interrupt)
                    .expect("the supervisor listens");
                pending::<()>().await;
            });
            let stop = supervisor.stop();
            supervisor.spawn("obedient", async move { stop.cancelled().await });
        },
    )
    .await;
    assert_eq!(began.elapsed().as_secs(), GRACE.as_secs());
    assert!(
        matches!(&end, End::Stopped { overdue } if overdue == &["stubborn"]),
        "{end:?}"
    );
    assert_eq!(end.exit_code(), 0);
}

#[tokio::test(start_paused = true)]
async fn another_signal_ends_the_grace_at_once() {
    for (signal, code) in [(Signal::Terminate, 143), (Signal::Interrupt, 130)] {
        let (sender, signals) = signals();
        let began = tokio::time::Instant::now();
        let end = supervise(
            signals,
            GRACE,
            Handle::current(),
            move |supervisor| async move {
                let stop = supervisor.stop();
                supervisor.spawn("stubborn", async move {
                    sender
                        .send(Signal::Terminate)
                        .expect("the supervisor listens");
                    stop.cancelled().await;
                    sender.send(signal).expect("the supervisor still listens");
                    pending::<()>().await;
                });
            },
        )
        .await;
        assert_eq!(began.elapsed().as_secs(), 0);
        assert!(matches!(end, End::Forced(got) if got == signal), "{end:?}");
        assert_eq!(end.exit_code(), code);
    }
}
