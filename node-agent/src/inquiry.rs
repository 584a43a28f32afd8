//! What people may ask of the engine while it runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use catalog::{Unserved, View};
use dataplane::ServiceKey;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use crate::explain::Question;

/// How many may wait for an answer; one more waits to ask.
const WAITING: usize = 16;

/// A question on its way to the engine.
#[derive(Debug)]
pub(crate) struct Inquiry {
    question: Question,
    reply: oneshot::Sender<Told>,
}

/// Where questions are asked.
#[derive(Debug, Clone)]
pub(crate) struct Inquiries(mpsc::Sender<Inquiry>);

/// What a source has told about the Services that a question is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// Each of them, also those that nobody has told of.
    pub(crate) services: BTreeMap<ServiceKey, Standing>,
}

/// How one Service stands.
#[derive(Debug, Clone)]
pub(crate) enum Standing {
    /// It is to be programmed.
    Served {
        /// What it and its endpoints are.
        view: View,
        /// The names of its EndpointSlices.
        slices: Vec<Arc<str>>,
    },
    /// It is there, and none of ours.
    Unserved(Unserved),
    /// No such Service was told of, or nothing of it can be honoured.
    Unknown,
}

/// Nobody answers any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("failed to ask: the engine has ended")]
pub(crate) struct EngineGone;

// === impl Inquiries ===

impl Inquiries {
    /// Where to ask, and where the engine takes what is asked.
    pub(crate) fn new() -> (Inquiries, mpsc::Receiver<Inquiry>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Inquiries(sender), receiver)
    }

    /// What the engine was told about `question`.
    pub(crate) async fn ask(&self, question: Question) -> Result<Told, EngineGone> {
        let (reply, answer) = oneshot::channel();
        let inquiry = Inquiry { question, reply };
        self.0.send(inquiry).await.map_err(|_| EngineGone)?;
        answer.await.map_err(|_| EngineGone)
    }
}

// === impl Inquiry ===

impl Inquiry {
    /// Answers with what `tell` knows.
    pub(crate) fn answer(self, tell: impl FnOnce(&Question) -> Told) {
        // Who asked may have gone meanwhile.
        let _ = self.reply.send(tell(&self.question));
    }
}
