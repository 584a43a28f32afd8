//! The resource usage of a process and its children, from `/proc` (proc(5)).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::param::{clock_ticks_per_second, page_size};

/// The sampling interval of memory. A child with a shorter life may be missed.
const MEMORY_PAUSE: Duration = Duration::from_millis(10);
/// The sampling interval for ended children.
const CHILDREN_PAUSE: Duration = Duration::from_millis(1);
/// Columns of `/proc/PID/stat`, counted from the state, which follows the name.
const CHILDREN_MINOR_FAULTS: usize = 8;
/// utime, stime, cutime and cstime. Children count once they have been waited for.
const TIMES: std::ops::RangeInclusive<usize> = 11..=14;

/// A process with all its descendants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessTree {
    root: u32,
}

/// An amount of memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(pub(crate) u64);

/// A value sampled repeatedly until stopped.
#[derive(Debug)]
struct Watch {
    ending: Arc<AtomicBool>,
    /// The maximum or the count.
    value: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

/// Measures the peak memory of a process tree.
#[derive(Debug)]
pub(super) struct MemoryWatch(Watch);

/// Counts the children of a process that end.
#[derive(Debug)]
pub(super) struct ChildrenWatch(Watch);

// === impl ProcessTree ===

impl ProcessTree {
    /// Returns the tree with this root process.
    pub(crate) fn of(root: u32) -> ProcessTree {
        ProcessTree { root }
    }

    /// Whether the process has children now.
    pub(super) fn has_children(self) -> bool {
        !children(self.root).is_empty()
    }

    /// Returns the resident memory. Shared pages count once for each process.
    pub(crate) fn observe_memory(self) -> Bytes {
        let mut pages = 0;
        let mut ahead = vec![self.root];
        while let Some(process) = ahead.pop() {
            pages += resident_pages(process).unwrap_or(0);
            ahead.extend(children(process));
        }
        let size = u64::try_from(page_size()).unwrap_or(4096);
        Bytes(pages * size)
    }

    /// Returns the processor time of the process and of its children that have ended, in ticks of
    /// the kernel's clock (10 ms).
    pub(crate) fn observe_processor_time(self) -> Result<Duration> {
        let stat = read_stat(self.root)?;
        let ticks: u64 = stat[TIMES].iter().sum();
        let each = Duration::from_secs(1) / u32::try_from(clock_ticks_per_second())?;
        Ok(each * u32::try_from(ticks)?)
    }

    /// Returns how often the running threads of the process have yielded the processor voluntarily,
    /// to be woken later.
    pub(super) fn observe_wakeups(self) -> Result<u64> {
        let mut wakeups = 0;
        for thread in threads(self.root)? {
            let Ok(status) = fs::read_to_string(thread.join("status")) else {
                continue;
            };
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            wakeups += line.map_or(Ok(0), |count| count.trim().parse::<u64>())?;
        }
        Ok(wakeups)
    }

    /// Starts to watch the memory.
    pub(super) fn watch_memory(self) -> MemoryWatch {
        MemoryWatch(Watch::start(MEMORY_PAUSE, move |peak| {
            peak.max(self.observe_memory().0)
        }))
    }

    /// Starts to count children that end. A child that has run a program has touched pages, and its
    /// faults are added to a counter of the process when it is waited for. An unchanged counter
    /// therefore proves that no child has ended; two children that end within a millisecond count
    /// once.
    pub(super) fn watch_children(self) -> ChildrenWatch {
        let mut before = None;
        ChildrenWatch(Watch::start(CHILDREN_PAUSE, move |count| {
            let stat = read_stat(self.root).ok();
            let now = stat.and_then(|stat| stat.get(CHILDREN_MINOR_FAULTS).copied());
            let moved = before.is_some() && now.is_some() && before != now;
            before = now.or(before);
            count + u64::from(moved)
        }))
    }
}

// === impl Watch ===

impl Watch {
    fn start(pause: Duration, mut look: impl FnMut(u64) -> u64 + Send + 'static) -> Watch {
        let ending = Arc::new(AtomicBool::new(false));
        let value = Arc::new(AtomicU64::new(0));
        let (reported, result) = (Arc::clone(&ending), Arc::clone(&value));
        let thread = thread::spawn(move || {
            while !reported.load(Ordering::Relaxed) {
                result.store(look(result.load(Ordering::Relaxed)), Ordering::Relaxed);
                thread::sleep(pause);
            }
        });
        Watch {
            ending,
            value,
            thread,
        }
    }

    fn finish(self) -> u64 {
        self.ending.store(true, Ordering::Relaxed);
        // A panic of the thread has already been printed.
        drop(self.thread.join());
        self.value.load(Ordering::Relaxed)
    }
}

// === impl MemoryWatch ===

impl MemoryWatch {
    /// Returns the peak.
    pub(super) fn finish(self) -> Bytes {
        Bytes(self.0.finish())
    }
}

// === impl ChildrenWatch ===

impl ChildrenWatch {
    /// Returns the number of children that have ended.
    pub(super) fn finish(self) -> u64 {
        self.0.finish()
    }
}

/// Returns the memory used by the kernel itself on the whole machine: slabs, vmalloc and per-CPU
/// memory.
pub(crate) fn observe_kernel_memory() -> Result<Bytes> {
    let text = fs::read_to_string("/proc/meminfo").context("failed to read /proc/meminfo")?;
    let fields = ["Slab", "VmallocUsed", "Percpu"];
    let kilobytes = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        let value = value.trim().strip_suffix(" kB")?;
        fields.contains(&name).then(|| value.parse::<u64>())
    });
    let sum: u64 = kilobytes.sum::<Result<u64, _>>()?;
    Ok(Bytes(sum * 1024))
}

/// Returns the numbers of `/proc/PID/stat` starting with the state, which is not a number and reads
/// as 0.
fn read_stat(process: u32) -> Result<Vec<u64>> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))
        .with_context(|| format!("failed to look at process {process}"))?;
    // A process name can contain any character, including spaces and parentheses.
    let (_, numbers) = text.rsplit_once(')').context("a name is in parentheses")?;
    let numbers = numbers.split_whitespace();
    Ok(numbers.map(|number| number.parse().unwrap_or(0)).collect())
}

fn resident_pages(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

fn children(process: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for thread in threads(process).unwrap_or_default() {
        let text = fs::read_to_string(thread.join("children")).unwrap_or_default();
        children.extend(
            text.split_whitespace()
                .filter_map(|id| id.parse::<u32>().ok()),
        );
    }
    children
}

fn threads(process: u32) -> Result<Vec<PathBuf>> {
    let folder = Path::new("/proc").join(process.to_string()).join("task");
    let entries = fs::read_dir(folder).context("failed to list threads")?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    #[test]
    fn every_child_is_counted() -> Result<()> {
        let own = ProcessTree::of(std::process::id());
        let watch = own.watch_children();
        // Long enough for the first sample, with which later ones are compared.
        thread::sleep(CHILDREN_PAUSE * 20);
        for _ in 0..3 {
            Command::new("true").status()?;
            thread::sleep(CHILDREN_PAUSE * 20);
        }
        assert!(watch.finish() >= 3);
        Ok(())
    }

    #[test]
    fn the_memory_of_children_counts() -> Result<()> {
        let own = ProcessTree::of(std::process::id());
        let mut child = Command::new("sleep").arg("60").spawn()?;
        let (alone, together) = (
            resident_pages(own.root).context("this process runs")?,
            own.observe_memory(),
        );
        let seen = own.has_children();
        child.kill()?;
        child.wait()?;
        assert!(seen);
        assert!(together > Bytes(alone), "{together:?}");
        Ok(())
    }

    #[test]
    fn work_takes_processor_time() -> Result<()> {
        let own = ProcessTree::of(std::process::id());
        let before = own.observe_processor_time()?;
        let end = Instant::now() + Duration::from_secs(20);
        while own.observe_processor_time()? == before && Instant::now() < end {}
        assert!(own.observe_processor_time()? > before);
        Ok(())
    }
}
