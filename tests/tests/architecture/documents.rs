//! Checks that documents lead to what exists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::paths::text_files;
use crate::{expect_none, metadata};

/// The document that names the test of each failure.
const FAILURES: &str = "docs/failures.md";

/// Returns the relative paths that `text` links to, without sections.
fn links(text: &str) -> Vec<&str> {
    let after_texts = text.split("](").skip(1);
    let targets = after_texts.filter_map(|rest| rest.split([')', '#', ' ', '\n']).next());
    targets
        .filter(|target| !target.is_empty() && !target.contains(':') && !target.contains('['))
        .collect()
}

/// Returns the names of tests in backticks, without what follows `::`: some tests run several times.
fn test_names(text: &str) -> BTreeSet<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let names = quoted.filter_map(|name| name.split("::").next());
    let is_number = |name: &str| {
        let digits = name
            .strip_prefix('t')
            .and_then(|rest| rest.split('_').next());
        digits.is_some_and(|digits| digits.parse::<u16>().is_ok())
    };
    names.filter(|name| is_number(name)).collect()
}

fn files(root: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    text_files(root, &mut found);
    found
}

#[test]
fn every_link_leads_to_a_file() {
    let mut found = Vec::new();
    for (path, text) in files(&metadata().workspace_root) {
        let Some(folder) = path
            .parent()
            .filter(|_| path.extension() == Some("md".as_ref()))
        else {
            continue;
        };
        let lost = links(&text)
            .into_iter()
            .filter(|link| !folder.join(link).exists());
        found.extend(lost.map(|link| format!("{}: {link}", path.display())));
    }
    expect_none("links that lead nowhere", &found);
}

#[test]
fn every_test_of_a_failure_exists() {
    let files = files(&metadata().workspace_root);
    let (documents, sources): (Vec<_>, Vec<_>) =
        files.iter().partition(|(path, _)| path.ends_with(FAILURES));
    let (_, failures) = documents.first().expect("the document exists");
    let sources: String = sources
        .into_iter()
        .filter(|(path, _)| path.extension() == Some("rs".as_ref()))
        .map(|(_, text)| text.as_str())
        .collect();
    let names = test_names(failures);
    assert!(names.len() > 200, "{} names", names.len());
    let lost: Vec<String> = names
        .into_iter()
        .filter(|name| !sources.contains(name))
        .map(str::to_owned)
        .collect();
    expect_none("tests that do not exist", &lost);
}

#[test]
fn links_and_names_of_tests_are_found() {
    let text = "[a](b.md#c), [d](https://example.org/), [e](#f), `t12_it_works::IPv4` of `tests`";
    assert_eq!(links(text), ["b.md"]);
    assert_eq!(test_names(text), BTreeSet::from(["t12_it_works"]));
}
