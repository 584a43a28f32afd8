//! The release workflow, which has never run: checks its form, and that everything it runs exists.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The programs that the workflow's machine has, installs in a step, or gets from an action.
const PROGRAMS: [&str; 6] = ["cargo", "echo", "make", "skopeo", "sudo", "images/release"];
/// The programs that `images/release` runs besides shell builtins and coreutils.
const PUBLISHERS: [&str; 4] = ["skopeo", "docker buildx imagetools", "cosign", "gh release"];

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
fn t168_every_step_uses_an_action_of_a_version_or_runs_a_command_that_exists() {
    let job = job();
    assert!(job["runs-on"].is_string());
    for step in job["steps"].as_array().expect("steps") {
        match (step["uses"].as_str(), step["run"].as_str()) {
            (Some(action), None) => assert!(action.contains("@v"), "{action}"),
            (None, Some(_)) => {}
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
    let script = read("images/release");
    for publisher in PUBLISHERS {
        assert!(script.contains(publisher), "nothing runs {publisher}");
    }
    // The script must sign and publish the files that those targets write.
    for name in ["-linux-$architecture.tar", ".cdx.json", "signpost.yaml"] {
        assert!(script.contains(name), "{name} is not published");
    }
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
