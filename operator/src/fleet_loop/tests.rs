use futures::stream;
use tokio::sync::mpsc;

use super::*;
use crate::fleet::Change;

/// Failure story T157: one event was taken in each 100 ms, and a rollout over 100 nodes that
/// reported within a second took ten times as long as its writes.
#[tokio::test(start_paused = true)]
async fn t157_events_that_come_one_by_one_are_taken_in_together() {
    // Like a connection: a buffer of one event, and the next one when its task has run.
    let (sender, receiver) = mpsc::channel(1);
    let feeding = tokio::spawn(async move {
        for number in 0..1000 {
            let deleted = Event::Node(Change::Deleted(format!("node-{number}")));
            if sender.send(deleted).await.is_err() {
                return;
            }
        }
        std::future::pending::<()>().await;
    });
    let next = |mut receiver: mpsc::Receiver<Event>| async {
        let event = receiver.recv().await?;
        Some((event, receiver))
    };
    let mut events: Events = stream::unfold(receiver, next).boxed();
    let mut count = 0;
    gather(&mut events, GATHER, |_| count += 1).await;
    assert_eq!(count, 1000);
    feeding.abort();
}
