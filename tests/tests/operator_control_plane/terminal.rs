//! `kubectl signpost` on a terminal: completion by kubectl, colours, and progress in place.

use std::env;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::json;
use tests::binaries;
use tests::control_plane::ADMINISTRATOR;
use tests::deadline::wait_for;

use crate::cluster::Cluster;
use crate::command_line::CommandLine;
use crate::operator::Operator;
use crate::{DEADLINE, NODES};

/// The beginning of an escape sequence that sets a colour.
const ESCAPE: &str = "\u{1b}[";

/// kubectl asks a program in `PATH` about the words after the plugin's name.
pub(crate) fn t187_kubectl_completes_commands_and_flags_of_the_plugin(
    cluster: &mut Cluster,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = binaries::find("kubectl-signpost")?;
    symlink(&program, folder.path().join("kubectl-signpost"))?;
    let script = Command::new(&program)
        .args(["completion", "kubectl"])
        .output()?;
    let completer = folder.path().join("kubectl_complete-signpost");
    fs::write(&completer, script.stdout)?;
    fs::set_permissions(&completer, Permissions::from_mode(0o755))?;

    let offers = |words: &[&str]| offers(cluster, folder.path(), words);
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

pub(crate) fn colours_are_for_terminals_unless_the_user_refuses_them(
    cluster: &mut Cluster,
) -> Result<()> {
    let cli = CommandLine::of(cluster)?;
    let _operator = Operator::start_with_ready_nodes(cluster)?;
    let piped = cli.expect(0, &["status"])?;
    assert!(!piped.contains(ESCAPE), "{piped:?}");
    let asked = cli.expect(0, &["--color=always", "status"])?;
    assert!(asked.contains(ESCAPE), "{asked:?}");
    let nowhere = Path::new("/dev/null");
    let on_terminal = cli.on_terminal("", &["status"], nowhere)?;
    assert!(on_terminal.contains(ESCAPE), "{on_terminal:?}");
    for refusal in ["NO_COLOR=1", "NO_COLOR=yes"] {
        let plain = cli.on_terminal(refusal, &["status"], nowhere)?;
        assert!(
            plain.contains("default") && !plain.contains(ESCAPE),
            "{plain:?}"
        );
    }
    let plain = cli.on_terminal("", &["--color=never", "status"], nowhere)?;
    assert!(
        plain.contains("default") && !plain.contains(ESCAPE),
        "{plain:?}"
    );
    Ok(())
}

/// Each state replaces the one before it. In a pipe each is a line, and lines are all there is.
pub(crate) fn a_rollout_is_redrawn_in_place_on_a_terminal_and_is_lines_in_a_pipe(
    cluster: &mut Cluster,
) -> Result<()> {
    let cli = CommandLine::of(cluster)?;
    let _operator = Operator::start_with_ready_nodes(cluster)?;
    cluster.put_profile("default", json!({"mode": "iptables"}))?;
    cluster.wait_for_stamp("n1", "default", "iptables")?;

    let folder = tempfile::tempdir()?;
    let recorded = folder.path().join("recorded");
    let follow = ["rollout", "status", "default", "--timeout=90s"];
    let (on_terminal, piped) = thread::scope(|scope| -> Result<_> {
        // First, so that it has read the first wave when the terminal shows it.
        let piped = scope.spawn(|| cli.expect(0, &follow));
        let on_terminal = scope.spawn(|| cli.on_terminal("TERM=xterm", &follow, &recorded));
        wait_for("the first wave on the terminal", DEADLINE, || {
            let shown = fs::read_to_string(&recorded).unwrap_or_default();
            Ok(shown.contains("wave 1 of").then_some(()))
        })?;
        for node in NODES {
            cluster.wait_for_stamp(node, "default", "iptables")?;
            cluster.report_ready(node)?;
        }
        let join = |thread: ScopedJoinHandle<'_, Result<String>>| {
            thread.join().map_err(|_| anyhow!("it panicked"))?
        };
        Ok((join(on_terminal)?, join(piped)?))
    })?;

    assert!(on_terminal.contains("followed for "), "{on_terminal:?}");
    let last = piped.lines().last().context("it prints something")?;
    assert!(last.contains("Settled, 3 of 3 nodes updated"), "{piped}");
    assert_eq!(screen(&on_terminal)?, [last]);
    assert!(!piped.contains(ESCAPE), "{piped:?}");
    assert!(piped.lines().count() > 1, "{piped}");
    let mut lines = piped.lines().zip(piped.lines().skip(1));
    assert!(lines.all(|(line, next)| line != next), "{piped}");
    Ok(())
}

/// Returns the lines that a terminal shows in the end, of a program that moves its cursor up only
/// to erase what is below.
fn screen(printed: &str) -> Result<Vec<String>> {
    let mut lines = vec![String::new()];
    let mut rest = printed;
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        match letter {
            '\n' => lines.push(String::new()),
            '\r' => {}
            '\u{1b}' => {
                let end = rest.find(|letter: char| letter.is_ascii_alphabetic());
                let (sequence, after) = rest.split_at(end.context("a sequence ends")? + 1);
                rest = after;
                match sequence {
                    "[J" => lines.last_mut().context("a line")?.clear(),
                    "[?7l" | "[?7h" => {}
                    up => {
                        let up = up.strip_prefix('[').and_then(|up| up.strip_suffix('A'));
                        let up: usize = up.context("another sequence")?.parse()?;
                        lines.truncate(lines.len().checked_sub(up).context("above the screen")?);
                    }
                }
            }
            letter => lines.last_mut().context("a line")?.push(letter),
        }
    }
    lines.retain(|line| !line.is_empty());
    Ok(lines)
}
