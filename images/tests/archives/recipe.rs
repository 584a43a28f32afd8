//! The two released images, with a text in the place of each program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::opened::Opened;

/// The programs, each with its stage in the Dockerfile and its manifest.
const PROGRAMS: [(&str, &str, &str); 2] = [
    ("signpost-agent", "agent", "agent.yaml"),
    ("signpost-operator", "operator", "operator.yaml"),
];
const REVISION: &str = "0123456789abcdef";
const EPOCH: &str = "1767225600";
const CREATED: &str = "2026-01-01T00:00:00Z";

/// The properties of an image that a container can observe.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Look {
    /// Files by path.
    files: BTreeSet<String>,
    environment: BTreeSet<String>,
    labels: BTreeMap<String, String>,
    user: String,
    entrypoint: Vec<String>,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs `images/archives` on programs of `size` bytes.
fn write_archives(size: usize) -> (Output, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    for (program, ..) in PROGRAMS {
        fs::write(folder.path().join(program), "x".repeat(size)).expect("a file");
    }
    let output = Command::new(repository().join("images/archives"))
        .args([folder.path(), &folder.path().join("dist")])
        .env("WRITE_IMAGE", env!("CARGO_BIN_EXE_write-image"))
        .env("REVISION", REVISION)
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .output();
    (output.expect("it can be run"), folder)
}

/// Returns both images with their full names, by the names of their programs.
fn images() -> BTreeMap<&'static str, (String, Opened)> {
    let (output, folder) = write_archives(10);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let mut archives = BTreeMap::new();
    for entry in fs::read_dir(folder.path().join("dist")).expect("a folder") {
        let path = entry.expect("a folder").path();
        let opened = Opened::new(&fs::read(path).expect("an archive"));
        let names = opened.index.manifests()[0].annotations().as_ref();
        let name = names.expect("names")["io.containerd.image.name"].clone();
        let programs = PROGRAMS.iter().map(|(program, ..)| *program);
        let mut programs = programs.filter(|program| name.contains(program));
        let program = programs.next().expect("the name of a program");
        archives.insert(program, (name, opened));
    }
    assert_eq!(archives.len(), PROGRAMS.len());
    archives
}

// === impl Look ===

impl Look {
    fn of(image: &Opened) -> Look {
        let run = image.configuration.config().clone().expect("how it is run");
        let labels = run.labels().clone().expect("labels");
        Look {
            files: image
                .files()
                .map(|file| format!("/{}", file.path))
                .collect(),
            environment: run.env().iter().flatten().cloned().collect(),
            labels: labels.into_iter().collect(),
            user: run.user().clone().expect("a user"),
            entrypoint: run.entrypoint().clone().expect("an entry point"),
        }
    }

    /// Evaluates the stages of a Dockerfile with `variables` as build arguments. Supports only the
    /// instructions in Signpost's Dockerfile.
    fn of_stages(dockerfile: &str, variables: &[(&str, &str)]) -> BTreeMap<String, Look> {
        let mut stages: BTreeMap<String, Look> = BTreeMap::new();
        let mut current = String::new();
        for line in dockerfile.lines() {
            let (instruction, rest) = line.split_once(' ').unwrap_or_default();
            let stage = stages.entry(current.clone()).or_default();
            match (instruction, rest) {
                ("FROM", _) => {
                    let (from, name) = rest.split_once(" AS ").expect("a stage has a name");
                    let look = stages.get(from).cloned().unwrap_or_default();
                    current = name.to_owned();
                    stages.insert(current.clone(), look);
                }
                ("USER", user) => user.clone_into(&mut stage.user),
                ("ENV", variable) => drop(stage.environment.insert(variable.to_owned())),
                ("ENTRYPOINT", words) => {
                    stage.entrypoint = serde_json::from_str(words).expect("a list");
                }
                ("COPY", files) => {
                    let path = files.split(' ').next_back().unwrap_or_default();
                    stage.files.insert(path.to_owned());
                }
                ("LABEL", label) => {
                    let (name, value) = label.split_once('=').expect("a value");
                    let value = value.trim_matches('"');
                    let given = value.strip_prefix('$').map(|variable| {
                        let mut variables = variables.iter();
                        let found = variables.find(|(name, _)| *name == variable);
                        found.map_or("no instruction gives it", |(_, value)| *value)
                    });
                    let value = given.unwrap_or(value).to_owned();
                    stage.labels.insert(name.to_owned(), value);
                }
                _ => {}
            }
        }
        stages
    }
}

#[test]
fn each_image_holds_its_program_and_nothing_else() {
    for (program, (name, image)) in images() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(name, format!("ghcr.io/signpost/{program}:{version}"));
        let path = format!("/usr/local/bin/{program}");
        let look = Look::of(&image);
        assert_eq!(look.files, BTreeSet::from([path.clone()]));
        assert_eq!(look.entrypoint, [path]);
        assert_eq!(look.labels["org.opencontainers.image.version"], version);
        assert_eq!(look.labels["org.opencontainers.image.revision"], REVISION);
        assert_eq!(look.labels["org.opencontainers.image.created"], CREATED);
        assert_eq!(image.configuration.created().as_deref(), Some(CREATED));
        assert!(image.layer.iter().all(|file| file.mode == 0o755));
    }
}

#[test]
fn the_dockerfile_makes_the_same_of_the_programs() {
    let dockerfile = read("Dockerfile");
    let version = env!("CARGO_PKG_VERSION");
    assert!(dockerfile.contains(&format!("\nARG VERSION={version}\n")));
    let variables = [
        ("VERSION", version),
        ("REVISION", REVISION),
        ("CREATED", CREATED),
    ];
    let mut stages = Look::of_stages(&dockerfile, &variables);
    let images = images();
    for (program, stage, _) in PROGRAMS {
        assert_eq!(stages.remove(stage), Some(Look::of(&images[program].1)));
    }
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain
        .lines()
        .find_map(|line| line.strip_prefix("channel = "));
    let channel = channel.expect("a toolchain").trim_matches('"');
    assert!(dockerfile.contains(&format!("\nFROM rust:{channel}-bookworm AS programs\n")));
    assert!(dockerfile.contains(&format!("\nENV RUSTUP_TOOLCHAIN={channel}\n")));
}

#[test]
fn manifests_and_chart_run_these_images_as_they_are_meant_to_be_run() {
    let images = images();
    let values: Value = serde_saphyr::from_str(&read("charts/signpost/values.yaml")).expect("YAML");
    for (program, component, file) in PROGRAMS {
        let (name, image) = &images[program];
        let look = Look::of(image);
        let repository = values[component]["image"]["repository"].as_str();
        let repository = repository.expect("a repository");
        assert_eq!(
            name.rsplit_once(':').map(|(name, _)| name),
            Some(repository)
        );

        // A test of the chart compares the chart's containers with these manifests.
        let manifests = read(&format!("deploy/{file}"));
        let manifests = serde_saphyr::from_multiple::<Value>(&manifests).expect("YAML");
        let mut containers = manifests.iter();
        let container = containers
            .find_map(|manifest| manifest.pointer("/spec/template/spec/containers/0"))
            .expect("a container");
        assert_eq!(container["image"], name.as_str());
        let user = container["securityContext"]["runAsUser"].to_string();
        assert_eq!(look.user.split(':').next(), Some(user.as_str()));

        // A command without a path is looked up in PATH.
        let called = container["command"][0].as_str().expect("a command");
        let mut variables = look.environment.iter();
        let path = variables.find_map(|variable| variable.strip_prefix("PATH="));
        let mut folders = path.expect("a PATH").split(':');
        let found = folders.any(|folder| look.files.contains(&format!("{folder}/{called}")));
        assert!(found, "{called} is not found in {look:?}");
    }
}

#[test]
fn an_operator_of_more_than_30_megabytes_is_refused() {
    let (output, folder) = write_archives(30_000_001);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(!output.status.success());
    assert!(
        said.contains("signpost-operator") && said.contains(", 1 more than it may"),
        "{said}"
    );
    let written = fs::read_dir(folder.path().join("dist")).expect("a folder");
    assert_eq!(written.count(), 1, "only the agent's may be that large");
}
