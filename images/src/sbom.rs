//! The components of a program as a CycloneDX document (SBOM). Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;

/// The parts of the output of `cargo metadata --format-version 1` that are needed here.
#[derive(Debug, Clone, Deserialize)]
pub struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Clone, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// Absent for a package of the workspace.
    source: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Clone, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Debug, Clone, Deserialize)]
struct Kind {
    /// `build` or `dev`; absent for a dependency that is linked into the program.
    kind: Option<String>,
}

/// The program that a document describes.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The program.
    pub program: String,
    /// The package it is built from.
    pub package: String,
    /// The timestamp of the document.
    pub created: Timestamp,
    /// The version of Rust, whose standard library is linked into the program.
    pub rust: String,
    /// The version of glibc, which is linked into the program.
    pub glibc: String,
}

/// The error for a package that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the workspace has no package {0}")]
pub struct UnknownPackage(String);

/// Renders the document about `subject`, in the format of <https://cyclonedx.org/docs/1.5/json/>.
///
/// # Errors
///
/// [`UnknownPackage`] if there is no such package.
pub fn sbom(metadata: &Metadata, subject: &Subject) -> Result<Value, UnknownPackage> {
    let packages = metadata.packages.iter();
    let packages: BTreeMap<&str, &Package> = packages.map(|p| (p.id.as_str(), p)).collect();
    let own = |package: &&&Package| package.source.is_none() && package.name == subject.package;
    let unknown = || UnknownPackage(subject.package.clone());
    let root = packages.values().find(own).ok_or_else(unknown)?;
    let linked = linked(&metadata.resolve, &root.id);
    let linked = linked.iter().filter_map(|id| packages.get(id));
    let mut components: Vec<Value> = linked
        .filter(|package| package.id != root.id)
        .map(|package| package.component())
        .collect();
    for (name, version, license) in [
        ("rust-std", &subject.rust, "MIT OR Apache-2.0"),
        ("glibc", &subject.glibc, "LGPL-2.1-or-later"),
    ] {
        components.push(json!({
            "type": "library", "name": name, "version": version,
            "licenses": [{"expression": license}],
        }));
    }
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": subject.created.to_string(),
            "component": {
                "type": "application", "name": subject.program, "version": root.version,
                "licenses": [{"expression": root.license}],
            },
        },
        "components": components,
    }))
}

/// Returns the packages that are linked into a build of `root`, including `root`, sorted by ID.
fn linked<'a>(resolve: &'a Resolve, root: &'a str) -> BTreeSet<&'a str> {
    let nodes = resolve.nodes.iter();
    let nodes: BTreeMap<&str, &Node> = nodes.map(|node| (node.id.as_str(), node)).collect();
    let mut found = BTreeSet::from([root]);
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        let dependencies = nodes.get(id).into_iter().flat_map(|node| &node.deps);
        for dependency in dependencies {
            let is_linked = dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
            if is_linked && found.insert(&dependency.pkg) {
                open.push(&dependency.pkg);
            }
        }
    }
    found
}

// === impl Package ===

impl Package {
    fn component(&self) -> Value {
        let Package { name, version, .. } = self;
        let mut component = json!({"type": "library", "name": name, "version": version});
        if self.source.is_some() {
            component["purl"] = format!("pkg:cargo/{name}@{version}").into();
        }
        // Older packages separate licences with slashes, which is not a valid SPDX expression.
        component["licenses"] = match self.license.as_deref() {
            None => json!([]),
            Some(list) if list.contains('/') => json!([{"license": {"name": list}}]),
            Some(expression) => json!([{ "expression": expression }]),
        };
        component
    }
}
