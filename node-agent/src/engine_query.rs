//! Queries of the running engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use catalog::{Unserved, View};
use dataplane::ServiceKey;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use crate::explain::Question;

/// How many may wait for an answer; one more waits to ask.
const WAITING: usize = 16;

/// A question for the engine, and where it sends the answer.
#[derive(Debug)]
pub(crate) struct EngineQuery {
    question: Question,
    reply: oneshot::Sender<QueryResult>,
}

/// Sends queries to the engine.
#[derive(Debug, Clone)]
pub(crate) struct EngineQueries(mpsc::Sender<EngineQuery>);

/// What the source delivered about the Services that a question is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueryResult {
    /// Each of them, also those that the source does not have.
    pub(crate) services: BTreeMap<ServiceKey, ServiceState>,
}

/// The state of one Service in the catalog.
#[derive(Debug, Clone)]
pub(crate) enum ServiceState {
    /// It is to be programmed.
    Served {
        /// What it and its endpoints are.
        view: View,
        /// The names of its EndpointSlices.
        slices: Vec<Arc<str>>,
    },
    /// It exists, but Signpost does not serve it.
    Unserved(Unserved),
    /// The source has no such Service, or all of it is rejected.
    Unknown,
}

/// The engine has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("failed to query the engine: its task has ended")]
pub(crate) struct EngineGone;

// === impl EngineQueries ===

impl EngineQueries {
    /// A sender of queries, and the receiver for the engine.
    pub(crate) fn new() -> (EngineQueries, mpsc::Receiver<EngineQuery>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (EngineQueries(sender), receiver)
    }

    /// What the engine knows about `question`.
    pub(crate) async fn ask(&self, question: Question) -> Result<QueryResult, EngineGone> {
        let (reply, answer) = oneshot::channel();
        let query = EngineQuery { question, reply };
        self.0.send(query).await.map_err(|_| EngineGone)?;
        answer.await.map_err(|_| EngineGone)
    }
}

// === impl EngineQuery ===

impl EngineQuery {
    /// Answers with what `tell` knows.
    pub(crate) fn answer(self, tell: impl FnOnce(&Question) -> QueryResult) {
        // The client may have gone meanwhile.
        let _ = self.reply.send(tell(&self.question));
    }
}
