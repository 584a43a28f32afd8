//! The release workflow, which has never run: checks its form, and that everything it runs exists.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The programs that the workflow's machine has, installs in a step, or gets from an action.
const PROGRAMS: [&str; 6] = ["cargo", "docker", "echo", "make", "sudo", "images/release"];
/// The programs that `images/release` runs besides shell builtins and coreutils.
const PUBLISHERS: [&str; 5] = ["skopeo", "docker", "cosign", "helm", "gh"];
/// Stands in for each of them: records its arguments, and prints what a registry would answer.
const RECORDER: &str = r#"#!/usr/bin/env bash
name=$(basename "$0")
echo "$name $*" >>"$LOG"
case "$name $1" in
    "docker buildx" | "skopeo inspect") echo "sha256:$(echo "$*" | sha256sum | cut -c1-8)" ;;
    "helm package") touch "dist/signpost-$4.tgz" ;;
    "cosign sign-blob") touch dist/SHA256SUMS.sigstore.json ;;
esac
"#;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the only job.
fn job() -> Value {
    let workflow = read(".github/workflows/release.yaml");
    let workflow: Value = serde_saphyr::from_str(&workflow).expect("YAML");
    let jobs = workflow["jobs"].as_object().expect("jobs");
    assert_eq!(jobs.len(), 1);
    assert_eq!(workflow["on"]["push"]["tags"], serde_json::json!(["v*"]));
    assert_eq!(workflow["permissions"], serde_json::json!({}));
    jobs["release"].clone()
}

/// Returns the commands of its steps.
fn commands() -> Vec<String> {
    let job = job();
    let steps = job["steps"].as_array().expect("steps");
    let runs = steps.iter().filter_map(|step| step["run"].as_str());
    runs.map(str::to_owned).collect()
}

#[test]
fn t168_every_step_uses_an_action_of_a_commit_or_runs_a_command_that_exists() {
    let job = job();
    assert!(job["runs-on"].is_string());
    for step in job["steps"].as_array().expect("steps") {
        match (step["uses"].as_str(), step["run"].as_str()) {
            (Some(action), None) => {
                let commit = action.split_once('@').map(|(_, commit)| commit);
                let digits =
                    |text: &str| text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit());
                assert!(commit.is_some_and(digits), "{action}: a tag may be moved");
            }
            (None, Some(command)) => {
                // Build scripts and tests run code of many authors.
                let is_last = ["docker login", "images/release publish"].iter();
                let may_write = is_last.clone().any(|last| command.contains(last));
                assert_eq!(step["env"]["GH_TOKEN"].is_string(), may_write, "{command}");
            }
            _ => panic!("a step either uses or runs: {step}"),
        }
    }
    let makefile = read("Makefile");
    for command in commands() {
        for part in command.split(" | ") {
            let mut words = part.split(' ');
            let program = words.next().unwrap_or_default();
            assert!(PROGRAMS.contains(&program), "{command}");
            if program == "make" {
                let target = words.next().unwrap_or_default();
                let rule = format!("\n{target}:");
                assert!(makefile.contains(&rule), "make has no target {target}");
            }
        }
        if let Some(path) = command.split(' ').find(|word| word.starts_with("images/")) {
            assert!(repository().join(path).exists(), "there is no {path}");
        }
        if let Some((_, test)) = command.split_once("--test ") {
            let file = format!("images/tests/{test}.rs");
            assert!(repository().join(&file).exists(), "there is no {file}");
        }
    }
}

#[test]
fn images_plugin_and_materials_are_built_before_they_are_published() {
    let commands = commands();
    let place = |desired: &str| {
        let found = commands
            .iter()
            .position(|command| command.starts_with(desired));
        found.unwrap_or_else(|| panic!("nothing runs {desired}: {commands:?}"))
    };
    let publish = place("images/release publish");
    for before in ["make test", "make image", "make plugin", "make sbom"] {
        assert!(place(before) < publish, "{before} comes too late");
    }
}

/// A copy of what `images/release` reads, with the files that `make image plugin sbom` write.
fn release(changelog: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |path: &str| folder.path().join(path);
    for path in ["images", "dist", "crds/generated", "charts/signpost", "bin"] {
        fs::create_dir_all(at(path)).expect(path);
    }
    fs::copy(repository().join("images/release"), at("images/release")).expect("the script");
    fs::copy(repository().join("Cargo.toml"), at("Cargo.toml")).expect("Cargo.toml");
    for program in PUBLISHERS {
        let path = at("bin").join(program);
        fs::write(&path, RECORDER).expect(program);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect(program);
    }
    let version = env!("CARGO_PKG_VERSION");
    let mut files = vec![
        "dist/signpost.yaml".to_owned(),
        "crds/generated/a.yaml".to_owned(),
    ];
    for architecture in ["amd64", "arm64"] {
        for program in ["signpost-agent", "signpost-operator"] {
            files.push(format!("dist/{program}-{version}-linux-{architecture}.tar"));
        }
        for program in ["signpost-agent", "signpost-operator", "kubectl-signpost"] {
            files.push(format!(
                "dist/{program}-{version}-linux-{architecture}.cdx.json"
            ));
        }
        files.push(format!(
            "dist/kubectl-signpost-{version}-linux-{architecture}.tar.gz"
        ));
    }
    for file in files {
        fs::write(at(&file), &file).expect("a file");
    }
    let changelog = changelog.replace("VERSION", version);
    fs::write(at("CHANGELOG.md"), changelog).expect("CHANGELOG.md");
    folder
}

/// Runs a step of `images/release` in a copy of the repository; returns what it printed as an error
/// if it failed, and what it ran.
fn run_release(folder: &Path, step: &str) -> (Option<String>, Vec<String>) {
    let log = folder.join("log");
    let path = std::env::var("PATH").expect("a PATH");
    let mut command = Command::new(folder.join("images/release"));
    command.args([step, concat!("v", env!("CARGO_PKG_VERSION"))]);
    command.env("PATH", format!("{}:{path}", folder.join("bin").display()));
    let output = command.env("LOG", &log).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let ran = fs::read_to_string(log).unwrap_or_default();
    let ran = ran.lines().map(str::to_owned).collect();
    ((!output.status.success()).then_some(said), ran)
}

const CHANGELOG: &str = "# Changelog\n\n## Unreleased\n\n## VERSION, 2026-11-27\n\n- Something new.\n\n## 0.0.1\n\n- Old.\n";

#[test]
fn t239_a_release_publishes_images_chart_definitions_and_what_they_are_made_of() {
    let folder = release(CHANGELOG);
    let (error, ran) = run_release(folder.path(), "publish");
    assert_eq!(error, None, "{ran:#?}");
    let version = env!("CARGO_PKG_VERSION");
    let place = |begin: &str, end: &str| {
        let found = ran
            .iter()
            .position(|line| line.starts_with(begin) && line.contains(end));
        found.unwrap_or_else(|| panic!("nothing runs {begin} … {end}: {ran:#?}"))
    };
    let release = place("gh release create", "--notes-file dist/notes.md");
    for program in ["signpost-agent", "signpost-operator"] {
        let pushed = ["amd64", "arm64"].map(|architecture| {
            let file = format!("{program}-{version}-linux-{architecture}");
            let pushed = place("skopeo copy", &format!("{file}.tar"));
            let attested = place("cosign attest", &format!("{file}.cdx.json"));
            assert!(pushed < attested && attested < release, "{ran:#?}");
            pushed
        });
        let index = place("docker buildx imagetools create", program);
        assert!(pushed.iter().all(|pushed| *pushed < index), "{ran:#?}");
        assert!(index < place("cosign sign ", program), "{ran:#?}");
    }
    assert!(place("helm package", version) < place("helm push", "oci://"));
    for file in [
        "signpost-crds-",
        "signpost.yaml",
        "SHA256SUMS.sigstore.json",
        ".tgz",
        "linux-arm64.tar.gz",
    ] {
        assert!(ran[release].contains(file), "{file}: {}", ran[release]);
    }
    let sums = fs::read_to_string(folder.path().join("dist/SHA256SUMS")).expect("sums");
    assert_eq!(sums.lines().count(), 4 + 2 + 1 + 6 + 1 + 1, "{sums}");
    let notes = fs::read_to_string(folder.path().join("dist/notes.md")).expect("notes");
    assert_eq!(notes, "- Something new.\n");
}

#[test]
fn t239_a_release_whose_changes_stand_under_unreleased_is_refused() {
    for (changelog, why) in [
        (
            CHANGELOG.replace("Unreleased\n", "Unreleased\n\n- Forgotten.\n"),
            "under Unreleased",
        ),
        (
            CHANGELOG.replace("## VERSION", "## 0.0.2"),
            "no section about",
        ),
    ] {
        let folder = release(&changelog);
        for step in ["check", "publish"] {
            let (error, ran) = run_release(folder.path(), step);
            assert!(
                error.is_some_and(|error| error.contains(why)),
                "{changelog}"
            );
            assert_eq!(ran, [""; 0]);
        }
    }
    assert_eq!(
        run_release(release(CHANGELOG).path(), "check"),
        (None, Vec::new())
    );
}

#[test]
fn the_workflow_and_its_script_say_that_nothing_is_published_yet() {
    for path in [".github/workflows/release.yaml", "images/release"] {
        assert!(read(path).contains("Nothing is published yet"), "{path}");
    }
}

#[test]
fn a_tag_of_another_version_is_refused() {
    let mut command = Command::new(repository().join("images/release"));
    let refused = command.args(["check", "v0.0.0"]).output();
    let refused = refused.expect("it runs");
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("the version of Cargo.toml"), "{said}");
}
