//! Checks the direction of dependencies between packages.

use std::collections::BTreeSet;

use crate::{Dependency, Metadata, Package, expect_none, metadata};

/// The packages of this workspace on which a package may depend.
#[derive(Debug)]
enum May {
    /// Only these packages.
    Use(&'static [&'static str]),
    /// All packages except these.
    UseAllBut(&'static [&'static str]),
}

/// The rule for each package. A `*` matches the rest of a name.
const RULES: &[(&str, May)] = &[
    ("address", May::Use(&[])),
    ("dataplane", May::Use(&["address"])),
    ("netlink", May::Use(&["address"])),
    ("xtables", May::Use(&["address", "netlink"])),
    ("runtime", May::Use(&[])),
    ("crds", May::Use(&[])),
    ("dashboards", May::Use(&[])),
    ("images", May::Use(&[])),
    ("catalog", May::Use(&["dataplane"])),
    ("backend", May::Use(&["dataplane"])),
    (
        "conntrack",
        May::Use(&[
            "backend",
            "crds",
            "dataplane",
            "netlink",
            "reconciler",
            "runtime",
        ]),
    ),
    ("relay", May::Use(&["dataplane"])),
    (
        "source",
        May::Use(&["catalog", "crds", "dataplane", "netlink", "runtime"]),
    ),
    (
        "nftables-model",
        May::Use(&["backend", "dataplane", "netlink"]),
    ),
    // A backend knows the model and its own part of the kernel: no Kubernetes, no other
    // backend.
    (
        "backend-*",
        May::Use(&[
            "backend",
            "dataplane",
            "netlink",
            "nftables-model",
            "xtables",
        ]),
    ),
    ("reconciler", May::Use(&["backend", "dataplane"])),
    (
        "modes",
        May::Use(&[
            "backend",
            "backend-iptables",
            "backend-ipvs",
            "backend-nftables",
            "crds",
            "dataplane",
            "netlink",
            "nftables-model",
            "reconciler",
            "runtime",
            "xtables",
        ]),
    ),
    (
        "agent-metrics",
        May::Use(&[
            "backend",
            "catalog",
            "crds",
            "dataplane",
            "modes",
            "nftables-model",
            "reconciler",
            "runtime",
            "xtables",
        ]),
    ),
    ("processes", May::Use(&["address"])),
    ("events", May::Use(&["crds", "dataplane", "runtime"])),
    (
        "health-checks",
        May::Use(&[
            "backend",
            "catalog",
            "crds",
            "dataplane",
            "events",
            "processes",
            "reconciler",
            "runtime",
        ]),
    ),
    (
        "foreign-proxy",
        May::Use(&[
            "crds",
            "dataplane",
            "netlink",
            "nftables-model",
            "processes",
            "runtime",
            "xtables",
        ]),
    ),
    (
        "handover",
        May::Use(&[
            "backend",
            "crds",
            "dataplane",
            "foreign-proxy",
            "inspect",
            "modes",
            "reconciler",
            "runtime",
            "xtables",
        ]),
    ),
    (
        "inspect",
        May::Use(&[
            "backend",
            "backend-nftables",
            "catalog",
            "dataplane",
            "modes",
            "netlink",
            "reconciler",
            "runtime",
            "xtables",
        ]),
    ),
    ("address-plan", May::Use(&["dataplane"])),
    (
        "testkit",
        May::Use(&["address-plan", "backend", "dataplane"]),
    ),
    // `make demo` builds all dependencies first, so packages needed only by tests are excluded.
    (
        "demo",
        May::Use(&["address-plan", "crds", "dataplane", "netlink"]),
    ),
    // The cluster-side programs do not depend on packages about packets.
    ("operator", May::Use(&["crds", "runtime"])),
    ("kubectl-signpost", May::Use(&["crds", "runtime"])),
    (
        "node-agent",
        May::UseAllBut(&[
            "address-plan",
            "dashboards",
            "demo",
            "operator",
            "testkit",
            "tests",
        ]),
    ),
    ("tests", May::UseAllBut(&[])),
];

/// The external packages that `dataplane` may use: it is pure.
const DATAPLANE_USES: &[&str] = &["address", "ipnet"];

fn violations(metadata: &Metadata) -> Vec<String> {
    let members: BTreeSet<&str> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
    let mut violations = Vec::new();
    for package in &metadata.packages {
        let name = &package.name;
        let Some((_, may)) = RULES.iter().find(|(rule, _)| matches(rule, name)) else {
            violations.push(format!(
                "{name} has no rule: say here what it may depend on"
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let other = dependency.name.as_str();
            if members.contains(other) && !allows(may, dependency) {
                let kind = dependency.kind.as_deref().unwrap_or("normal");
                violations.push(format!(
                    "{name} must not depend on {other} ({kind} dependency)"
                ));
            }
        }
        violations.extend(impurities(package));
    }
    violations
}

fn allows(may: &May, dependency: &Dependency) -> bool {
    let name = dependency.name.as_str();
    let for_tests_only = dependency.kind.as_deref() == Some("dev");
    let allowed = match may {
        May::Use(names) => names.contains(&name),
        May::UseAllBut(names) => !names.contains(&name),
    };
    allowed || (for_tests_only && name == "testkit")
}

fn impurities(package: &Package) -> Vec<String> {
    let shipped = package
        .dependencies
        .iter()
        .filter(|d| d.kind.as_deref() != Some("dev"));
    let impure = shipped.filter(|d| !DATAPLANE_USES.contains(&d.name.as_str()));
    impure
        .filter(|_| package.name == "dataplane")
        .map(|d| format!("dataplane must not depend on {}: it is pure", d.name))
        .collect()
}

fn matches(rule: &str, name: &str) -> bool {
    match rule.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => rule == name,
    }
}

#[test]
fn dependencies_run_one_way() {
    expect_none(
        "dependencies that are not allowed",
        &violations(&metadata()),
    );
}

/// A package by name, with the names and kinds of its dependencies.
type Drawn = (
    &'static str,
    &'static [(&'static str, Option<&'static str>)],
);

fn workspace(packages: &[Drawn]) -> Metadata {
    let package = |(name, dependencies): &Drawn| Package {
        name: (*name).to_owned(),
        manifest_path: format!("{name}/Cargo.toml").into(),
        dependencies: dependencies
            .iter()
            .map(|(name, kind)| Dependency {
                name: (*name).to_owned(),
                kind: kind.map(str::to_owned),
            })
            .collect(),
        targets: Vec::new(),
    };
    Metadata {
        workspace_root: "workspace".into(),
        packages: packages.iter().map(package).collect(),
    }
}

#[test]
fn a_dependency_that_is_not_allowed_is_found() {
    let all: &[Drawn] = &[
        (
            "dataplane",
            &[("ipnet", None), ("serde", None), ("testkit", Some("dev"))],
        ),
        ("catalog", &[("dataplane", None), ("crds", None)]),
        ("crds", &[("testkit", None)]),
        (
            "backend-nftables",
            &[("backend-ipvs", None), ("serde", None)],
        ),
        (
            "backend-ipvs",
            &[("catalog", Some("dev")), ("backend", None)],
        ),
        ("backend", &[]),
        ("operator", &[("dataplane", None), ("crds", None)]),
        ("node-agent", &[("catalog", None), ("testkit", None)]),
        ("testkit", &[]),
        ("gateway", &[]),
    ];
    assert_eq!(
        violations(&workspace(all)),
        [
            "dataplane must not depend on serde: it is pure",
            "catalog must not depend on crds (normal dependency)",
            "crds must not depend on testkit (normal dependency)",
            "backend-nftables must not depend on backend-ipvs (normal dependency)",
            "backend-ipvs must not depend on catalog (dev dependency)",
            "operator must not depend on dataplane (normal dependency)",
            "node-agent must not depend on testkit (normal dependency)",
            "gateway has no rule: say here what it may depend on",
        ]
    );
}
