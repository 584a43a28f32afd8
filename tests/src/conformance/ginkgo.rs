//! Parses the report that ginkgo writes with `--json-report`.
//!
//! The fields are those of `Report` and `SpecReport` in github.com/onsi/ginkgo/v2, types/types.go;
//! the states are those of `EnumSupport` of `SpecState` there.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;

use super::selection::Omitted;
use super::{Group, Outcome};

/// The maximum length of a stored message. ginkgo's own report has the whole text.
const MESSAGE: usize = 300;

/// The content of a report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The outcome of each test that was started.
    pub tests: BTreeMap<Group, BTreeMap<String, Outcome>>,
    /// The number of tests that were not started, by reason.
    pub left_out: BTreeMap<Omitted, usize>,
}

/// Why a report cannot be used.
#[derive(Debug, Error)]
pub enum ReportError {
    /// It is not a ginkgo report.
    #[error("this is no report of ginkgo")]
    Unreadable(#[from] serde_json::Error),
    /// A step before or after all tests failed, so the outcomes are not reliable.
    #[error("the tests as a whole failed: {0}")]
    Whole(String),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WrittenReport {
    /// Reasons for a failure of the whole suite, such as an interruption.
    special_suite_failure_reasons: Option<Vec<String>>,
    spec_reports: Option<Vec<WrittenTest>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WrittenTest {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    failure: WrittenFailure,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WrittenFailure {
    #[serde(default)]
    message: String,
    #[serde(default)]
    forwarded_panic: String,
}

// === impl Report ===

impl Report {
    /// Parses a report.
    pub fn parse(text: &str) -> Result<Report, ReportError> {
        let written: Vec<WrittenReport> = serde_json::from_str(text)?;
        let mut report = Report::default();
        for part in written {
            let special = part.special_suite_failure_reasons.unwrap_or_default();
            if !special.is_empty() {
                return Err(ReportError::Whole(special.join("; ")));
            }
            for test in part.spec_reports.unwrap_or_default() {
                report.add(test)?;
            }
        }
        Ok(report)
    }

    fn add(&mut self, test: WrittenTest) -> Result<(), ReportError> {
        let failure = &test.failure;
        let is_test = test.leaf_node_type == "It";
        let outcome = match test.state.as_str() {
            "passed" => Outcome::Passed,
            // Tests that were never started have only a name.
            "skipped" | "pending" if failure.message.is_empty() => {
                if is_test {
                    *self.left_out.entry(Omitted::of(&test.name())).or_default() += 1;
                }
                return Ok(());
            }
            "skipped" => Outcome::Skipped {
                reason: in_one_line(&failure.message),
            },
            state => {
                let said = [state, &failure.message, &failure.forwarded_panic].join(" ");
                Outcome::Failed {
                    message: in_one_line(&said),
                }
            }
        };
        match outcome {
            Outcome::Failed { message } if !is_test => Err(ReportError::Whole(format!(
                "{} {message}",
                test.leaf_node_type
            ))),
            _ if !is_test => Ok(()),
            outcome => {
                let group = Group(test.container_hierarchy_texts.unwrap_or_default().join(" "));
                let tests = self.tests.entry(group).or_default();
                tests.insert(test.leaf_node_text, outcome);
                Ok(())
            }
        }
    }
}

// === impl WrittenTest ===

impl WrittenTest {
    /// Returns the name against which ginkgo matches the focus.
    fn name(&self) -> String {
        let containers = self.container_hierarchy_texts.iter().flatten();
        let texts: Vec<&str> = containers.map(String::as_str).collect();
        format!("{} {}", texts.join(" "), self.leaf_node_text)
    }
}

fn in_one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MESSAGE) {
        None => line,
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(texts: &[&str], name: &str, state: &str, message: &str) -> Value {
        json!({
            "ContainerHierarchyTexts": texts,
            "LeafNodeType": "It",
            "LeafNodeText": name,
            "State": state,
            "RunTime": 1_000_000_000_u64,
            "Failure": {"Message": message, "Location": {"LineNumber": 7}},
        })
    }

    fn report(specs: &[Value]) -> String {
        json!([{"SuiteSucceeded": true, "SpecialSuiteFailureReasons": null, "SpecReports": specs}])
            .to_string()
    }

    const SERVICES: &[&str] = &["[sig-network] Services"];

    #[test]
    fn each_test_has_its_outcome() {
        let nested = &["[sig-network] Networking", "Granular Checks: Services"];
        let text = report(&[
            spec(SERVICES, "a", "passed", ""),
            spec(SERVICES, "b", "failed", "it\n  is\tclosed"),
            spec(SERVICES, "c", "skipped", "too few nodes"),
            spec(nested, "d", "timedout", ""),
        ]);
        let report = Report::parse(&text).expect("it is a report");
        let services = &report.tests[&Group("[sig-network] Services".to_owned())];
        assert_eq!(services["a"], Outcome::Passed);
        let message = "failed it is closed".to_owned();
        assert_eq!(services["b"], Outcome::Failed { message });
        let reason = "too few nodes".to_owned();
        assert_eq!(services["c"], Outcome::Skipped { reason });
        let nested = Group("[sig-network] Networking Granular Checks: Services".to_owned());
        let message = "timedout".to_owned();
        assert_eq!(report.tests[&nested]["d"], Outcome::Failed { message });
        assert!(report.left_out.is_empty());
    }

    #[test]
    fn tests_that_were_not_begun_are_counted_by_reason() {
        let text = report(&[
            spec(SERVICES, "restarts [Disruptive]", "skipped", ""),
            spec(&["[sig-storage] Volumes"], "a", "skipped", ""),
            spec(&["[sig-storage] Volumes"], "b", "pending", ""),
        ]);
        let report = Report::parse(&text).expect("it is a report");
        assert!(report.tests.is_empty());
        let counts = [(Omitted::Disruptive, 1), (Omitted::OtherMatter, 2)];
        assert_eq!(report.left_out, BTreeMap::from(counts));
    }

    #[test]
    fn what_goes_before_all_tests_is_no_test_but_must_not_fail() {
        let before = |state: &str| {
            let mut before = spec(&[], "", state, "no node is ready");
            before["LeafNodeType"] = json!("SynchronizedBeforeSuite");
            before["ContainerHierarchyTexts"] = Value::Null;
            Report::parse(&report(&[before]))
        };
        assert_eq!(before("passed").expect("it is a report"), Report::default());
        let error = before("failed").expect_err("the whole has failed");
        let said = "the tests as a whole failed: SynchronizedBeforeSuite failed no node is ready";
        assert_eq!(error.to_string(), said);
    }

    #[test]
    fn an_interrupted_run_says_nothing_about_tests() {
        let text = json!([{
            "SpecialSuiteFailureReasons": ["Interrupted by User"],
            "SpecReports": [spec(SERVICES, "a", "passed", "")],
        }]);
        let error = Report::parse(&text.to_string()).expect_err("it was interrupted");
        assert_eq!(
            error.to_string(),
            "the tests as a whole failed: Interrupted by User"
        );
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let line = in_one_line(&"ü".repeat(MESSAGE + 1));
        assert_eq!(line.chars().count(), MESSAGE + 1);
        assert!(line.ends_with("ü…"));
    }
}
