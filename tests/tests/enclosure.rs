//! The leftovers of a cluster on the machine: none, however it ends.
//!
//! Each test starts this program again as a cluster with one node and a Pod, ends it, and searches
//! for processes, mounts, control groups and files.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Arguments, Trial};
use rustix::process::{Pid, Signal, kill_process};
use tests::control_plane::build_programs;
use tests::deadline::wait_for;
use tests::network::Process;
use tests::real_cluster::enclosure::{self, Enclosure, Place};
use tests::real_cluster::{Built, Plan, RealCluster, missing};
use tests::trial::trial;

/// The first argument of a program that acts as a cluster; the second says how it ends.
const BE_A_CLUSTER: &str = "be-a-cluster";
/// The output of that program when its Pod runs.
const RUNNING: &str = "the pod runs";
/// The deadline of the start, and of the end of everything. Either takes some ten seconds.
const DEADLINE: Duration = Duration::from_secs(120);

const POD: &str = r#"{
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pause"},
    "spec": {"containers": [{"name": "pause", "image": "registry.test/pause:3.10.2"}]}
}"#;

/// How a cluster ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// It ends with its input.
    Ends,
    /// It runs until it is killed.
    Stays,
    /// It fails to start because an image is missing.
    Fails,
}

/// A cluster with a running Pod.
#[derive(Debug)]
struct Cluster {
    /// The process outside the enclosure.
    maker: Process,
    /// The first process inside.
    first: u32,
    traces: Traces,
}

/// The name of a cluster's folder and control groups, by which its leftovers are recognized.
#[derive(Debug)]
struct Traces(String);

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = env::args().collect();
    if let [_, order, course] = &arguments[..]
        && order == BE_A_CLUSTER
    {
        return be_a_cluster(course.parse()?);
    }
    let arguments = Arguments::from_args();
    if let Some(problem) = missing() {
        println!("SKIPPED: what a cluster leaves behind: {problem}");
        let skipped = Trial::test("SKIPPED_what_a_cluster_leaves_behind", || Ok(()));
        let skipped = skipped.with_ignored_flag(true);
        return Ok(libtest_mimic::run(&arguments, vec![skipped]).exit_code());
    }
    build_programs()?;
    Built::cluster()?;
    let arguments = Arguments {
        // A cluster uses the whole machine.
        test_threads: Some(1),
        ..arguments
    };
    let trials = vec![
        trial("a_cluster_that_ends_leaves_nothing", ends),
        trial(
            "a_cluster_that_is_asked_to_end_leaves_nothing",
            reported_to_end,
        ),
        trial(
            "a_cluster_whose_first_process_is_killed_leaves_nothing",
            first_process_killed,
        ),
        trial(
            "what_a_killed_maker_leaves_is_swept_by_the_next",
            maker_killed,
        ),
        trial("a_start_that_fails_leaves_nothing", fails),
    ];
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}

fn ends() -> Result<()> {
    let Cluster { maker, traces, .. } = Cluster::start(Course::Ends)?;
    maker.finish(DEADLINE)?;
    traces.expect_gone()
}

fn reported_to_end() -> Result<()> {
    let mut cluster = Cluster::start(Course::Stays)?;
    kill(cluster.maker.id(), Signal::TERM)?;
    cluster.maker.wait_for_end(DEADLINE)?;
    cluster.traces.expect_gone()
}

fn first_process_killed() -> Result<()> {
    let mut cluster = Cluster::start(Course::Stays)?;
    kill(cluster.first, Signal::KILL)?;
    let status = cluster.maker.wait_for_end(DEADLINE)?;
    ensure!(!status.success(), "the failure is not reported");
    cluster.traces.expect_gone()
}

/// A process cannot handle SIGKILL; all other processes must end anyway.
fn maker_killed() -> Result<()> {
    let mut cluster = Cluster::start(Course::Stays)?;
    kill(cluster.maker.id(), Signal::KILL)?;
    cluster.maker.wait_for_end(DEADLINE)?;
    cluster.traces.wait_for_no_process()?;
    ensure!(
        enclosure::observe_names()?.contains(&cluster.traces.0),
        "there is nothing to sweep"
    );
    enclosure::sweep_stale()?;
    cluster.traces.expect_gone()
}

fn fails() -> Result<()> {
    let mut maker = begin(Course::Fails)?;
    let traces = Traces::of(&maker);
    wait_for("a node", DEADLINE, || {
        let processes = traces.observe_processes()?;
        let node = processes.iter().any(|process| runs(*process, "containerd"));
        Ok(node.then_some(()))
    })?;
    let status = maker.wait_for_end(DEADLINE)?;
    ensure!(!status.success(), "it has started");
    traces.expect_gone()
}

/// Acts as a cluster in the restarted program: first outside, and then inside the enclosure.
fn be_a_cluster(course: Course) -> Result<ExitCode> {
    let enclosure = match enclosure::enter()? {
        Place::Inside(enclosure) => enclosure,
        Place::Outside(code) => return Ok(code),
    };
    let images = match course {
        Course::Fails => vec![enclosure.folder().join("no-such-image.tar")],
        Course::Ends | Course::Stays => Vec::new(),
    };
    let plan = Plan { nodes: 1, images };
    let cluster = RealCluster::start(&plan, &enclosure, &|_| {})?;
    let control_plane = cluster.control_plane();
    // Pods are rejected until their service account exists.
    wait_for("a pod to be taken", DEADLINE, || {
        Ok(control_plane.apply(POD).ok())
    })?;
    control_plane.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/pause",
        "--timeout=60s",
    ])?;
    println!("{RUNNING}");
    if course == Course::Stays {
        loop {
            thread::park();
        }
    }
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(ExitCode::SUCCESS)
}

fn begin(course: Course) -> Result<Process> {
    let mut command = Command::new(env::current_exe().context("failed to find this program")?);
    command.args([BE_A_CLUSTER, &format!("{course:?}")]);
    // One of the tests fails on purpose.
    command.env("RUST_BACKTRACE", "0");
    Process::start("a cluster", command)
}

// === impl Course ===

impl FromStr for Course {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Course> {
        let all = [Course::Ends, Course::Stays, Course::Fails];
        let mut fitting = all
            .into_iter()
            .filter(|course| format!("{course:?}") == word);
        fitting
            .next()
            .with_context(|| format!("{word:?} is not how a cluster goes"))
    }
}

// === impl Cluster ===

impl Cluster {
    /// Starts a cluster; returns when its Pod runs.
    fn start(course: Course) -> Result<Cluster> {
        let mut maker = begin(course)?;
        maker.wait_for_line(RUNNING, DEADLINE)?;
        let traces = Traces::of(&maker);
        let processes = wait_for("all processes to be seen whose they are", DEADLINE, || {
            let processes = observe_descendants(maker.id())?;
            let known = traces.observe_processes()?;
            // Processes of kubectl are short-lived, and one that is ending no longer shows its
            // cluster.
            let mut unknown = processes.difference(&known);
            let all_known = !unknown.any(|process| exists(*process));
            Ok(all_known.then_some(processes))
        })?;
        println!("    {} processes", processes.len());
        for program in ["containerd", "kubelet", "kube-apiserver", "pause"] {
            ensure!(
                processes.iter().any(|process| runs(*process, program)),
                "{program} is none of them"
            );
        }
        let first = processes.iter().find(|process| is_first(**process));
        let first = *first.context("a process namespace has a first process")?;
        let mounts = traces.observe_mounts()?;
        ensure!(mounts.is_empty(), "mounts on the machine: {mounts:?}");
        Ok(Cluster {
            maker,
            first,
            traces,
        })
    }
}

// === impl Traces ===

impl Traces {
    fn of(maker: &Process) -> Traces {
        Traces(Enclosure::of(maker.id()).name())
    }

    fn wait_for_no_process(&self) -> Result<()> {
        wait_for("all processes to end", DEADLINE, || {
            Ok(self.observe_processes()?.is_empty().then_some(()))
        })
    }

    /// Asserts that nothing is left. A namespace without processes and names does not exist; the
    /// names were mounts in one of the namespaces.
    fn expect_gone(&self) -> Result<()> {
        self.wait_for_no_process()?;
        let mounts = self.observe_mounts()?;
        ensure!(mounts.is_empty(), "mounts: {mounts:?}");
        if enclosure::observe_names()?.contains(&self.0) {
            bail!("{} has a folder or control groups", self.0);
        }
        Ok(())
    }

    /// Returns the processes with the folder in their environment, which all processes inside
    /// except containers inherit, or in the control groups, which contain the containers.
    fn observe_processes(&self) -> Result<BTreeSet<u32>> {
        let mut all: BTreeSet<u32> = observe_processes()?.into_keys().collect();
        all.retain(|process| {
            let mut files = ["environ", "cgroup"].into_iter();
            files.any(|file| {
                // Both are empty for a process that has ended meanwhile.
                let content = fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
                String::from_utf8_lossy(&content).contains(&self.0)
            })
        });
        Ok(all)
    }

    /// Returns the mounts below the folder in this process's mount namespace.
    fn observe_mounts(&self) -> Result<Vec<String>> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("failed to list mounts")?;
        let below = mounts.lines().filter(|line| line.contains(&self.0));
        Ok(below.map(str::to_owned).collect())
    }
}

fn kill(process: u32, signal: Signal) -> Result<()> {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    let process = process.context("a process id is one")?;
    kill_process(process, signal).context("failed to send a signal")
}

/// Returns all processes of the machine, each with its parent.
fn observe_processes() -> Result<BTreeMap<u32, u32>> {
    let mut processes = BTreeMap::new();
    for entry in fs::read_dir("/proc").context("failed to list processes")? {
        let name = entry?.file_name();
        let Some(process) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Skip processes that have ended meanwhile.
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let parent = status
            .lines()
            .find_map(|line| line.strip_prefix("PPid:\t")?.parse().ok());
        if let Some(parent) = parent {
            processes.insert(process, parent);
        }
    }
    Ok(processes)
}

/// Returns all descendants of a process. Orphans in a PID namespace become children of its first
/// process.
fn observe_descendants(process: u32) -> Result<BTreeSet<u32>> {
    let all = observe_processes()?;
    let mut found = BTreeSet::new();
    let mut last = vec![process];
    while let Some(parent) = last.pop() {
        let children = all.iter().filter(|(_, its)| **its == parent);
        last.extend(
            children
                .map(|(child, _)| *child)
                .filter(|child| found.insert(*child)),
        );
    }
    Ok(found)
}

/// Whether a process is the first of a PID namespace directly below this one.
fn is_first(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let ids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:\t"));
    ids.is_some_and(|ids| ids.split('\t').skip(1).eq(["1"]))
}

fn runs(process: u32, program: &str) -> bool {
    let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    first.rsplit('/').next() == Some(program)
}

fn exists(process: u32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}
