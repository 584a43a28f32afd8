//! The counted outcomes of many connections.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Outcome;

/// The maximum number of failures stored with their message.
const FAILURES_KEPT: usize = 10;

/// The counts of the outcomes of consecutive connections.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// The number of answers by server.
    pub answered: BTreeMap<String, u64>,
    /// The number of refused connections.
    pub refused: u64,
    /// The number of connections without an answer in time.
    pub timed_out: u64,
    /// The number of other errors by error.
    pub failed: BTreeMap<String, u64>,
    /// The longest time without an answer, from the first connection to the end.
    pub longest_gap: Duration,
    /// The first failures of any sort, each with the time since the first connection.
    pub first_failures: Vec<(Duration, String)>,
    /// The time of the last answer since the first connection.
    last_answer: Duration,
}

impl Tally {
    /// Counts an outcome that was known at `since_start`.
    pub fn count(&mut self, outcome: &Outcome, since_start: Duration) {
        match outcome {
            Outcome::Answered { server, .. } => {
                *self.answered.entry(server.clone()).or_default() += 1;
                self.end(since_start);
                return;
            }
            Outcome::Refused => self.refused += 1,
            Outcome::TimedOut => self.timed_out += 1,
            Outcome::Failed(error) => *self.failed.entry(error.clone()).or_default() += 1,
        }
        if self.first_failures.len() < FAILURES_KEPT {
            self.first_failures.push((since_start, outcome.to_string()));
        }
    }

    /// Ends the present gap, because of an answer or the end of the requests.
    pub fn end(&mut self, since_start: Duration) {
        let gap = since_start.saturating_sub(self.last_answer);
        self.longest_gap = self.longest_gap.max(gap);
        self.last_answer = since_start;
    }

    /// Returns the number of answered connections.
    pub fn answers(&self) -> u64 {
        self.answered.values().sum()
    }

    /// Returns the number of failed connections.
    pub fn failures(&self) -> u64 {
        self.refused + self.timed_out + self.failed.values().sum::<u64>()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_server = self.answered.iter();
        let by_server: Vec<String> = by_server.map(|(s, n)| format!("{n} by {s}")).collect();
        write!(
            f,
            "{} answered ({}), {} refused, {} timed out",
            self.answers(),
            by_server.join(", "),
            self.refused,
            self.timed_out
        )?;
        for (error, count) in &self.failed {
            write!(f, ", {count} failed: {error}")?;
        }
        write!(f, "; longest gap {:?}", self.longest_gap)?;
        for (when, failure) in &self.first_failures {
            write!(f, "\n  after {when:?}: {failure}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Tally};
    use std::time::Duration;

    #[test]
    fn a_gap_ends_with_the_next_answer_or_with_the_last_question() {
        let answer: Outcome = "answered by web at 10.0.1.5:80 saw 10.0.1.9:4000"
            .parse()
            .expect("the text above is an outcome");
        let ms = Duration::from_millis;
        let mut tally = Tally::default();
        tally.count(&answer, ms(10));
        tally.count(&Outcome::Refused, ms(30));
        tally.count(&answer, ms(50));
        assert_eq!(tally.longest_gap, ms(40));
        tally.count(&Outcome::TimedOut, ms(130));
        tally.end(ms(150));
        assert_eq!(tally.longest_gap, ms(100));
        assert_eq!((tally.answers(), tally.failures()), (2, 2));
        assert_eq!(tally.first_failures[0], (ms(30), "refused".to_owned()));
    }
}
