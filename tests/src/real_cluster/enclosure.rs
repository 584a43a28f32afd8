//! An isolated part of the machine that contains everything of a cluster, so that all of it can be
//! removed.
//!
//! Containers, their mounts and their supervisors normally outlive the process that started them.
//! In an enclosure they do not: a PID namespace ends however its first process ends, and the mounts
//! and the names of network namespaces go with the last process. Two things remain, a folder and
//! control groups. The process that made the enclosure removes them, or, if that was killed, the
//! next enclosure does.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::control_groups;
use super::node::HOLDER;
use crate::deadline::wait_for;

/// The prefix of enclosures' names, followed by the process ID of their maker.
pub const PREFIX: &str = "signpost-enclosure-";

/// How long processes may take to end after a signal.
const REMOVED_WITHIN: Duration = Duration::from_secs(30);

/// The environment variable with the folder, set inside an enclosure.
const FOLDER: &str = "SIGNPOST_ENCLOSURE";

/// The script of the first process inside. It stays because orphans become its children, and a
/// shell that waits for one child reaps all of them.
const FIRST_PROCESS: &str = r#"
mount -t tmpfs tmpfs /run
mkdir /run/netns
"$@"
exit $?
"#;

/// The enclosure of this process.
#[derive(Debug, Clone)]
pub struct Enclosure {
    folder: PathBuf,
}

/// Where [`enter`] has returned.
#[derive(Debug)]
pub enum Place {
    /// Inside: continue.
    Inside(Enclosure),
    /// Outside, after the process inside has ended with this status: exit with it.
    Outside(ExitCode),
}

/// Restarts this program with the same arguments in a new enclosure, and waits for its end. Call it
/// first in `main`, because anything before it runs twice. Termination signals end everything
/// inside. Requires root.
pub fn enter() -> Result<Place> {
    if let Some(folder) = env::var_os(FOLDER) {
        let folder = PathBuf::from(folder);
        return Ok(Place::Inside(Enclosure { folder }));
    }
    ensure!(
        rustix::process::geteuid().is_root(),
        "containers take root: run this as root"
    );
    sweep_stale()?;
    let enclosure = Enclosure::of(std::process::id());
    let folder = enclosure.folder();
    // Remove the leftovers of an earlier process with the same ID.
    remove(&enclosure.name())?;
    fs::create_dir(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to prepare for signals")?;
    let end = runtime.block_on(run_inside(folder));
    let removed = remove(&enclosure.name());
    let code = end?;
    removed?;
    Ok(Place::Outside(code))
}

/// Starts the process inside and waits until it has ended, by itself or because of a signal.
async fn run_inside(folder: &Path) -> Result<ExitCode> {
    let [mut interrupt, mut terminate, mut hangup] = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    ];
    let program = env::current_exe().context("failed to find this program")?;
    // Each process ends with its parent, the first of which is this process.
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .args(["unshare", "--pid", "--fork", "--kill-child"])
        .args(["--mount", "--mount-proc", "--propagation", "private", "--"])
        .args(["sh", "-ec", FIRST_PROCESS, "sh"])
        .arg(program)
        .args(env::args_os().skip(1))
        .env(FOLDER, folder)
        .env("TMPDIR", folder)
        .spawn()
        .context("failed to run setpriv and unshare: install util-linux")?;
    tokio::select! {
        status = child.wait() => {
            let code = status.context("failed to wait for what is inside")?.code();
            let code = code.and_then(|code| u8::try_from(code).ok());
            return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
        }
        // Cancel safe: this process ends here.
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    child.kill().await.context("failed to end what is inside")?;
    Ok(ExitCode::FAILURE)
}

/// Removes the leftovers of enclosures whose makers were killed.
pub fn sweep_stale() -> Result<()> {
    for name in observe_names()? {
        if !runs(name.trim_start_matches(PREFIX)) {
            remove(&name)?;
        }
    }
    Ok(())
}

/// Whether this process is running. Zombies are still listed.
fn runs(process: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(process).join("stat"));
    // The name of the program before it is in parentheses and may contain any character.
    stat.is_ok_and(|stat| {
        let state = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.trim().chars().next());
        !matches!(state, None | Some('Z' | 'X'))
    })
}

/// Returns the names of all enclosures with leftovers.
pub fn observe_names() -> Result<Vec<String>> {
    let mut names = control_groups::observe_names(PREFIX)?;
    for entry in fs::read_dir(env::temp_dir()).context("failed to list temporary files")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(PREFIX) {
            names.insert(name);
        }
    }
    Ok(names.into_iter().collect())
}

/// Removes the leftovers of an enclosure whose processes have ended or are ending: until they have,
/// they may still create files.
fn remove(name: &str) -> Result<()> {
    control_groups::remove(name)?;
    let folder = env::temp_dir().join(name);
    let what = format!("{} to be removed", folder.display());
    wait_for(&what, REMOVED_WITHIN, || {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(None),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("failed to remove {}", folder.display()))
            }
            _ => Ok(Some(())),
        }
    })
}

// === impl Enclosure ===

impl Enclosure {
    /// Returns the enclosure made by the process `maker`.
    pub fn of(maker: u32) -> Enclosure {
        Enclosure {
            folder: env::temp_dir().join(format!("{PREFIX}{maker}")),
        }
    }

    /// Returns a process of a node in the enclosure, as a process ID of the caller's PID namespace.
    pub fn observe_process_of(&self, node: &str) -> Result<u32> {
        let group = format!("{}/{node}/{HOLDER}", self.name());
        let processes = control_groups::observe_processes(&group)?;
        processes
            .first()
            .copied()
            .with_context(|| format!("there is no {node}"))
    }

    /// Returns the folder of the enclosure, also used for temporary files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the name of its control groups.
    pub fn name(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}
