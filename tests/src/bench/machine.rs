//! On what a run was measured.

use std::fs;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};

use super::{Arena, Contender};

/// The machine and the versions of all programs that matter.
#[derive(Debug, Clone)]
pub struct Machine {
    /// What is said of each, in order.
    pub(super) facts: Vec<(&'static str, String)>,
}

// === impl Machine ===

impl Machine {
    /// Asks the kernel and the programs. One that is not installed has no version.
    pub fn observe(arena: &Arena) -> Result<Machine> {
        let mut facts = vec![
            ("processor", observe_processor()?),
            ("memory", observe_memory()?),
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

fn observe_memory() -> Result<String> {
    let text = read("/proc/meminfo")?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    Ok(total.unwrap_or_default().trim().to_owned())
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
