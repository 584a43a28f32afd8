//! Damaged inputs for parsers, derived from valid ones.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

/// The most bytes that one step repeats or adds. Large inputs need a separate test.
const LONGEST: usize = 4096;

/// Bytes as input of a parser. Printed as escaped Rust text.
#[derive(Clone, PartialEq, Eq)]
pub struct Input(pub Vec<u8>);

/// One step of damage. Places and lengths are relative to the input.
#[derive(Debug, Clone)]
enum Step {
    /// Replaces one byte.
    Replace(Index, u8),
    /// Flips one bit.
    Flip(Index, u8),
    /// Removes a range.
    Remove(Index, usize),
    /// Repeats a range several times.
    Repeat(Index, usize, usize),
    /// Inserts a copy of a range of this or another input.
    Copy(Index, Index, Index, usize),
    /// Inserts a word that the parser interprets.
    Say(Index, Index),
    /// Inserts random bytes.
    Insert(Index, Vec<u8>),
    /// Cuts off the rest.
    Cut(Index),
}

/// Reads every file of a folder, by name: inputs that once caused failures, or valid ones to start
/// from.
///
/// # Panics
///
/// If the folder cannot be read or is empty, since then nothing would be tested.
pub fn corpus(folder: &Path) -> Vec<(PathBuf, Input)> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| {
            entry
                .expect("a folder that was opened can be listed")
                .path()
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "nothing in {folder:?}");
    let read = |path: PathBuf| match fs::read(&path) {
        Ok(bytes) => (path, Input(bytes)),
        Err(error) => panic!("{path:?}: {error}"),
    };
    files.into_iter().map(read).collect()
}

/// Generates one of `good` after a few steps of damage, where `words` are inputs that the parser
/// interprets; sometimes random bytes.
///
/// # Panics
///
/// If there is no good input or no word.
pub fn damaged(good: Vec<Input>, words: Vec<Vec<u8>>) -> impl Strategy<Value = Input> {
    assert!(
        !good.is_empty() && !words.is_empty(),
        "nothing to start from"
    );
    let noise = vec(any::<u8>(), 0..400).prop_map(Input);
    let harmed = (any::<Index>(), vec(steps(), 0..10)).prop_map(move |(which, steps)| {
        let mut bytes = which.get(&good).0.clone();
        for step in &steps {
            apply(&mut bytes, step, &good, &words);
        }
        Input(bytes)
    });
    prop_oneof![1 => noise, 15 => harmed]
}

/// Runs `test` with values of `strategy`, `factor` times as many as proptest's default: 256, or
/// `PROPTEST_CASES`. Failing inputs are not persisted: add them to a corpus.
///
/// # Panics
///
/// With the smallest value found for which `test` fails or panics.
pub fn try_many<S: Strategy>(
    factor: u32,
    strategy: &S,
    test: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let mut config = Config::default();
    config.cases = config.cases.saturating_mul(factor);
    config.failure_persistence = None;
    if let Err(error) = TestRunner::new(config).run(strategy, test) {
        panic!("{error}");
    }
}

fn steps() -> impl Strategy<Value = Step> {
    let place = any::<Index>;
    // Mostly the length of a field, sometimes of a whole part.
    let length = || prop_oneof![8 => 1usize..16, 2 => 1usize..200, 1 => 1usize..LONGEST];
    prop_oneof![
        (place(), any::<u8>()).prop_map(|(at, byte)| Step::Replace(at, byte)),
        (place(), 0u8..8).prop_map(|(at, bit)| Step::Flip(at, bit)),
        (place(), length()).prop_map(|(at, length)| Step::Remove(at, length)),
        (place(), length(), 1usize..20).prop_map(|(at, length, n)| Step::Repeat(at, length, n)),
        (place(), place(), place(), length())
            .prop_map(|(at, of, from, length)| Step::Copy(at, of, from, length)),
        (place(), place()).prop_map(|(at, word)| Step::Say(at, word)),
        (place(), vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Step::Insert(at, bytes)),
        place().prop_map(Step::Cut),
    ]
}

fn apply(bytes: &mut Vec<u8>, step: &Step, others: &[Input], words: &[Vec<u8>]) {
    // A place may be the end, where bytes can be added but not changed.
    let place = |at: &Index, bytes: &[u8]| at.index(bytes.len() + 1);
    let stretch = |start: usize, length: usize, of: &[u8]| start..of.len().min(start + length);
    match step {
        Step::Replace(at, byte) => {
            let at = place(at, bytes);
            bytes.iter_mut().skip(at).take(1).for_each(|b| *b = *byte);
        }
        Step::Flip(at, bit) => {
            let at = place(at, bytes);
            bytes
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|b| *b ^= 1 << bit);
        }
        Step::Remove(at, length) => {
            let start = place(at, bytes);
            bytes.drain(stretch(start, *length, bytes));
        }
        Step::Repeat(at, length, times) => {
            let start = place(at, bytes);
            let part = bytes[stretch(start, *length, bytes)].to_vec();
            let times = (*times).min(LONGEST / part.len().max(1));
            bytes.splice(start..start, part.repeat(times));
        }
        Step::Copy(at, of, from, length) => {
            let other = &of.get(others).0;
            let from = place(from, other);
            let part = other[stretch(from, *length, other)].to_vec();
            let at = place(at, bytes);
            bytes.splice(at..at, part);
        }
        Step::Say(at, word) => {
            let at = place(at, bytes);
            bytes.splice(at..at, word.get(words).iter().copied());
        }
        Step::Insert(at, inserted) => {
            let at = place(at, bytes);
            bytes.splice(at..at, inserted.iter().copied());
        }
        Step::Cut(at) => bytes.truncate(place(at, bytes)),
    }
}

// === impl Input ===

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::{Input, damaged};
    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;

    #[test]
    fn damage_is_done_to_some_and_not_to_all() {
        let good = vec![Input(b"spec: {}".to_vec()), Input(Vec::new())];
        let strategy = damaged(good.clone(), vec![b"&anchor".to_vec()]);
        let mut runner = TestRunner::deterministic();
        let inputs: Vec<Input> = (0..500)
            .map(|_| strategy.new_tree(&mut runner).expect("a tree").current())
            .collect();
        let of = |desired: &dyn Fn(&Input) -> bool| inputs.iter().filter(|i| desired(i)).count();
        assert!(of(&|input| good.contains(input)) > 5);
        assert!(of(&|input| !good.contains(input)) > 300);
        assert!(of(&|input| input.0.windows(7).any(|part| part == b"&anchor")) > 20);
    }

    #[test]
    fn an_input_prints_as_what_it_can_be_read_from() {
        assert_eq!(
            format!("{:?}", Input(vec![0, b'a', 0xff])),
            r#"b"\x00a\xff""#
        );
    }
}
