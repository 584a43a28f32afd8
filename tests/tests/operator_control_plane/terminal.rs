//! `kubectl signpost` on a terminal: completion by kubectl, and colours.

use std::env;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tests::binaries;
use tests::control_plane::ADMINISTRATOR;

use crate::NODES;
use crate::cluster::Cluster;
use crate::command_line::CommandLine;
use crate::operator::Operator;

/// The beginning of an escape sequence that sets a colour.
const ESCAPE: &str = "\u{1b}[";

/// kubectl asks a program in `PATH` about the words after the plugin's name.
#[test]
fn t187_kubectl_completes_commands_and_flags_of_the_plugin() -> Result<()> {
    let cluster = Cluster::start()?;
    let folder = tempfile::tempdir()?;
    let program = binaries::find("kubectl-signpost")?;
    symlink(&program, folder.path().join("kubectl-signpost"))?;
    let script = Command::new(&program)
        .args(["completion", "kubectl"])
        .output()?;
    let completer = folder.path().join("kubectl_complete-signpost");
    fs::write(&completer, script.stdout)?;
    fs::set_permissions(&completer, Permissions::from_mode(0o755))?;

    let offers = |words: &[&str]| offers(&cluster, folder.path(), words);
    assert_eq!(offers(&["rollout", "re"])?, ["resume", "retry", ":4"]);
    assert_eq!(offers(&["nodes", "--not"])?, ["--not-ready", ":4"]);
    assert_eq!(offers(&["check", "xyz"])?, [":0"]);
    Ok(())
}

/// Returns what kubectl prints for its shell completion of `kubectl signpost WORDS`, with the
/// programs in `folder`.
fn offers(cluster: &Cluster, folder: &Path, words: &[&str]) -> Result<Vec<String>> {
    let kubeconfig = cluster.control_plane.kubeconfig(ADMINISTRATOR)?;
    let mut path = OsString::from(folder);
    path.push(":");
    path.push(env::var_os("PATH").context("PATH is set")?);
    let kubectl = cluster.control_plane.kubectl_command(&kubeconfig);
    // Without its flags: kubectl completes no plugin behind a flag.
    let mut kubectl = Command::new(kubectl.get_program());
    kubectl.env("PATH", path).env("KUBERC", "off");
    kubectl.args(["__complete", "signpost"]);
    let output = kubectl.args(words).output()?;
    ensure!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout)?;
    Ok(printed.lines().map(str::to_owned).collect())
}

#[test]
fn colours_are_for_terminals_unless_the_user_refuses_them() -> Result<()> {
    let cluster = Cluster::start()?;
    let cli = CommandLine::of(&cluster)?;
    let _operator = Operator::start_with_profile(&cluster)?;
    for node in NODES {
        cluster.report_ready(node)?;
    }
    cluster.wait_for_condition("default", "Ready", "True/AllNodesProgrammed")?;
    let piped = cli.expect(0, &["status"])?;
    assert!(!piped.contains(ESCAPE), "{piped:?}");
    let asked = cli.expect(0, &["--color=always", "status"])?;
    assert!(asked.contains(ESCAPE), "{asked:?}");
    let on_terminal = cli.on_terminal("", &["status"])?;
    assert!(on_terminal.contains(ESCAPE), "{on_terminal:?}");
    for refusal in ["NO_COLOR=1", "NO_COLOR=yes"] {
        let plain = cli.on_terminal(refusal, &["status"])?;
        assert!(
            plain.contains("default") && !plain.contains(ESCAPE),
            "{plain:?}"
        );
    }
    let plain = cli.on_terminal("", &["--color=never", "status"])?;
    assert!(
        plain.contains("default") && !plain.contains(ESCAPE),
        "{plain:?}"
    );
    Ok(())
}
