//! A part of the machine that everything of a cluster is in, so that all of it can be taken away.
//!
//! Containers, their mounts and what looks after them do not end with who started them. Here they
//! do: a process namespace ends as its first process does, whichever way that is, and with the last
//! process go its mounts and the names of network namespaces. Two things remain, a folder and control
//! groups; who made the enclosure removes them, or, if that was killed, the next one.

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

/// What names of enclosures start with; the process id of who made it follows.
pub const PREFIX: &str = "signpost-enclosure-";

/// How long processes may take to end that were told to.
const REMOVED_WITHIN: Duration = Duration::from_secs(30);

/// Set inside, to the folder.
const FOLDER: &str = "SIGNPOST_ENCLOSURE";

/// Run by the first process inside. It stays, because orphans become its children, and a shell that
/// waits for one child takes note of the end of all.
const FIRST_PROCESS: &str = r#"
mount -t tmpfs tmpfs /run
mkdir /run/netns
"$@"
exit $?
"#;

/// The one that this process is in.
#[derive(Debug, Clone)]
pub struct Enclosure {
    folder: PathBuf,
}

/// Where a process finds itself that has called [`enter`].
#[derive(Debug)]
pub enum Place {
    /// Inside: go on.
    Inside(Enclosure),
    /// Outside, after the end of what was inside, which ended with this: end, too.
    Outside(ExitCode),
}

/// Starts this program again, with the same arguments, in an enclosure of its own, and waits for
/// its end. Call it first in `main`: what was done before is done twice. Signals to end end all that
/// is inside. Takes root.
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
    // Of a process that had the number before us.
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

/// Starts the inside and waits until it has ended, by itself or because a signal says so.
async fn run_inside(folder: &Path) -> Result<ExitCode> {
    let [mut interrupt, mut terminate, mut hangup] = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    ];
    let program = env::current_exe().context("failed to find this program")?;
    // Each ends with the one before it, of which the first is this process.
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
        // Nothing is lost with the ones that are not chosen: we end.
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    child.kill().await.context("failed to end what is inside")?;
    Ok(ExitCode::FAILURE)
}

/// Removes what enclosures left behind whose makers were killed.
pub fn sweep_stale() -> Result<()> {
    for name in observe_names()? {
        if !runs(name.trim_start_matches(PREFIX)) {
            remove(&name)?;
        }
    }
    Ok(())
}

/// Whether this process has not ended. One that nobody has taken note of yet is still listed.
fn runs(process: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(process).join("stat"));
    // The name of the program comes before, in brackets, and may have any.
    stat.is_ok_and(|stat| {
        let state = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.trim().chars().next());
        !matches!(state, None | Some('Z' | 'X'))
    })
}

/// Names of all enclosures of which anything is left.
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

/// Removes what an enclosure leaves whose processes have ended, or are about to: until they have, they
/// may still make files.
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
    /// The one that this process has made and waits for.
    pub fn of(maker: u32) -> Enclosure {
        Enclosure {
            folder: env::temp_dir().join(format!("{PREFIX}{maker}")),
        }
    }

    /// A process of a node in it, by the process ids of who asks.
    pub fn observe_process_of(&self, node: &str) -> Result<u32> {
        let group = format!("{}/{node}/{HOLDER}", self.name());
        let processes = control_groups::observe_processes(&group)?;
        processes
            .first()
            .copied()
            .with_context(|| format!("there is no {node}"))
    }

    /// A folder for everything; it is where temporary files are made, too.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The name of its control groups.
    pub fn name(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}
