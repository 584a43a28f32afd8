//! The combined results of several runs, one proxy next to the other.

use std::collections::{BTreeMap, BTreeSet};

use super::{Group, Outcome, Proxy, Run};

/// The runs of both proxies.
#[derive(Debug, Clone, Default)]
pub struct Comparison(BTreeMap<Proxy, Column>);

/// The runs of one proxy.
#[derive(Debug, Clone)]
pub struct Column {
    // At least one run.
    runs: Vec<Run>,
}

/// A test, identified by its group and its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test<'a> {
    /// The group.
    pub group: &'a Group,
    /// The name in the group.
    pub name: &'a str,
}

/// The combined outcome of a test in all runs of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It passed in every run.
    Passed,
    /// It failed in at least one run; the message of the first failure.
    Failed(&'a str),
    /// It did not fail but skipped itself in at least one run, for this reason.
    Skipped(&'a str),
    /// It was not started in at least one run.
    NotRun,
}

// === impl Comparison ===

impl Comparison {
    /// Combines these runs.
    pub fn of(runs: Vec<Run>) -> Comparison {
        let mut columns: BTreeMap<Proxy, Column> = BTreeMap::new();
        for run in runs {
            let column = columns.entry(run.proxy);
            let column = column.or_insert_with(|| Column { runs: Vec::new() });
            column.runs.push(run);
        }
        Comparison(columns)
    }

    /// Returns the proxies that have runs, Signpost first.
    pub fn columns(&self) -> impl Iterator<Item = (Proxy, &Column)> {
        self.0.iter().map(|(proxy, column)| (*proxy, column))
    }

    /// Returns the runs of this proxy, if there are any.
    pub fn column(&self, proxy: Proxy) -> Option<&Column> {
        self.0.get(&proxy)
    }

    /// Returns every test that was started at least once, by group and name.
    pub fn tests(&self) -> BTreeSet<Test<'_>> {
        let runs = self.0.values().flat_map(Column::runs);
        let tests = runs.flat_map(Run::outcomes);
        tests.map(|(group, name, _)| Test { group, name }).collect()
    }

    /// Returns the tests that pass with kube-proxy but not with Signpost, if there are runs of
    /// both.
    pub fn regressions(&self) -> Vec<Test<'_>> {
        let columns = [Proxy::Signpost, Proxy::KubeProxy].map(|proxy| self.column(proxy));
        let [Some(signpost), Some(kube_proxy)] = columns else {
            return Vec::new();
        };
        let tests = self.tests().into_iter();
        tests
            .filter(|test| kube_proxy.verdict(*test) == Verdict::Passed)
            .filter(|test| signpost.verdict(*test) != Verdict::Passed)
            .collect()
    }

    /// Returns the tests that fail with this proxy.
    pub fn failures(&self, proxy: Proxy) -> Vec<Test<'_>> {
        let tests = self.tests().into_iter();
        tests.filter(|test| self.fails(proxy, *test)).collect()
    }

    /// Returns the tests that fail with this proxy but not with the other, if that has runs. A test
    /// that fails with both indicates a problem of the cluster or of the test.
    pub fn failures_alone(&self, proxy: Proxy) -> Vec<Test<'_>> {
        let other = |test: &Test<'_>| {
            let mut others = Proxy::ALL.into_iter().filter(|other| *other != proxy);
            others.any(|other| self.fails(other, *test))
        };
        let failures = self.failures(proxy).into_iter();
        failures.filter(|test| !other(test)).collect()
    }

    fn fails(&self, proxy: Proxy, test: Test<'_>) -> bool {
        let column = self.column(proxy);
        column.is_some_and(|column| matches!(column.verdict(test), Verdict::Failed(_)))
    }
}

// === impl Column ===

impl Column {
    /// Returns the runs, at least one.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the combined outcome of a test.
    pub fn verdict(&self, test: Test<'_>) -> Verdict<'_> {
        let outcomes = self
            .runs
            .iter()
            .map(|run| run.tests.get(test.group)?.get(test.name));
        let outcomes: Vec<Option<&Outcome>> = outcomes.collect();
        let failed = outcomes.iter().find_map(|outcome| match outcome {
            Some(Outcome::Failed { message }) => Some(message),
            _ => None,
        });
        if let Some(message) = failed {
            return Verdict::Failed(message);
        }
        if outcomes.iter().any(Option::is_none) {
            return Verdict::NotRun;
        }
        let skipped = outcomes.iter().find_map(|outcome| match outcome {
            Some(Outcome::Skipped { reason }) => Some(reason),
            _ => None,
        });
        skipped.map_or(Verdict::Passed, |reason| Verdict::Skipped(reason))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::conformance::Setting;
    use crate::conformance::selection::Omitted;

    pub(in crate::conformance) fn passed() -> Outcome {
        Outcome::Passed
    }

    pub(in crate::conformance) fn failed(message: &str) -> Outcome {
        let message = message.to_owned();
        Outcome::Failed { message }
    }

    pub(in crate::conformance) fn skipped(reason: &str) -> Outcome {
        let reason = reason.to_owned();
        Outcome::Skipped { reason }
    }

    /// Returns a run with tests of one group.
    pub(in crate::conformance) fn run(proxy: Proxy, tests: &[(&str, Outcome)]) -> Run {
        let version = match proxy {
            Proxy::Signpost => "0.1.0",
            Proxy::KubeProxy => "v1.36.2",
        };
        let tests = tests
            .iter()
            .map(|(name, outcome)| ((*name).to_owned(), outcome.clone()));
        Run {
            proxy,
            setting: Setting {
                kubernetes: "v1.36.2".to_owned(),
                proxy: version.to_owned(),
                kernel: "6.6.1".to_owned(),
                containers: "containerd://1.6.20".to_owned(),
                nodes: 3,
            },
            duration: Duration::from_secs(61),
            tests: BTreeMap::from([(group(), tests.collect())]),
            left_out: BTreeMap::from([(Omitted::Disruptive, 2), (Omitted::OtherMatter, 70)]),
        }
    }

    fn group() -> Group {
        Group("[sig-network] Services".to_owned())
    }

    fn names(tests: &[Test<'_>]) -> Vec<String> {
        tests.iter().map(|test| test.name.to_owned()).collect()
    }

    #[test]
    fn what_passes_has_passed_every_time() {
        let runs = [passed(), failed("closed"), failed("late")];
        let runs = runs.map(|outcome| run(Proxy::Signpost, &[("a", outcome)]));
        let comparison = Comparison::of(runs.to_vec());
        let group = group();
        let test = Test {
            group: &group,
            name: "a",
        };
        let signpost = comparison.column(Proxy::Signpost).expect("there are runs");
        assert_eq!(signpost.verdict(test), Verdict::Failed("closed"));
        assert_eq!(names(&comparison.failures(Proxy::Signpost)), ["a"]);
    }

    #[test]
    fn a_test_that_one_run_has_not_does_not_pass() {
        let runs = [
            run(Proxy::Signpost, &[("a", passed())]),
            run(Proxy::Signpost, &[]),
        ];
        let comparison = Comparison::of(runs.to_vec());
        let group = group();
        let test = Test {
            group: &group,
            name: "a",
        };
        let signpost = comparison.column(Proxy::Signpost).expect("there are runs");
        assert_eq!(signpost.verdict(test), Verdict::NotRun);
    }

    #[test]
    fn what_kube_proxy_passes_has_to_pass() {
        let signpost = [
            ("a", passed()),
            ("b", skipped("no")),
            ("c", failed("closed")),
            ("d", failed("closed")),
        ];
        let kube_proxy = [
            ("a", passed()),
            ("b", passed()),
            ("c", failed("closed")),
            ("d", passed()),
            ("e", passed()),
        ];
        let comparison = Comparison::of(vec![
            run(Proxy::Signpost, &signpost),
            run(Proxy::KubeProxy, &kube_proxy),
        ]);
        assert_eq!(names(&comparison.regressions()), ["b", "d", "e"]);
        assert_eq!(names(&comparison.failures(Proxy::Signpost)), ["c", "d"]);
        assert_eq!(names(&comparison.failures(Proxy::KubeProxy)), ["c"]);
        assert_eq!(names(&comparison.failures_alone(Proxy::Signpost)), ["d"]);
        assert!(comparison.failures_alone(Proxy::KubeProxy).is_empty());
    }

    #[test]
    fn with_one_proxy_alone_nothing_is_worse_than_the_other() {
        let comparison = Comparison::of(vec![run(Proxy::Signpost, &[("a", failed("closed"))])]);
        assert!(comparison.regressions().is_empty());
        assert_eq!(names(&comparison.failures_alone(Proxy::Signpost)), ["a"]);
    }
}
