//! The kernel's figures about this process.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Reads `/proc` at each scrape, under the names that every Prometheus client library uses.
#[derive(Debug)]
pub(super) struct ProcessCollector;

/// The fields of `/proc/self/stat` that the metrics need.
#[derive(Debug, PartialEq)]
struct Stat {
    /// User and system time used.
    cpu_seconds: f64,
    /// When the process started, counted from boot.
    started_seconds: f64,
    /// Memory in use.
    resident_bytes: u64,
    /// Address space in use.
    virtual_bytes: u64,
}

/// The kernel's units, which differ between architectures.
#[derive(Debug, Clone, Copy)]
struct Scale {
    ticks_per_second: u64,
    page_bytes: u64,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut encode = |name, help, unit: Option<Unit>, metric: &dyn EncodeMetric| {
            let kind = metric.metric_type();
            metric.encode(encoder.encode_descriptor(name, help, unit.as_ref(), kind)?)
        };
        if let Some(stat) = observe_stat() {
            let cpu = ConstCounter::new(stat.cpu_seconds);
            let help = "User and system time used";
            encode("process_cpu", help, Some(Unit::Seconds), &cpu)?;
            let resident = ConstGauge::new(stat.resident_bytes);
            let name = "process_resident_memory";
            encode(name, "Memory in use", Some(Unit::Bytes), &resident)?;
            let space = ConstGauge::new(stat.virtual_bytes);
            let name = "process_virtual_memory";
            encode(name, "Address space in use", Some(Unit::Bytes), &space)?;
            if let Some(boot) = observe_boot_time() {
                let start = ConstGauge::new(boot + stat.started_seconds);
                let help = "When the process started, since the epoch";
                encode("process_start_time", help, Some(Unit::Seconds), &start)?;
            }
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // Reading the directory itself takes one descriptor.
            let open = ConstGauge::new(entries.count().saturating_sub(1) as u64);
            encode("process_open_fds", "Open file descriptors", None, &open)?;
        }
        if let Some(most) = observe_most_files() {
            let help = "File descriptors that may be open";
            encode("process_max_fds", help, None, &ConstGauge::new(most))?;
        }
        Ok(())
    }
}

fn observe_stat() -> Option<Stat> {
    let scale = Scale {
        ticks_per_second: rustix::param::clock_ticks_per_second(),
        page_bytes: rustix::param::page_size() as u64,
    };
    parse_stat(&fs::read_to_string("/proc/self/stat").ok()?, scale)
}

/// The maximum number of files that this process may open; `None` if there is no limit.
fn observe_most_files() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Seconds between the epoch and the boot of this machine.
fn observe_boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()
}

/// Parses one line of proc_pid_stat(5).
fn parse_stat(line: &str, scale: Scale) -> Option<Stat> {
    // The name is in parentheses and may itself contain spaces and parentheses.
    let (_, fields) = line.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    // The manual counts from 1 and includes the two fields that were cut off.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let seconds = |ticks: u64| ticks as f64 / scale.ticks_per_second as f64;
    Some(Stat {
        cpu_seconds: seconds(field(14)? + field(15)?),
        started_seconds: seconds(field(22)?),
        resident_bytes: field(24)? * scale.page_bytes,
        virtual_bytes: field(23)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let line = "7 (a) b)) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 1000 99999 42 18446744073709551615 1";
        let scale = Scale {
            ticks_per_second: 100,
            page_bytes: 4096,
        };
        let expected = Stat {
            cpu_seconds: 3.0,
            started_seconds: 10.0,
            resident_bytes: 42 * 4096,
            virtual_bytes: 99_999,
        };
        assert_eq!(parse_stat(line, scale), Some(expected));
    }

    #[test]
    fn a_line_cut_short_says_nothing() {
        let scale = Scale {
            ticks_per_second: 100,
            page_bytes: 4096,
        };
        assert_eq!(parse_stat("7 (a) S 1 7", scale), None);
        assert_eq!(parse_stat("", scale), None);
    }
}
