//! Rules about the code that no compiler checks: the direction of dependencies, and the place of
//! files.

mod dependencies;
mod documents;
mod modes;
mod paths;
mod sources;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// Cargo's metadata of this workspace.
#[derive(Debug, Deserialize)]
struct Metadata {
    workspace_root: PathBuf,
    packages: Vec<Package>,
}

/// A package of this workspace.
#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

/// A dependency of a package.
#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    /// `dev`, `build` or `None`.
    kind: Option<String>,
}

/// A library, program, test or example.
#[derive(Debug, Deserialize)]
struct Target {
    src_path: PathBuf,
}

impl Package {
    fn folder(&self) -> &Path {
        self.manifest_path
            .parent()
            .expect("a manifest is in a folder")
    }
}

fn metadata() -> Metadata {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs: it has started this test");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata failed: {errors}");
    serde_json::from_slice(&output.stdout).expect("cargo prints JSON of this form")
}

#[track_caller]
fn expect_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}
