//! The machine of a run.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::param::clock_ticks_per_second;

use super::{Arena, Contender};

/// How long the steadiness of the machine is observed.
const WATCHED: Duration = Duration::from_secs(3);
/// The minimum gap on an idle processor that counts as a standstill.
const STANDSTILL: Duration = Duration::from_millis(1);

/// The machine and the versions of all relevant programs.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The facts in order.
    pub(super) facts: Vec<(&'static str, String)>,
}

// === impl Machine ===

impl Machine {
    /// Reads the facts from the kernel and the programs. A program that is not installed has no
    /// version.
    pub fn observe(arena: &Arena) -> Result<Machine> {
        let mut facts = vec![
            ("processor", observe_processor()?),
            ("memory", observe_memory()?),
            ("standstills", observe_standstills()?),
            ("kernel", read("/proc/sys/kernel/osrelease")?),
            ("nft", version_of("nft")),
            ("iptables", version_of("iptables-nft")),
        ];
        for contender in Contender::ALL {
            let name = match contender {
                Contender::KubeProxy => "kube-proxy",
                Contender::Signpost => "signpost-agent",
            };
            let mut version = arena.entry(contender)?.describe_version()?;
            if contender == Contender::Signpost && cfg!(debug_assertions) {
                version += ", built without optimization: its figures count for nothing";
            }
            facts.push((name, version));
        }
        Ok(Machine { facts })
    }
}

fn observe_processor() -> Result<String> {
    let text = read("/proc/cpuinfo")?;
    let name = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    let count = thread::available_parallelism()?;
    Ok(format!("{count} x {}", name.unwrap_or_default()))
}

/// Measures how often each processor stands still before the benchmark: the host of a virtual
/// machine may suspend it at any time, which limits the accuracy of all times.
fn observe_standstills() -> Result<String> {
    let count = thread::available_parallelism()?.get();
    let gaps: Vec<Duration> = thread::scope(|scope| {
        let watching: Vec<_> = (0..count).map(|_| scope.spawn(watch_time)).collect();
        let gaps = watching.into_iter().filter_map(|watch| watch.join().ok());
        gaps.flatten().collect()
    });
    let longest = gaps.iter().max().copied().unwrap_or_default();
    Ok(format!(
        "{} of {STANDSTILL:?} or more in {WATCHED:?} on {count} processors with nothing to do, {longest:.1?} at the longest",
        gaps.len()
    ))
}

/// Returns the gaps in which the clock advanced and this thread did not run.
fn watch_time() -> Vec<Duration> {
    let start = Instant::now();
    let (mut last, mut gaps) = (start, Vec::new());
    while last - start < WATCHED {
        let now = Instant::now();
        if now - last >= STANDSTILL {
            gaps.push(now - last);
        }
        last = now;
    }
    gaps
}

fn observe_memory() -> Result<String> {
    let text = read("/proc/meminfo")?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    Ok(total.unwrap_or_default().trim().to_owned())
}

/// Returns the processor time that everything on the machine has taken, in ticks of the kernel's
/// clock (10 ms): of the columns of `cpu` in proc_stat(5) the sum of user, nice, system, irq and
/// softirq.
pub(super) fn observe_busy_time() -> Result<Duration> {
    let text = read("/proc/stat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "));
    let columns = line.unwrap_or_default().split_ascii_whitespace();
    let columns: Vec<u64> = columns.map(str::parse).collect::<Result<_, _>>()?;
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = columns[..] else {
        bail!("/proc/stat has {} columns", columns.len());
    };
    let each = Duration::from_secs(1) / u32::try_from(clock_ticks_per_second())?;
    Ok(each * u32::try_from(user + nice + system + irq + softirq)?)
}

fn version_of(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(_) => "not installed".to_owned(),
    }
}

fn read(file: &str) -> Result<String> {
    let text = fs::read_to_string(file).with_context(|| format!("failed to read {file}"))?;
    Ok(text.trim().to_owned())
}
