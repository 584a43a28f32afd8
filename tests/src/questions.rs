//! Clients that are asked while the agent stands still.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::deadline::patience;
use crate::network::{Outcome, Way};

/// How long a client waits that was never answered: an answer takes milliseconds.
const IN_VAIN: Duration = Duration::from_millis(100);
/// How long one waits that was.
const FOR_AN_ANSWER: Duration = Duration::from_secs(5);

/// Clients, and what became of them. Once one was answered, it must be, by a server of its Service. Before
/// that, it gets what it got without rules, or no answer.
#[derive(Debug)]
pub struct Questions(Vec<Client>);

/// A client of a Service.
#[derive(Debug)]
pub struct Client {
    /// How it asks.
    pub way: Way,
    /// The servers of the Service.
    pub servers: Vec<String>,
    /// What it got when it was asked for the first time.
    pub at_first: Option<Outcome>,
    /// Whether it must be served.
    pub is_served: bool,
}

// === impl Questions ===

impl Questions {
    /// Asks for the first time. Fails if one is to be served already and is not.
    pub fn begin(clients: Vec<Client>) -> Result<Questions> {
        let mut questions = Questions(clients);
        questions.ask("at first")?;
        Ok(questions)
    }

    /// Asks again.
    pub fn ask(&mut self, moment: &str) -> Result<()> {
        let asked = thread::scope(|scope| {
            let asked = self.0.iter().map(|client| {
                let deadline = match client.is_served {
                    true => FOR_AN_ANSWER,
                    false => IN_VAIN,
                };
                scope.spawn(move || client.way.observe_once(patience(deadline)))
            });
            let asked: Vec<_> = asked.collect();
            let joined = asked.into_iter().map(|client| client.join());
            let joined = joined.map(|outcome| outcome.expect("a client does not panic"));
            joined.collect::<Result<Vec<_>>>()
        })?;
        for (client, outcome) in self.0.iter_mut().zip(asked) {
            client.take(outcome, moment)?;
        }
        Ok(())
    }

    /// Asks for the last time: all are served.
    pub fn finish(mut self) -> Result<()> {
        for client in &mut self.0 {
            client.is_served = true;
        }
        self.ask("in the end")
    }
}

// === impl Client ===

impl Client {
    fn take(&mut self, outcome: Outcome, moment: &str) -> Result<()> {
        let is_right = match &outcome {
            Outcome::Answered { server, .. } => self.servers.contains(server),
            _ => false,
        };
        let is_good = match &self.at_first {
            _ if is_right => true,
            _ if self.is_served => false,
            None => true,
            Some(at_first) => outcome == Outcome::TimedOut || outcome == *at_first,
        };
        let (way, at_first) = (&self.way, &self.at_first);
        ensure!(
            is_good,
            "{moment}: {way}: {outcome}, and at first {at_first:?}"
        );
        self.is_served |= is_right;
        self.at_first.get_or_insert(outcome);
        Ok(())
    }
}
