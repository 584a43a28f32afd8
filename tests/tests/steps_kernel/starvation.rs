//! A kernel without memory for more rules. Nothing is injected: the kernel itself refuses, because the
//! memory cgroup of the committing thread is full. Failure story T163.
//!
//! The kernel charges what it allocates during a system call to the group of the calling thread, and the
//! pages of a process to that of its first thread. A group of version 1 takes single threads: one that
//! commits from within has no memory for rules, while the process itself is short of nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use backend::{Backend, Recovery};
use backend_iptables::Iptables;
use backend_ipvs::Ipvs;
use backend_nftables::Nftables;
use dataplane::{Dataplane, Family};
use reconciler::{FamilyReconciler, Outcome, Reason, SystemClock};
use testkit::{Call, CallOutcome, Faulty};
use xtables::Variant;

use crate::agent::{self, Grain, Script};
use crate::mode::{Mode, Steps};
use crate::services;
use crate::stage::Stage;
use crate::witness::Witness;

const FAMILY: Family = Family::Ipv4;
/// The memory for new rules: less than the crowd needs in any mode.
const ROOM: u64 = 256 << 10;
/// Memory that the thread has for itself, in blocks: while the group is full, a thread that needs a new page
/// table waits for it.
const RESERVE: usize = 512;
const BLOCK: usize = 64 << 10;
/// The number of failing attempts.
const ATTEMPTS: usize = 3;
/// How much the limit grows if the thread waits for a page table nevertheless.
const MORE: u64 = 16 << 10;
/// How the message of ENOMEM ends.
const OUT_OF_MEMORY: &str = "(os error 12)";
/// The mount point of memory cgroups of version 1.
const MOUNTED: &str = "/sys/fs/cgroup/memory";

/// A memory cgroup for single threads. It is removed when this is dropped.
#[derive(Debug)]
struct MemoryGroup {
    folder: PathBuf,
    /// Both are opened at the start, because opening a file takes memory.
    inside: File,
    outside: File,
}

/// Whether a test may create memory cgroups of version 1 on this machine.
pub(crate) fn is_offered() -> bool {
    MemoryGroup::create().is_ok()
}

/// While the kernel has no memory for the rules of new Services, the existing ones are served. The agent
/// reports why it fails, and continues once there is memory again.
pub(crate) fn run(mode: Mode) -> Result<()> {
    let stage = Stage::build()?;
    take_steps(&stage, mode, &services::expected())?;
    let mut witness = Witness::begin(&stage, FAMILY)?;
    match mode {
        Mode::Nftables => starve::<Nftables>(&stage, Variant::NfTables, &mut witness),
        Mode::Iptables(variant) => starve::<Iptables>(&stage, variant, &mut witness),
        Mode::Ipvs => starve::<Ipvs>(&stage, Variant::NfTables, &mut witness),
    }?;
    let _ = witness.finish()?;
    let steps = take_steps(&stage, mode, &services::crowded())?;
    ensure!(steps == 0, "another agent would still take {steps} steps");
    Ok(())
}

/// Runs an agent until everything is programmed, and returns the number of its steps.
fn take_steps(stage: &Stage, mode: Mode, expected: &Dataplane) -> Result<usize> {
    let script = Script::new(Grain::Transactions, None);
    Ok(agent::run(stage, expected, (mode, None), FAMILY, script)?.steps)
}

/// Runs an agent that is short of memory while clients connect all the time.
fn starve<B: Steps>(stage: &Stage, variant: Variant, witness: &mut Witness) -> Result<()> {
    let group = Arc::new(MemoryGroup::create()?);
    let (node, backend) = (stage.node()?, B::open_family(stage, variant, FAMILY)?);
    thread::scope(|scope| {
        // Not the first thread of the process, to whose group all pages are charged.
        let agent = scope.spawn(|| node.enter(|| program(backend, &group))?);
        while !agent.is_finished() {
            let looked = witness.look("while memory is short");
            match looked {
                Ok(()) => group.relieve()?,
                Err(error) => {
                    group.lift()?;
                    return Err(error);
                }
            }
        }
        let ended = agent.join().map_err(|_| anyhow!("the agent panicked"))?;
        ended.context("while memory was short")
    })
}

fn program<B: Steps>(backend: B, group: &Arc<MemoryGroup>) -> Result<()> {
    let is_short = Arc::new(AtomicBool::new(false));
    let mut domain = FamilyReconciler::new(within(backend, group, &is_short));
    let (few, crowd) = (services::expected(), services::crowded());
    ensure_programmed(sync_until(&mut domain, &few, Reason::Startup, group)?)?;
    // Once with enough memory, so that the process has allocated what it needs.
    for desired in [&crowd, &few] {
        ensure_programmed(sync_until(&mut domain, desired, Reason::Changed, group)?)?;
    }
    let _end = reserve();
    group.limit(ROOM)?;
    is_short.store(true, Ordering::Relaxed);
    for attempt in 1..=ATTEMPTS {
        let reason = match attempt {
            1 => Reason::Changed,
            _ => Reason::Retry,
        };
        let Outcome::Failed(failure) = sync_until(&mut domain, &crowd, reason, group)? else {
            bail!("the kernel had memory for everything at attempt {attempt}");
        };
        let passes = matches!(failure.recovery, Recovery::Retry | Recovery::Observe);
        ensure!(passes, "it is given up: {}", failure.error);
        ensure!(failure.error.contains(OUT_OF_MEMORY), "{}", failure.error);
        let failing = domain.failing().context("nothing says that it fails")?;
        ensure!(failing.error == failure.error, "{failing:?}");
    }
    ensure!(group.refusals()? > 0, "the group was never full");
    group.lift()?;
    ensure_programmed(sync_until(&mut domain, &crowd, Reason::Retry, group)?)?;
    ensure!(domain.failing().is_none(), "{:?}", domain.failing());
    Ok(())
}

/// Gives mapped memory to this thread's allocator, which keeps it as long as the returned block at its end
/// exists.
fn reserve() -> Option<Vec<u8>> {
    let mut blocks: Vec<Vec<u8>> = (0..RESERVE).map(|_| vec![1; BLOCK]).collect();
    blocks.pop()
}

/// Returns a backend whose commits are charged to `group` while memory is short. Its reads are not.
fn within<B: Steps>(backend: B, group: &Arc<MemoryGroup>, is_short: &Arc<AtomicBool>) -> Faulty<B> {
    let (group, is_short) = (Arc::clone(group), Arc::clone(is_short));
    Faulty::new(backend, move |call| {
        let moved = match call {
            Call::Commit { .. } if is_short.load(Ordering::Relaxed) => group.enter(),
            Call::Commit { .. } | Call::Observe | Call::Removal => group.leave(),
        };
        match moved {
            Ok(()) => CallOutcome::Pass,
            Err(_) => CallOutcome::Refuse(Recovery::Halt),
        }
    })
}

/// Runs syncs until everything is programmed or one fails.
fn sync_until<B: Backend>(
    domain: &mut FamilyReconciler<B>,
    desired: &Dataplane,
    mut reason: Reason,
    group: &MemoryGroup,
) -> Result<Outcome> {
    loop {
        let sync = domain.sync(desired, reason, &SystemClock);
        group.leave()?;
        match &sync.outcome {
            Outcome::Partial => reason = Reason::Continued,
            outcome => return Ok(outcome.clone()),
        }
    }
}

fn ensure_programmed(outcome: Outcome) -> Result<()> {
    match outcome {
        Outcome::Committed | Outcome::Unchanged => Ok(()),
        outcome => bail!("{outcome:?}"),
    }
}

// === impl MemoryGroup ===

impl MemoryGroup {
    /// Creates one below that of this process, without a limit.
    fn create() -> Result<MemoryGroup> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let home = home()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("signpost-test-{}-{number}", std::process::id());
        let folder = home.join(name);
        let outside = open(&home.join("tasks"))?;
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).context("failed to create a memory cgroup");
            }
            _ => {}
        }
        let inside = open(&folder.join("tasks"))?;
        let group = MemoryGroup {
            folder,
            inside,
            outside,
        };
        // System calls fail, and the kernel kills no process.
        group.write("memory.oom_control", "1")?;
        Ok(group)
    }

    /// Charges what the kernel allocates for this thread to the group from now on.
    fn enter(&self) -> Result<()> {
        move_thread(&self.inside)
    }

    fn leave(&self) -> Result<()> {
        move_thread(&self.outside)
    }

    fn limit(&self, bytes: u64) -> Result<()> {
        self.write("memory.limit_in_bytes", &bytes.to_string())
    }

    fn lift(&self) -> Result<()> {
        self.write("memory.limit_in_bytes", "-1")
    }

    /// Raises the limit a little if the process itself waits for memory.
    fn relieve(&self) -> Result<()> {
        let state = fs::read_to_string(self.folder.join("memory.oom_control"))?;
        if !state.lines().any(|line| line == "under_oom 1") {
            return Ok(());
        }
        let limit = fs::read_to_string(self.folder.join("memory.limit_in_bytes"))?;
        self.limit(limit.trim().parse::<u64>()? + MORE)
    }

    /// How often the group was too full for an allocation.
    fn refusals(&self) -> Result<u64> {
        let text = fs::read_to_string(self.folder.join("memory.failcnt"))?;
        Ok(text.trim().parse()?)
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let file = self.folder.join(file);
        fs::write(&file, value).with_context(|| format!("failed to write {}", file.display()))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.folder) {
            eprintln!("failed to remove {}: {error}", self.folder.display());
        }
    }
}

/// Returns the memory cgroup of version 1 that contains this process.
fn home() -> Result<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let of_memory = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let is_memory = fields.next()?.split(',').any(|name| name == "memory");
        let path = fields.next()?.trim_start_matches('/').to_owned();
        is_memory.then_some(path)
    };
    let path = groups.lines().find_map(of_memory);
    let path = path.context("there are no memory cgroups of version 1")?;
    Ok(Path::new(MOUNTED).join(path))
}

fn open(file: &Path) -> Result<File> {
    let opened = OpenOptions::new().write(true).open(file);
    opened.with_context(|| format!("failed to open {}", file.display()))
}

/// Moves this thread into the group with this list of threads.
fn move_thread(mut tasks: &File) -> Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    tasks
        .write_all(thread.as_bytes())
        .context("failed to move a thread between cgroups")
}
