//! Debian kernels with read access to this machine's files, in an emulated machine or as a program:
//! `tests/kernel-rig`.
//!
//! Such a kernel shares no network with this machine, other than that of a control plane that runs
//! here for it, and its writes are discarded.

mod host_control_plane;

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

pub use host_control_plane::HostControlPlane;

use crate::control_plane::FOLDER_ON_HOST;

/// The exit status of the rig's scripts if a prerequisite is missing.
const SKIPPED: i32 = 77;
/// Run before each command, so that the output of the test states the tested versions.
const WITH_VERSIONS: &str = r#"echo "kernel $(uname -r), $(nft --version)"; exec "$@""#;

/// The availability of the rig on this machine.
#[derive(Debug)]
pub enum KernelRig {
    /// A kernel is ready to be started.
    Ready,
    /// The rig is not available, for this reason.
    Missing(String),
}

/// The machine to start.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// The kernel series, such as 6.1 or 6.1-user-mode.
    pub series: &'a str,
    /// Kernel parameters, such as `ipv6.disable=1`.
    pub boot: &'a str,
    /// The control plane that tests in the machine use in place of one of their own.
    pub control_plane: Option<&'a HostControlPlane>,
}

/// The result and the output of a command.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status or one of the rig's own.
    pub status: Option<i32>,
    /// The lines of standard output and standard error, in order of arrival.
    pub lines: Vec<String>,
}

/// Downloads the newest kernel of a series, such as 6.1, unless one is present; of 6.1-user-mode it
/// downloads the sources, builds it, and starts it once.
pub fn prepare(series: &str) -> Result<KernelRig> {
    let Some(numbers) = series.strip_suffix("-user-mode") else {
        return run_script(Command::new(script("fetch")).arg(series));
    };
    match run_script(Command::new(script("build-user-mode")).arg(numbers))? {
        KernelRig::Ready => {}
        missing @ KernelRig::Missing(_) => return Ok(missing),
    }
    // Not every machine lets a process trace others, or has memory in /dev/shm.
    let starts = ["--kernel", series, "--deadline", "60", "true"];
    let started = Command::new(script("run")).args(starts).output();
    let started = started.context("failed to run the rig")?;
    Ok(if started.status.success() {
        KernelRig::Ready
    } else {
        let complaint = String::from_utf8_lossy(&started.stderr);
        let last = complaint.trim().lines().last().unwrap_or_default();
        KernelRig::Missing(format!("the kernel does not start on this machine: {last}"))
    })
}

fn run_script(command: &mut Command) -> Result<KernelRig> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .context("failed to run a script of the rig")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(KernelRig::Ready),
        Some(SKIPPED) => {
            let last = complaint.trim().lines().last().unwrap_or_default();
            Ok(KernelRig::Missing(last.to_owned()))
        }
        _ => bail!("the kernel was not fetched: {complaint}"),
    }
}

/// Runs a command as root on that machine and prints its output, each line prefixed with the series
/// and `name`. A command that has not ended after `deadline`, which includes the start of the
/// machine, ends with status 124.
pub fn run_in_rig<A: AsRef<OsStr>>(
    machine: Machine<'_>,
    name: &str,
    deadline: Duration,
    command: impl IntoIterator<Item = A>,
) -> Result<Ended> {
    let Machine {
        series,
        boot,
        control_plane,
    } = machine;
    // If this process is killed, the machine ends too.
    let mut setpriv = match control_plane {
        None => Command::new("setpriv"),
        Some(host) => host.namespace().command("setpriv"),
    };
    setpriv
        .args(["--pdeathsig", "TERM", "--"])
        .arg(script("run"))
        .args([
            "--kernel",
            series,
            "--boot",
            boot,
            "--deadline",
            &deadline.as_secs().to_string(),
        ]);
    if let Some(host) = control_plane {
        setpriv.args(["--network", "user"]);
        setpriv.env(FOLDER_ON_HOST, host.folder());
    }
    let mut child = setpriv
        .args(["sh", "-c", WITH_VERSIONS, "sh"])
        .args(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to run setpriv: install util-linux")?;
    let output = child.stdout.take().context("the output is a pipe")?;
    let mut lines = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line.context("failed to read what the machine prints")?;
        println!("{series} {name}: {line}");
        lines.push(line);
    }
    let status = child.wait()?.code();
    Ok(Ended { status, lines })
}

/// Returns the most recent build of this test target.
pub fn test_program(target: &str) -> Result<PathBuf> {
    let own = env::current_exe().context("failed to find this program")?;
    let folder = own.parent().context("programs are in folders")?;
    let prefix = format!("{target}-");
    let mut newest: Option<(SystemTime, PathBuf)> = None;
    for entry in fs::read_dir(folder).context("failed to list the test programs")? {
        let path = entry?.path();
        let is_it = path.extension().is_none()
            && path
                .file_name()
                .and_then(OsStr::to_str)
                .is_some_and(|name| name.starts_with(&prefix));
        if is_it {
            let built = fs::metadata(&path)?.modified()?;
            newest = newest.max(Some((built, path)));
        }
    }
    let (_, path) = newest.with_context(|| {
        format!("{target} is not built: cargo test --package tests --test {target} --no-run")
    })?;
    Ok(path)
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("kernel-rig")
        .join(name)
}

// === impl Ended ===

impl Ended {
    /// Fails unless the command was a test program that passed; returns the number of passed tests.
    pub fn expect_passed(&self) -> Result<u32> {
        let result = self.lines.iter().rfind(|l| l.starts_with("test result: "));
        ensure!(
            self.status == Some(0),
            "ended with {:?}: {}",
            self.status,
            result.or(self.lines.last()).map_or("", String::as_str)
        );
        let passed = result.and_then(|line| {
            let before = line.split_once(" passed")?.0;
            before.rsplit_once(' ')?.1.parse().ok()
        });
        passed.context("it does not say how many tests have passed")
    }
}
