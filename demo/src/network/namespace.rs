//! A network namespace, identified by its name.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::NAMES;
use crate::deadline::wait_for;

/// How long the kernel may take to pass packets through new links.
const LINKS: Duration = Duration::from_secs(10);

/// The name of a namespace; holding it does not keep the namespace alive.
#[derive(Debug, Clone)]
pub struct Namespace {
    name: Arc<str>,
}

impl Namespace {
    pub(super) fn named(name: &str) -> Namespace {
        Namespace { name: name.into() }
    }

    /// Returns the namespace of a process, valid while it runs. iproute2 accepts a path in place of
    /// a name.
    pub fn of_process(process: u32) -> Namespace {
        Namespace::named(&format!("/proc/{process}/ns/net"))
    }

    /// Returns its name for `ip -n` and below `/run/netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file that represents it.
    pub fn path(&self) -> PathBuf {
        Path::new(NAMES).join(&*self.name)
    }

    /// Returns a command that runs `program` inside. The program keeps the process ID of the
    /// started process: `nsenter` executes it. Only the network differs inside (`ip netns exec`
    /// would mount another `/sys`).
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display()));
        command.arg("--").arg(program);
        command
    }

    /// Runs `work` on a thread inside the namespace. Sockets opened there stay in the namespace
    /// wherever they are used.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let file = File::open(self.path())
            .with_context(|| format!("failed to open the network namespace {}", self.name))?;
        let entered = std::thread::scope(|scope| {
            let thread = scope.spawn(|| -> Result<T> {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(file.as_fd(), network)?;
                Ok(work())
            });
            thread.join()
        });
        match entered {
            Ok(result) => result
                .with_context(|| format!("failed to enter the network namespace {}", self.name)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Runs lines of `ip` commands inside in one process, stopping at the first failure.
    pub fn configure(&self, lines: &str) -> Result<()> {
        run_ip(&["-n", &self.name, "-batch", "-"], lines)
    }

    /// Waits until every link that is up passes packets. The end of a veth pair that was set up
    /// first drops what is sent until the kernel's worker has seen the other end: up to 0.1 s on a busy
    /// machine, and a lost ARP packet then costs the first connection a second.
    pub fn wait_for_links(&self) -> Result<()> {
        wait_for(&format!("the links of {}", self.name), LINKS, || {
            let shown = ["-oneline", "link", "show", "up"];
            let output = self.command("ip").args(shown).output()?;
            let links = String::from_utf8(output.stdout)?;
            // The state of loopback is never known.
            let mut links = links.lines().filter(|link| !link.contains(": lo: "));
            Ok(links.all(|link| link.contains(" state UP ")).then_some(()))
        })
    }

    /// Runs `nft` inside; returns its output.
    pub fn nft(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command("nft").args(arguments).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "nft {}: {}: {errors}",
            arguments.join(" "),
            output.status
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Sets files below `/proc/sys` inside.
    pub fn set_sysctls(&self, sysctls: &[(&str, &str)]) -> Result<()> {
        self.enter(|| {
            for (name, value) in sysctls {
                fs::write(Path::new("/proc/sys").join(name), value)
                    .with_context(|| format!("failed to set the sysctl {name} to {value}"))?;
            }
            Ok(())
        })?
    }
}

/// Runs `ip` with `input` on standard input.
pub(super) fn run_ip(arguments: &[&str], input: &str) -> Result<()> {
    let mut child = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("failed to run ip: install iproute2")?;
    let mut stdin = child.stdin.take().context("ip has an input")?;
    let written = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "ip {} failed: {}\n{input}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    written.context("ip did not read its input")
}
