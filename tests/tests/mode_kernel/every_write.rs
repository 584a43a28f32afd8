//! The agent is killed after each single write. `strace` stops it after every system call with which it reads
//! from the kernel or writes to it; then clients are asked, and it is killed or goes on.

pub(crate) mod start;
pub(crate) mod switch;

mod damage;
mod questions;

use std::fs::{self, File};
use std::io::Read as _;
use std::ops::RangeInclusive;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tests::deadline::wait_for;
use tests::extent::is_exhaustive;
use tests::network::Process;

use crate::stage::{PROMPTLY, Stage};

/// The Services besides `shop/web`: a switch or a start is one part, and has few writes.
const FEW: u8 = 3;
/// The thread of the agent that writes.
const WRITER: &str = "reconciler";
/// The system calls with which it writes: to nf_tables, IPVS and routes, where it also reads with it,
/// and to legacy tables.
const CALLS: &str = "sendto,setsockopt";
/// How often, and how often at once, the test looks whether it has.
const A_MOMENT: Duration = Duration::from_millis(1);
const LOOKS: u32 = 50;
/// What `strace` prints when a thread of the agent takes the signal to stop.
const STOPPED: &str = "--- SIGSTOP {";

/// The writes after which the agent is killed.
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

/// The calls of an agent, while `strace` lists them.
struct Tracer {
    /// Ends on drop.
    _strace: Process,
    /// The list, and its last line as far as that was read.
    trace: File,
    unfinished: String,
    calls: Calls,
    agent: Pid,
    /// The number of stops after which the agent has gone on.
    resumed: usize,
}

/// What the agent has done since it is traced.
#[derive(Debug, Clone, Copy, Default)]
struct Calls {
    writes: usize,
    stops: usize,
}

/// Why no test here can run; `None` if they can.
pub(crate) fn obstacle() -> Option<String> {
    match Command::new("strace").arg("--version").output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("strace ends with {}", output.status)),
        Err(error) => Some(format!("strace does not start: {error}")),
    }
}

// === impl After ===

impl After {
    /// Each one only if that was asked for.
    fn asked() -> After {
        match is_exhaustive() {
            true => After::Every,
            false => After::Middle,
        }
    }

    fn of(self, writes: RangeInclusive<usize>) -> Vec<usize> {
        match self {
            After::Every => writes.collect(),
            After::Middle => vec![writes.end().div_ceil(2)],
        }
    }
}

// === impl Tracer ===

impl Tracer {
    /// Lists the calls of the thread that writes, of the running agent.
    fn attach(stage: &Stage, pace: Pace) -> Result<Tracer> {
        let process = stage.agent()?.process_id();
        let thread = find_thread(process, WRITER)?;
        Tracer::start(stage, process, &["-p", &thread], pace)
    }

    /// The same of an agent that this stops and does not continue.
    fn of_stopped(stage: &Stage, pace: Pace) -> Result<Tracer> {
        let process = stage.agent()?.process_id();
        kill_process(process_of(process)?, Signal::STOP)?;
        wait_for_stop(process)?;
        Tracer::attach(stage, pace)
    }

    /// Starts an agent and lists its calls from the first one on: those of all threads, because the one
    /// that writes comes later.
    fn of_start(stage: &mut Stage, pace: Pace) -> Result<Tracer> {
        stage.start_stopped_agent()?;
        let process = stage.agent()?.process_id();
        wait_for_stop(process)?;
        let number = process.to_string();
        let tracer = Tracer::start(stage, process, &["-f", "-p", &number], pace)?;
        tracer.signal(Signal::CONT)?;
        Ok(tracer)
    }

    fn start(stage: &Stage, process: u32, traced: &[&str], pace: Pace) -> Result<Tracer> {
        let trace = stage.file("trace");
        let mut command = Command::new("sh");
        command.args(["-c", "exec strace \"$@\" 2>&1", "sh", "-Y"]);
        command.args(traced).arg("-o").arg(&trace);
        command.args(["-e", &format!("trace={CALLS}")]);
        if pace == Pace::Stopping {
            // A stop takes effect when the call returns, and stops all threads.
            command.args(["-e", &format!("inject={CALLS}:signal=STOP")]);
        }
        let mut strace = Process::start("strace", command)?;
        let traced = traced.last().context("something is traced")?;
        wait_for_attachment(&mut strace, traced)?;
        Ok(Tracer {
            _strace: strace,
            trace: File::open(trace).context("strace writes a list")?,
            unfinished: String::new(),
            calls: Calls::default(),
            agent: process_of(process)?,
            resumed: 0,
        })
    }

    /// Lets the agent go on from stop to stop until it has made this write. Calls `look` after each new
    /// write. Returns whether it made it; it has not if `is_done` before.
    fn reach(
        &mut self,
        write: usize,
        is_done: impl Fn() -> Result<bool>,
        mut look: impl FnMut(usize) -> Result<()>,
    ) -> Result<bool> {
        let mut looked = 0;
        // There are some hundred stops.
        wait_for("the write", PROMPTLY, || {
            for _ in 0..LOOKS {
                let calls = self.observe_calls()?;
                if calls.stops > self.resumed {
                    if calls.writes > looked {
                        looked = calls.writes;
                        look(looked)?;
                    }
                    if calls.writes >= write {
                        return Ok(Some(true));
                    }
                    self.signal(Signal::CONT)?;
                    self.resumed += 1;
                }
                thread::sleep(A_MOMENT);
            }
            // One that stands still answers no question.
            let goes_on = self.observe_calls()?.stops == self.resumed;
            Ok((goes_on && is_done()?).then_some(false))
        })
    }

    fn kill(self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.agent, signal)?)
    }

    /// Reads what has been traced.
    fn observe_calls(&mut self) -> Result<Calls> {
        self.trace.read_to_string(&mut self.unfinished)?;
        while let Some((line, rest)) = self.unfinished.split_once('\n') {
            self.calls.writes += usize::from(is_write(line));
            self.calls.stops += usize::from(line.contains(STOPPED));
            self.unfinished = rest.to_owned();
        }
        Ok(self.calls)
    }
}

fn process_of(number: u32) -> Result<Pid> {
    Pid::from_raw(i32::try_from(number)?).context("it is a process")
}

fn wait_for_stop(process: u32) -> Result<()> {
    wait_for("the process to stop", PROMPTLY, || {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        let state = stat.rsplit(") ").next().unwrap_or_default();
        Ok(state.starts_with('T').then_some(()))
    })
}

fn wait_for_attachment(strace: &mut Process, traced: &str) -> Result<()> {
    let expected = format!("strace: Process {traced}");
    loop {
        let line = strace.next_line(PROMPTLY)?;
        if line.starts_with(&expected) && line.ends_with(" attached") {
            return Ok(());
        }
    }
}

/// Whether a call that `strace` printed is one of the writer that changes something in the kernel: a batch of
/// nf_tables, which is a list of messages, a message to be acknowledged, or an option of a legacy table. If
/// `strace` traces more threads than one, it names the one before the call.
fn is_write(call: &str) -> bool {
    let by_another =
        call.starts_with(|c: char| c.is_ascii_digit()) && !call.contains(&format!("<{WRITER}> "));
    let is_message = call.contains(", [[{") || call.contains("NLM_F_ACK");
    let is_of_table = call.contains("setsockopt(") && call.contains(", SOL_IP");
    !by_another && (is_message || is_of_table)
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
