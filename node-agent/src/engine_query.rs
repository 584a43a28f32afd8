//! Queries to the running engine.

use inspect::{QueryResult, Question};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

/// How many queries may wait for an answer. Further senders wait.
const WAITING: usize = 16;

/// A question for the engine, and the channel for its answer.
#[derive(Debug)]
pub(crate) struct EngineQuery {
    question: Question,
    reply: oneshot::Sender<QueryResult>,
}

/// Sends queries to the engine.
#[derive(Debug, Clone)]
pub(crate) struct EngineQueries(mpsc::Sender<EngineQuery>);

/// The engine has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("failed to query the engine: its task has ended")]
pub(crate) struct EngineGone;

// === impl EngineQueries ===

impl EngineQueries {
    /// Returns a sender of queries, and the receiver for the engine.
    pub(crate) fn new() -> (EngineQueries, mpsc::Receiver<EngineQuery>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (EngineQueries(sender), receiver)
    }

    /// Asks the engine and waits for the answer.
    pub(crate) async fn ask(&self, question: Question) -> Result<QueryResult, EngineGone> {
        let (reply, answer) = oneshot::channel();
        let query = EngineQuery { question, reply };
        self.0.send(query).await.map_err(|_| EngineGone)?;
        answer.await.map_err(|_| EngineGone)
    }
}

// === impl EngineQuery ===

impl EngineQuery {
    /// Answers with the result of `answer_with`.
    pub(crate) fn answer(self, answer_with: impl FnOnce(&Question) -> QueryResult) {
        // The client may have disconnected.
        let _ = self.reply.send(answer_with(&self.question));
    }
}
