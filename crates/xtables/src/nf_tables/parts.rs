//! Splits a step that is too large to commit at once.

use std::borrow::Cow;

use super::{Cause, Failure};
use crate::TableChange;

/// Why a step did not fully take effect, and how many of its parts did.
pub(super) struct Incomplete {
    pub(super) done: usize,
    pub(super) failure: Failure,
}

/// Commits `change` by calling `commit`. Splits a part that is too large for the kernel or the
/// socket in halves, as often as necessary, where `change` `may_end` after that many of its chains.
/// `commit` returns whether there was anything to write. Returns the number of transactions.
pub(super) fn in_parts(
    change: &TableChange,
    may_end: impl Fn(usize) -> bool,
    mut commit: impl FnMut(&TableChange) -> Result<bool, Failure>,
) -> Result<usize, Incomplete> {
    let (mut transactions, mut done) = (0, 0);
    // Each with the number of chains before it.
    let mut parts = vec![(0, Cow::Borrowed(change))];
    while let Some((before, part)) = parts.pop() {
        match commit(&part) {
            Ok(written) => {
                transactions += usize::from(written);
                done += 1;
            }
            Err(failure) => {
                let halves = || part.halves(|chains| may_end(before + chains));
                let halves = (failure.cause == Cause::Size).then(halves);
                let Some([first, second]) = halves.flatten() else {
                    return Err(Incomplete { done, failure });
                };
                let border = before + first.chains.len();
                parts.push((border, Cow::Owned(second)));
                parts.push((before, Cow::Owned(first)));
            }
        }
    }
    Ok(transactions)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::io::Errno;

    use super::*;
    use crate::{BuiltIn, Fault, Rule, TableName, Target};

    /// A change that writes chains with these numbers of rules, enters the last one, and removes a
    /// chain.
    fn change(chains: &[usize]) -> TableChange {
        let rule = Rule::always(Target::Return);
        let chains = chains.iter().enumerate().map(|(number, rules)| {
            let name: Arc<str> = format!("SIGNPOST-{number}").into();
            (name, vec![rule.clone(); *rules].into())
        });
        TableChange {
            chains: chains.collect(),
            entries: vec![(BuiltIn::Output, vec![rule.clone()])],
            removed: vec!["SIGNPOST-GONE".into()],
            ..TableChange::new(TableName::Nat)
        }
    }

    fn failure(cause: Cause) -> Failure {
        Failure {
            fault: Fault::Passing,
            cause,
            source: std::io::Error::from(Errno::NOMEM).into(),
        }
    }

    /// The parts that a kernel commits which refuses more than `most` rules at once.
    fn reported(change: &TableChange, most: usize) -> Result<Vec<TableChange>, Incomplete> {
        reported_ending(change, most, |_| true)
    }

    /// The same where the change may end only after some numbers of chains.
    fn reported_ending(
        change: &TableChange,
        most: usize,
        may_end: fn(usize) -> bool,
    ) -> Result<Vec<TableChange>, Incomplete> {
        let mut reported = Vec::new();
        let transactions = in_parts(change, may_end, |part| {
            if part.rules() > most {
                return Err(failure(Cause::Size));
            }
            reported.push(part.clone());
            Ok(true)
        })?;
        assert_eq!(transactions, reported.len());
        Ok(reported)
    }

    #[test]
    fn what_memory_does_not_last_for_goes_in_halves_in_the_same_order() {
        let whole = change(&[3, 1, 4, 1, 5, 9, 2, 6]);
        for most in 10..=32 {
            let reported = reported(&whole, most).ok().expect("the parts are taken");
            assert!(reported.iter().all(|part| part.rules() <= most));
            let (last, others) = reported.split_last().expect("there are parts");
            let chains: Vec<_> = reported
                .iter()
                .flat_map(|part| part.chains.clone())
                .collect();
            assert_eq!(chains, whole.chains);
            let only_chains =
                |part: &TableChange| part.entries.is_empty() && part.removed.is_empty();
            assert!(others.iter().all(only_chains));
            assert_eq!(
                (&last.entries, &last.removed),
                (&whole.entries, &whole.removed)
            );
        }
        assert_eq!(reported(&whole, 32).ok(), Some(vec![whole]));
    }

    /// T458: halves ended wherever the half of the rules was.
    #[test]
    fn t458_halves_end_where_the_change_may_end() {
        let whole = change(&[1; 40]);
        let may_end = |chains| chains % 7 == 3;
        let parts = reported_ending(&whole, 8, may_end);
        let parts = parts.ok().expect("the parts are taken");
        let mut written = 0;
        let (last, others) = parts.split_last().expect("there are parts");
        for part in others {
            written += part.chains.len();
            assert!(may_end(written), "{written}");
        }
        assert_eq!(written + last.chains.len(), 40);
        let incomplete = reported_ending(&whole, 8, |_| false);
        let incomplete = incomplete.expect_err("it may not be split");
        assert_eq!(
            (incomplete.done, incomplete.failure.cause),
            (0, Cause::Size)
        );
    }

    #[test]
    fn a_chain_that_is_too_long_by_itself_fails_and_so_does_everything_else() {
        let incomplete = reported(&change(&[1, 2, 50]), 20).expect_err("50 are too many");
        assert_eq!(incomplete.done, 1);
        let mut asked = 0;
        let anywhere = |_| true;
        let other = in_parts(&change(&[1, 1]), anywhere, |_| {
            asked += 1;
            Err(failure(Cause::Other))
        });
        assert_eq!((other.err().map(|error| error.done), asked), (Some(0), 1));
    }
}
