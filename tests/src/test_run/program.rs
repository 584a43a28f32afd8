//! Test programs as cargo reports them after a build.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use thiserror::Error;

/// A test program of this workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its package.
    pub package: String,
    /// Its target as an argument of `cargo test`: `--lib` or `--test demo`.
    pub target: String,
    /// The name of the target.
    pub name: String,
    /// The folder of the package, which is its working directory.
    pub folder: PathBuf,
    /// The path of the executable.
    pub executable: PathBuf,
}

/// An unknown line in cargo's output.
#[derive(Debug, Error)]
#[error("failed to understand what cargo says: {line}")]
pub struct BadMessage {
    line: String,
    source: serde_json::Error,
}

/// A line of cargo's output; see "External tools" in its documentation.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact {
        package_id: String,
        manifest_path: PathBuf,
        target: Target,
        profile: Profile,
        executable: Option<PathBuf>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Parses the test programs from the output of `cargo build --tests --message-format json`.
///
/// # Errors
///
/// [`BadMessage`] for the first line that is not a message.
pub fn parse(output: &str) -> Result<Vec<Program>, BadMessage> {
    let mut programs = Vec::new();
    for line in output.lines() {
        let message = serde_json::from_str(line).map_err(|source| BadMessage {
            line: line.to_owned(),
            source,
        })?;
        programs.extend(test_program(message));
    }
    Ok(programs)
}

fn test_program(message: Message) -> Option<Program> {
    let Message::CompilerArtifact {
        package_id,
        manifest_path,
        target,
        profile: Profile { test: true },
        executable: Some(executable),
    } = message
    else {
        return None;
    };
    let kind = target.kind.first().map(String::as_str);
    let selection = match kind {
        Some(kind @ ("bin" | "test" | "example" | "bench")) => format!("--{kind} {}", target.name),
        _ => "--lib".to_owned(),
    };
    Some(Program {
        package: package_name(&package_id).to_owned(),
        target: selection,
        name: target.name,
        folder: manifest_path.parent()?.to_owned(),
        executable,
    })
}

/// Returns the package name from `path+file:///crates/relay#0.1.0` or
/// `path+file:///agent#node-agent@0.1.0`.
fn package_name(id: &str) -> &str {
    let (url, fragment) = id.rsplit_once('#').unwrap_or((id, ""));
    match fragment.split_once('@') {
        Some((name, _)) => name,
        None => url.rsplit('/').next().unwrap_or(url),
    }
}

// === impl Program ===

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--package {} {}", self.package, self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::{Program, parse};

    const LIBRARY: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///sp/crates/relay#0.1.0","manifest_path":"/sp/crates/relay/Cargo.toml","target":{"kind":["lib"],"crate_types":["lib"],"name":"relay","src_path":"/sp/crates/relay/src/lib.rs","test":true},"profile":{"opt_level":"0","test":true},"filenames":["/t/relay-1"],"executable":"/t/relay-1","fresh":true}"#;
    const TEST: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///sp/agent#node-agent@0.1.0","manifest_path":"/sp/agent/Cargo.toml","target":{"kind":["test"],"name":"lock"},"profile":{"test":true},"executable":"/t/lock-2"}"#;
    const NOT_A_TEST: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///sp/agent#node-agent@0.1.0","manifest_path":"/sp/agent/Cargo.toml","target":{"kind":["bin"],"name":"signpost-agent"},"profile":{"test":false},"executable":"/t/signpost-agent"}"#;
    const END: &str = r#"{"reason":"build-finished","success":true}"#;

    #[test]
    fn a_program_is_known_by_package_and_target() {
        let output = [LIBRARY, TEST, NOT_A_TEST, END].join("\n");
        let programs = parse(&output).expect("these are messages");
        let relay = Program {
            package: "relay".into(),
            target: "--lib".into(),
            name: "relay".into(),
            folder: "/sp/crates/relay".into(),
            executable: "/t/relay-1".into(),
        };
        let lock = Program {
            package: "node-agent".into(),
            target: "--test lock".into(),
            name: "lock".into(),
            folder: "/sp/agent".into(),
            executable: "/t/lock-2".into(),
        };
        assert_eq!(programs, [relay, lock]);
        assert_eq!(programs[1].to_string(), "--package node-agent --test lock");
    }

    #[test]
    fn a_line_that_is_no_message_is_an_error() {
        assert!(parse("warning: unused").is_err());
    }
}
