//! The size limit and timeouts of the connection tracking table.
//!
//! [`compile`] is pure and returns the values; [`commit`] sets them. A limit is never lowered: it
//! was raised for a reason, and a full table drops packets (kubernetes#71261).

use std::fmt;
use std::io::ErrorKind;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use thiserror::Error;

/// The settings of a profile for the connection tracking table. A duration of zero leaves the
/// kernel's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Entries per CPU; `None` leaves the kernel's limit, regardless of `min`.
    pub max_per_core: Option<NonZeroU32>,
    /// The minimum number of entries.
    pub min: u32,
    /// The timeout of an idle established TCP connection.
    pub tcp_established: Duration,
    /// The timeout of a TCP connection in CLOSE_WAIT.
    pub tcp_close_wait: Duration,
    /// The treatment of TCP packets outside the window.
    pub tcp_window: TcpWindow,
    /// The timeout of a UDP flow with traffic in one direction.
    pub udp: Duration,
    /// The timeout of a UDP flow with traffic in both directions.
    pub udp_stream: Duration,
}

/// The treatment of TCP packets outside the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpWindow {
    /// The kernel's setting stays.
    Unchanged,
    /// They are tracked.
    Liberal,
}

/// The machine's resources, which bound the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// CPUs that are online.
    pub cores: u32,
    /// Memory in bytes.
    pub memory: u64,
}

/// One file below `/proc/sys` and its desired value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Its path below `/proc/sys`.
    pub file: &'static str,
    /// The value: entries, seconds, or 1 for yes.
    pub value: u64,
    /// When to write it.
    pub rule: Rule,
}

/// When to write a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// If the kernel's value is lower.
    Raise,
    /// If the kernel's value differs.
    Set,
}

/// The result of [`commit`].
#[derive(Debug, Default)]
pub struct Committed {
    /// The changed settings.
    pub written: Vec<Written>,
    /// The settings that could not be changed, and why.
    pub failed: Vec<SettingError>,
}

/// A setting that was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The setting.
    pub setting: Setting,
    /// The previous value.
    pub before: u64,
}

/// Why a setting does not have its desired value.
#[derive(Debug, Error)]
#[error("unable to {}", step.on(file))]
pub struct SettingError {
    step: Step,
    file: PathBuf,
    source: io::Error,
}

/// The operation on a file.
#[derive(Debug, Clone, Copy)]
enum Step {
    Read,
    Raise { before: u64, value: u64 },
    Set { value: u64 },
}

/// The limit that is derived from the number of CPUs is at most this. A larger table costs more in
/// CPU cache misses than its capacity is worth: a machine with 512 CPUs was given 16 million
/// entries and lost packets (kubernetes#136228). Only a profile's `min` can exceed it.
const MOST_BY_CORES: u64 = 1 << 20;
/// The size of an entry: `struct nf_conn` takes 240 to 256 bytes on 64-bit machines, and an
/// extension of up to 128 bytes holds NAT, counters, timestamps and labels.
const BYTES_PER_ENTRY: u64 = 320;
/// A full table may take this part of the memory, as a divisor. Its memory cannot be swapped or
/// reclaimed, and any sender of packets can fill it.
const PART_OF_MEMORY: u64 = 16;
/// The number of entries per bucket in a full table, as in kube-proxy.
const ENTRIES_PER_BUCKET: u64 = 4;

/// The settings for `profile` on `machine`.
pub fn compile(profile: &Profile, machine: &Machine) -> Vec<Setting> {
    let raise = |file, value| Setting {
        file,
        value,
        rule: Rule::Raise,
    };
    let mut settings = Vec::new();
    if let Some(entries) = entries(profile, machine) {
        settings.push(raise("net/netfilter/nf_conntrack_max", entries));
        let buckets = entries / ENTRIES_PER_BUCKET;
        settings.push(raise("net/netfilter/nf_conntrack_buckets", buckets));
    }
    let timeouts = [
        (
            "net/netfilter/nf_conntrack_tcp_timeout_established",
            profile.tcp_established,
        ),
        (
            "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
            profile.tcp_close_wait,
        ),
        ("net/netfilter/nf_conntrack_udp_timeout", profile.udp),
        (
            "net/netfilter/nf_conntrack_udp_timeout_stream",
            profile.udp_stream,
        ),
    ];
    let timeouts = timeouts.into_iter().filter(|(_, time)| !time.is_zero());
    settings.extend(timeouts.map(|(file, time)| Setting {
        file,
        value: whole_seconds(time),
        rule: Rule::Set,
    }));
    if profile.tcp_window == TcpWindow::Liberal {
        settings.push(raise("net/netfilter/nf_conntrack_tcp_be_liberal", 1));
    }
    settings
}

/// The maximum number of entries; `None` leaves the kernel's limit.
fn entries(profile: &Profile, machine: &Machine) -> Option<u64> {
    let per_core = u64::from(profile.max_per_core?.get());
    let by_cores = (per_core * u64::from(machine.cores)).min(MOST_BY_CORES);
    let by_memory = machine.memory / PART_OF_MEMORY / BYTES_PER_ENTRY;
    Some(by_cores.max(u64::from(profile.min)).min(by_memory))
}

/// Rounds up to whole seconds, the kernel's unit: 0 would time out at once.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Writes the settings that differ, to the files below `root`: `/proc/sys`, as seen from this
/// thread's network namespace. A failure does not prevent the other settings: in a container
/// `/proc/sys` is read-only, and outside the initial network namespace the limit and the bucket
/// count are.
pub fn commit(settings: &[Setting], root: &Path) -> Committed {
    let mut committed = Committed::default();
    for setting in settings {
        match setting.commit(root) {
            Ok(None) => {}
            Ok(Some(written)) => committed.written.push(written),
            Err(error) => committed.failed.push(error),
        }
    }
    committed
}

/// Reads this machine's number of CPUs and memory size.
pub fn observe_machine() -> io::Result<Machine> {
    // Not only the CPUs that this process may use: all processes share the table.
    let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let memory = fs::read_to_string("/proc/meminfo")?;
    let unreadable = |what: &str| io::Error::new(ErrorKind::InvalidData, what.to_owned());
    Ok(Machine {
        cores: parse_cpus(&online)
            .ok_or_else(|| unreadable("the list of CPUs has another form"))?,
        memory: parse_memory(&memory).ok_or_else(|| unreadable("meminfo has no MemTotal"))?,
    })
}

/// The number of CPUs in a list such as `0-3,8`.
fn parse_cpus(list: &str) -> Option<u32> {
    let mut cores: u32 = 0;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        cores = cores.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(cores)
}

/// `MemTotal` in bytes.
fn parse_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

// === impl Setting ===

impl Setting {
    fn commit(&self, root: &Path) -> Result<Option<Written>, SettingError> {
        let file = root.join(self.file);
        let failed = |step| {
            let file = file.clone();
            move |source| SettingError { step, file, source }
        };
        let text = fs::read_to_string(&file).map_err(failed(Step::Read))?;
        let before: u64 = text
            .trim()
            .parse()
            .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
            .map_err(failed(Step::Read))?;
        let value = self.value;
        let step = match self.rule {
            Rule::Raise if before >= value => return Ok(None),
            Rule::Set if before == value => return Ok(None),
            Rule::Raise => Step::Raise { before, value },
            Rule::Set => Step::Set { value },
        };
        fs::write(&file, value.to_string()).map_err(failed(step))?;
        Ok(Some(Written {
            setting: *self,
            before,
        }))
    }
}

impl fmt::Display for Written {
    /// `net/netfilter/nf_conntrack_max from 65536 to 131072`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting { file, value, .. } = self.setting;
        write!(f, "{file} from {} to {value}", self.before)
    }
}

impl Step {
    fn on(&self, file: &Path) -> String {
        let file = file.display();
        match self {
            Step::Read => format!("read {file}"),
            Step::Raise { before, value } => format!("raise {file} from {before} to {value}"),
            Step::Set { value } => format!("set {file} to {value}"),
        }
    }
}

#[cfg(test)]
mod tests;
