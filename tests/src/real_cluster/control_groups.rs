//! The control groups of nodes, by which the kernel tracks the processes of each node.
//!
//! With version 1 each controller has a separate hierarchy below [`ROOT`], and a node has a group
//! in each. With version 2 there is one hierarchy.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::deadline::wait_for;

/// The mount point of the hierarchies.
const ROOT: &str = "/sys/fs/cgroup";

/// How long killed processes may take to end.
const DEADLINE: Duration = Duration::from_secs(30);

/// The files of a `cpuset` group that must be set before a process can join it.
const CPUSET: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

/// Creates the group `path`, such as `a/b`, in every hierarchy.
pub(super) fn make(path: &str) -> Result<()> {
    for hierarchy in observe_hierarchies()? {
        let mut group = hierarchy;
        for part in path.split('/') {
            let above = group.clone();
            group.push(part);
            match fs::create_dir(&group) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(error)
                        .with_context(|| format!("failed to make {}", group.display()));
                }
                _ => {}
            }
            for file in CPUSET.iter().filter(|file| group.join(file).exists()) {
                let inherited = fs::read(above.join(file))?;
                fs::write(group.join(file), inherited)
                    .with_context(|| format!("failed to set {file} of {}", group.display()))?;
            }
        }
    }
    Ok(())
}

/// Moves a process, and the processes that it starts from now on, into the group of the hierarchy
/// in which no other program moves it.
pub(super) fn put(process: u32, path: &str) -> Result<()> {
    let group = tracked(path);
    fs::write(group.join("cgroup.procs"), process.to_string())
        .with_context(|| format!("failed to put a process into {}", group.display()))
}

/// Kills every process in the group and below, and removes it from every hierarchy.
pub(super) fn remove(path: &str) -> Result<()> {
    wait_for(&format!("the control group {path} to go"), DEADLINE, || {
        let mut left = false;
        for hierarchy in observe_hierarchies()? {
            left |= !remove_once(&hierarchy.join(path))?;
        }
        Ok((!left).then_some(()))
    })
}

/// Returns the names of top-level groups that start with `prefix`.
pub(super) fn observe_names(prefix: &str) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for hierarchy in observe_hierarchies()? {
        for group in observe_groups(&hierarchy)? {
            let name = group.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(prefix) {
                names.insert(name.into_owned());
            }
        }
    }
    Ok(names)
}

/// Returns the processes in the group itself.
pub(super) fn observe_processes(path: &str) -> Result<Vec<u32>> {
    let file = tracked(path).join("cgroup.procs");
    let processes =
        fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
    Ok(processes
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect())
}

/// Returns the group that tracks all processes of a node: the groups of containers are below it.
fn tracked(path: &str) -> PathBuf {
    let root = Path::new(ROOT);
    let pids = root.join("pids");
    if pids.exists() { pids } else { root.to_owned() }.join(path)
}

/// Returns the roots of all hierarchies.
fn observe_hierarchies() -> Result<Vec<PathBuf>> {
    let root = PathBuf::from(ROOT);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root]);
    }
    let mut hierarchies = observe_groups(&root)?;
    hierarchies.retain(|hierarchy| hierarchy.join("cgroup.procs").exists());
    // Additional names of a hierarchy are links.
    hierarchies.retain(|hierarchy| !hierarchy.is_symlink());
    Ok(hierarchies)
}

/// Tries to remove the group; returns whether it is gone.
fn remove_once(group: &Path) -> Result<bool> {
    if !group.exists() {
        return Ok(true);
    }
    for below in observe_groups(group)? {
        remove_once(&below)?;
    }
    let processes = match fs::read_to_string(group.join("cgroup.procs")) {
        Ok(processes) => processes,
        Err(error) => return gone(&error, error.kind() == ErrorKind::NotFound, group),
    };
    for process in processes.lines() {
        // 0 stands for a process outside this PID namespace.
        let process = process.parse().ok().and_then(Pid::from_raw);
        if let Some(process) = process {
            // An error means that it has already ended.
            let _ = kill_process(process, Signal::KILL);
        }
    }
    match fs::remove_dir(group) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(false),
        Err(error) => gone(&error, error.kind() == ErrorKind::NotFound, group),
    }
}

fn gone(error: &io::Error, gone: bool, group: &Path) -> Result<bool> {
    anyhow::ensure!(gone, "failed to remove {}: {error}", group.display());
    Ok(true)
}

fn observe_groups(group: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(group) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context("failed to list control groups"),
    };
    let mut groups = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            groups.push(path);
        }
    }
    Ok(groups)
}
