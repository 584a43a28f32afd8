//! Checks that a kernel mechanism is one crate plus its entry in one list.

use std::collections::BTreeSet;

use crate::expect_none;
use crate::sources::{is_test, lines_of_code, packages};

/// The only file outside its crate that must name a mode.
const LIST: &str = "modes/list.rs";

/// The other files that may name a mode's crate, each with the reason.
const OTHERS: &[(&str, &str, &str)] = &[
    (
        "backend_iptables",
        "modes/findings.rs",
        "names Signpost's chains in a condition",
    ),
    (
        "backend_iptables",
        "modes/on_demand.rs",
        "opens tables that others use, too, only while Signpost's rules are in them",
    ),
    (
        "backend_iptables",
        "modes/on_demand/inspect.rs",
        "as on_demand.rs",
    ),
    (
        "backend_iptables",
        "modes/variants.rs",
        "chooses one of the two variants",
    ),
];

/// The modes not listed yet, each with the reason.
const UNLISTED: &[(&str, &str)] = &[];

/// The files that may name a mode by its variant of an enum, such as `Mode::Ipvs`, each with the reason.
const NAMES_A_MODE: &[(&str, &str)] = &[
    (LIST, "is the list"),
    ("dataplane/config.rs", "prints the names of modes"),
    (
        "dataplane/compile/capacity.rs",
        "what a mode can hold of one Service, asked before a backend is",
    ),
    (
        "dataplane/scheduler.rs",
        "which scheduler replaces one that the mode does not have",
    ),
    (
        "modes/profile_mode.rs",
        "converts the modes of profiles and those of the model",
    ),
    (
        "modes/findings.rs",
        "a variant of iptables is in use in mode iptables alone",
    ),
    (
        "crds/host_ports.rs",
        "compares where two proxies in any two modes send host ports",
    ),
    (
        "crds/profile/forwarding.rs",
        "defaults of fields that depend on the mode, as kube-proxy's do",
    ),
    (
        "crds/unsupported.rs",
        "fields of profiles that a mode does not read and no backend sees",
    ),
    (
        "foreign-proxy/lib.rs",
        "the modes of kube-proxy, which differ in what they leave in the kernel",
    ),
    ("foreign-proxy/kernel.rs", "as foreign-proxy/lib.rs"),
    ("foreign-proxy/node_ports.rs", "as foreign-proxy/lib.rs"),
    (
        "handover/takeover.rs",
        "removes what each mode of kube-proxy has left",
    ),
    (
        "handover/handback.rs",
        "checks the rules of each mode of kube-proxy",
    ),
    (
        "handover/kube_proxy_rules.rs",
        "as handover/handback.rs, before a takeover",
    ),
    (
        "kubectl-signpost/migrate/plan/host_ports.rs",
        "reads the mode of kube-proxy from the reason of a condition",
    ),
    (
        "agent-metrics/lib.rs",
        "kube-proxy has separate metrics for mode iptables",
    ),
    ("agent-metrics/iptables.rs", "as agent-metrics/lib.rs"),
    (
        "agent-metrics/connections.rs",
        "IPVS alone counts connections for the whole network namespace",
    ),
    (
        "node-agent/drift.rs",
        "the tables of iptables are polled only while the mode uses them",
    ),
    (
        "node-agent/variant_scan.rs",
        "scans the variants of iptables only while a profile selects mode iptables",
    ),
    (
        "node-agent/node_config.rs",
        "mode nftables alone has a flowtable",
    ),
];

/// The names in an enum of modes.
const VARIANTS: [&str; 3] = ["Nftables", "Iptables", "Ipvs"];

/// Whether `text` contains `name` before its tests and outside comments.
fn names(text: &str, name: &str) -> bool {
    let lines = text.lines().take(lines_of_code(text));
    let mut code = lines
        .map(str::trim_start)
        .filter(|line| !line.starts_with("//"));
    code.any(|line| line.contains(name))
}

/// Whether `text` names a mode by its variant of an enum.
fn names_a_mode(text: &str) -> bool {
    VARIANTS
        .iter()
        .any(|variant| names(text, &format!("Mode::{variant}")))
}

/// Returns the names of the crates of modes, and every file outside of them and of the tests: the package, the
/// path within its `src`, and the text.
fn backends_and_files() -> (Vec<String>, Vec<(String, String)>) {
    let is_backend = |name: &str| name.starts_with("backend-");
    let (mut backends, mut files) = (Vec::new(), Vec::new());
    for (package, sources) in packages() {
        if is_backend(&package.name) {
            backends.push(package.name.replace('-', "_"));
            continue;
        }
        if package.name == "tests" {
            continue;
        }
        for (path, text) in &sources {
            let path = path.strip_prefix(package.folder()).unwrap_or(path);
            if !is_test(path) {
                let path = path.strip_prefix("src").unwrap_or(path).to_string_lossy();
                files.push((format!("{}/{path}", package.name), text.clone()));
            }
        }
    }
    assert!(backends.len() >= 2, "{backends:?}");
    (backends, files)
}

/// Expects that exactly the `allowed` files name what is allowed there.
#[track_caller]
fn expect_only(allowed: &BTreeSet<(&str, &str)>, found: &BTreeSet<(&str, &str)>) {
    let lines = |pairs: &BTreeSet<(&str, &str)>, verb: &str| -> Vec<String> {
        let lines = pairs
            .iter()
            .map(|(name, path)| format!("{path} {verb} {name}"));
        lines.collect()
    };
    expect_none(
        "modes are named outside of their crate and the list",
        &lines(&(found - allowed), "names"),
    );
    expect_none(
        "files that this test lists and that name no mode any more",
        &lines(&(allowed - found), "does not name"),
    );
}

#[test]
fn a_mode_is_named_in_its_crate_and_in_the_list() {
    let (backends, files) = backends_and_files();
    let found = backends.iter().flat_map(|backend| {
        let naming = files.iter().filter(move |(_, text)| names(text, backend));
        naming.map(move |(path, _)| (&**backend, &**path))
    });
    let is_listed = |backend: &&String| {
        let mut unlisted = UNLISTED.iter();
        !unlisted.any(|(name, _)| name == backend)
    };
    let listed = backends.iter().filter(is_listed);
    let listed = listed.map(|backend| (&**backend, LIST));
    let others = OTHERS.iter().map(|(backend, path, _)| (*backend, *path));
    expect_only(&listed.chain(others).collect(), &found.collect());
}

#[test]
fn files_that_distinguish_modes_are_known() {
    let (_, files) = backends_and_files();
    let naming = files.iter().filter(|(_, text)| names_a_mode(text));
    let found = naming.map(|(path, _)| ("a mode", &**path)).collect();
    let known = NAMES_A_MODE.iter().map(|(path, _)| ("a mode", *path));
    expect_only(&known.collect(), &found);
}

#[test]
fn naming_a_mode_is_found_in_code_alone() {
    assert!(names("use backend_nftables::TABLE;", "backend_nftables"));
    assert!(!names(
        "    /// As backend_nftables does.",
        "backend_nftables"
    ));
    assert!(names_a_mode("if mode == ProfileMode::Ipvs {"));
    assert!(!names_a_mode("if mode == config.mode {"));
    assert!(!names_a_mode(
        "#[cfg(test)]\nmod tests {\n    const MODE: Mode = Mode::Ipvs;\n}\n"
    ));
}
