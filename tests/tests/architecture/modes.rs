//! Checks that a kernel mechanism is one crate plus its entry in one list.

use crate::expect_none;
use crate::sources::{is_test, packages};

/// The only file outside its crate that must name a mode.
const LIST: &str = "list.rs";

/// The other files that may name a mode's crate, each with the reason.
const OTHERS: &[(&str, &str, &str)] = &[
    (
        "backend_iptables",
        "findings.rs",
        "names Signpost's chains in a condition",
    ),
    (
        "backend_iptables",
        "on_demand.rs",
        "opens tables that others use, too, only while Signpost's rules are in them",
    ),
    (
        "backend_iptables",
        "on_demand/inspect.rs",
        "as on_demand.rs",
    ),
    (
        "backend_iptables",
        "variants.rs",
        "chooses one of the two variants",
    ),
];

/// The modes not listed yet, each with the reason.
const UNLISTED: &[(&str, &str)] = &[];

/// Whether `text` names the crate outside comments.
fn names(text: &str, name: &str) -> bool {
    let lines = text.lines().map(str::trim_start);
    let mut code = lines.filter(|line| !line.starts_with("//"));
    code.any(|line| line.contains(name))
}

#[test]
fn a_mode_is_named_in_its_crate_and_in_the_list() {
    let packages = packages();
    let is_backend = |name: &str| name.starts_with("backend-");
    let backends: Vec<String> = packages
        .iter()
        .filter(|(package, _)| is_backend(&package.name))
        .map(|(package, _)| package.name.replace('-', "_"))
        .collect();
    assert!(backends.len() >= 2, "{backends:?}");
    let mut found = Vec::new();
    for (package, sources) in &packages {
        if is_backend(&package.name) || package.name == "tests" {
            continue;
        }
        for (path, text) in sources {
            let path = path.strip_prefix(package.folder()).unwrap_or(path);
            if is_test(path) {
                continue;
            }
            let path = path.strip_prefix("src").unwrap_or(path).to_string_lossy();
            for backend in backends.iter().filter(|backend| names(text, backend)) {
                found.push((backend.clone(), path.to_string()));
            }
        }
    }
    let is_known = |backend: &str, path: &str| {
        let mut others = OTHERS.iter();
        path == LIST || others.any(|(of, other, _)| (*of, *other) == (backend, path))
    };
    let strangers = found.iter().filter(|(b, p)| !is_known(b, p));
    let strangers: Vec<String> = strangers.map(|(b, p)| format!("{p} names {b}")).collect();
    expect_none("modes are named outside of their crate", &strangers);
    for backend in &backends {
        let is_listed = found.contains(&(backend.clone(), LIST.to_owned()));
        let is_to_come = UNLISTED.iter().any(|(unlisted, _)| unlisted == backend);
        assert!(
            is_listed != is_to_come,
            "{LIST} does not name {backend}, or names it and UNLISTED does, too"
        );
    }
    let is_gone = |(backend, path, _): &&(&str, &str, &str)| {
        !found.contains(&((*backend).to_owned(), (*path).to_owned()))
    };
    let gone = OTHERS.iter().filter(is_gone);
    let gone: Vec<String> = gone
        .map(|(b, p, _)| format!("{p} does not name {b}"))
        .collect();
    expect_none("exceptions that are none any more", &gone);
}

#[test]
fn naming_a_mode_is_found_in_code_alone() {
    assert!(names("use backend_nftables::TABLE;", "backend_nftables"));
    assert!(!names(
        "    /// As backend_nftables does.",
        "backend_nftables"
    ));
}
