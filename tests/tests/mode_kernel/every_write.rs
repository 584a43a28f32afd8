//! The agent is killed after each single write of a switch. `strace` stops it after every system call
//! with which its reconciler thread reads from the kernel or writes to it; then it is killed or goes
//! on.

use std::fs;
use std::ops::RangeInclusive;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crds::profile::mechanism::Mode;
use dataplane::Protocol;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tests::deadline::wait_for;
use tests::network::{Connections, Kind, Process};
use xtables::Variant;

use crate::stage::{PROMPTLY, Place, SERVING, Stage};
use crate::{ipvs, manifests};

/// The Services besides `shop/web`: a switch is one part, and has few writes.
const FEW: u8 = 3;
/// The interval between two connections of one client. It leaves processor time for agents that start,
/// also in user-mode Linux.
const EVERY: Duration = Duration::from_millis(200);
/// The thread of the agent that writes.
const WRITER: &str = "reconciler";
/// The system calls with which it writes: to nf_tables, IPVS and routes, where it also reads with it,
/// and to legacy tables.
const CALLS: &str = "sendto,setsockopt";
/// How often, and how often at once, the test looks whether it has.
const A_MOMENT: Duration = Duration::from_millis(1);
const LOOKS: u32 = 50;
/// What `strace` prints when the agent has stopped.
const STOPPED: &str = "--- stopped by SIGSTOP ---";

/// The writes of a switch after which the agent is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Each one.
    Every,
    /// The middle one, and what connections of IPVS need is not waited for.
    Middle,
}

/// Whether the agent stops after each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    Stopping,
    Undisturbed,
}

/// A node whose agent is traced.
struct Traced {
    stage: Stage,
    variant: Variant,
    /// In which it was last.
    mode: Mode,
}

/// Why no test here can run; `None` if they can.
pub(crate) fn obstacle() -> Option<String> {
    match Command::new("strace").arg("--version").output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("strace ends with {}", output.status)),
        Err(error) => Some(format!("strace does not start: {error}")),
    }
}

/// Failure story T285: after whichever write the agent is killed, clients are served, and the next
/// agent completes the switch and leaves nothing of the other mode.
pub(crate) fn is_completed([back, there]: [Mode; 2], variant: Variant, after: After) -> Result<()> {
    let stage = Stage::build_with(variant, FEW)?.serve(back)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    let flows = Connections::start(&stage.ways_by(Protocol::Udp)?, &[Kind::Kept], EVERY)?;
    let mut node = Traced {
        stage,
        variant,
        mode: back,
    };
    let mut plans = Vec::new();
    for mode in [there, back] {
        plans.push((mode, after.of(1..=node.count_writes(mode)?)));
    }
    let planned: usize = plans.iter().map(|(_, writes)| writes.len()).sum();
    let most = plans.iter().map(|(_, writes)| writes.len()).max();
    let mut reached = 0;
    for round in 0..most.unwrap_or(0) {
        for (mode, writes) in &plans {
            let switched = match writes.get(round) {
                None => node.switch(*mode).map(|()| false),
                Some(write) => node.switch_killed(*mode, *write),
            };
            let switched = switched
                .with_context(|| format!("to {mode}, killed in round {round} of {writes:?}"))?;
            reached += usize::from(switched);
        }
    }
    println!("    killed after writes {plans:?}, of which {reached} were reached");
    ensure!(
        reached * 4 >= planned * 3,
        "too few of {planned} writes were reached: {reached}"
    );
    node.expect_nothing_to_write()?;
    flows.finish_unharmed()?;
    clients.finish_unharmed()?;
    match after {
        _ if ![back, there].contains(&Mode::Ipvs) => Ok(()),
        After::Every => node.expect_no_ipvs(),
        After::Middle => Ok(()),
    }
}

// === impl After ===

impl After {
    fn of(self, writes: RangeInclusive<usize>) -> Vec<usize> {
        match self {
            After::Every => writes.collect(),
            After::Middle => vec![writes.end().div_ceil(2)],
        }
    }
}

// === impl Traced ===

impl Traced {
    /// Switches undisturbed; returns the number of writes.
    fn count_writes(&mut self, mode: Mode) -> Result<usize> {
        let tracer = self.trace(Pace::Undisturbed)?;
        self.switch(mode)?;
        drop(tracer);
        let writes = self.observe_calls()?.writes;
        ensure!(writes > 0, "nothing was written");
        Ok(writes)
    }

    /// Switches with an agent that is killed after this write, and with the next one. Returns
    /// whether there was such a write: an earlier incident may have left less to write.
    fn switch_killed(&mut self, mode: Mode, write: usize) -> Result<bool> {
        let tracer = self.trace(Pace::Stopping)?;
        self.choose(mode)?;
        let process = i32::try_from(self.stage.agent()?.process_id())?;
        let process = Pid::from_raw(process).context("it is a process")?;
        let mut resumed = 0;
        // There are some hundred stops.
        let reached = wait_for("the write", PROMPTLY, || {
            for _ in 0..LOOKS {
                let calls = self.observe_calls()?;
                if calls.stops > resumed {
                    if calls.writes == write {
                        return Ok(Some(true));
                    }
                    kill_process(process, Signal::CONT)?;
                    resumed += 1;
                }
                thread::sleep(A_MOMENT);
            }
            Ok(self.stage.is_settled(mode)?.then_some(false))
        })?;
        kill_process(process, Signal::KILL)?;
        drop(tracer);
        self.stage.agent = None;
        let places = self.stage.places()?;
        ensure!(!places.is_empty(), "no mode serves");
        self.stage.start_agent()?;
        self.switch(mode)?;
        Ok(reached)
    }

    /// Waits until one mode alone is left.
    fn switch(&mut self, mode: Mode) -> Result<()> {
        let place = Place::of(mode, self.variant);
        self.choose(mode)?;
        self.stage.expect_mode(mode)?;
        let mut last = self.stage.places()?;
        let left = wait_for("one mode to be left", PROMPTLY, || {
            last = self.stage.places()?;
            if mode != Mode::Ipvs {
                // The clients have connections of IPVS.
                last.remove(&Place::IpvsEnding);
            }
            Ok((last == [place].into()).then_some(()))
        });
        self.mode = mode;
        left.with_context(|| format!("rules are in {last:?}"))
    }

    /// Requests a mode without periodic checks, which would be calls.
    fn choose(&self, mode: Mode) -> Result<()> {
        let mut profile = manifests::profile(&mode.to_string());
        profile["spec"]["syncPeriod"] = json!("1h");
        self.stage.apply("profile", &profile)
    }

    /// An agent that starts finds everything as it should be.
    fn expect_nothing_to_write(&mut self) -> Result<()> {
        self.stage.expect_answers(&SERVING)?;
        self.stage.kill_agent()?;
        self.stage.start_agent()?;
        self.stage.expect_mode(self.mode)?;
        let agent = self.stage.agent()?;
        let written = agent.metric("signpost_elements_written_total")?;
        ensure!(written == 0.0, "{written} were missing or left over");
        Ok(())
    }

    /// Once the last connection of IPVS has ended, nothing of it is left.
    fn expect_no_ipvs(&self) -> Result<()> {
        let expected = [Place::of(self.mode, self.variant)].into();
        wait_for("connections of IPVS to end", ipvs::ENDS_WITHIN, || {
            Ok((self.stage.places()? == expected).then_some(()))
        })?;
        let left = ipvs::servers(&self.stage)?.observe_virtual_servers()?;
        ensure!(left.own.is_empty(), "{left:?}");
        Ok(())
    }

    /// Lists the calls of the writer in file `trace` while the returned process runs.
    fn trace(&self, pace: Pace) -> Result<Process> {
        let thread = find_thread(self.stage.agent()?.process_id(), WRITER)?;
        let mut command = Command::new("sh");
        command.args(["-c", "exec strace \"$@\" 2>&1", "sh", "-p", &thread]);
        command.arg("-o").arg(self.stage.file("trace"));
        command.args(["-e", &format!("trace={CALLS}")]);
        if pace == Pace::Stopping {
            // A stop takes effect when the call returns, and stops all threads.
            command.args(["-e", &format!("inject={CALLS}:signal=STOP")]);
        }
        let mut tracer = Process::start("strace", command)?;
        tracer.wait_for_line(&format!("strace: Process {thread} attached"), PROMPTLY)?;
        Ok(tracer)
    }

    /// Reads what has been traced.
    fn observe_calls(&self) -> Result<Calls> {
        let trace = fs::read_to_string(self.stage.file("trace"))?;
        let lines = trace
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let lines: Vec<&str> = lines.collect();
        Ok(Calls {
            writes: lines.iter().filter(|line| is_write(line)).count(),
            stops: lines.iter().filter(|line| line.trim() == STOPPED).count(),
        })
    }
}

/// What the writer has done since it is traced.
struct Calls {
    writes: usize,
    stops: usize,
}

/// Whether a call that `strace` printed changes something in the kernel: a batch of nf_tables, which
/// is a list of messages, a message to be acknowledged, or an option of a legacy table.
fn is_write(call: &str) -> bool {
    let is_message = call.contains(", [[{") || call.contains("NLM_F_ACK");
    is_message || call.starts_with("setsockopt") && !call.contains("SOL_SOCKET")
}

/// Returns the number of a thread of a process.
fn find_thread(process: u32, name: &str) -> Result<String> {
    for entry in fs::read_dir(format!("/proc/{process}/task"))? {
        let path = entry?.path();
        let number = path.file_name().and_then(|number| number.to_str());
        if fs::read_to_string(path.join("comm"))?.trim_end() == name {
            return Ok(number.context("it is a number")?.to_owned());
        }
    }
    bail!("process {process} has no thread {name}")
}
