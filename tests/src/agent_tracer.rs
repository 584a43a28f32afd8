//! Stops an agent after each write to the kernel. `strace` stops it after every system call with which it reads
//! from the kernel or writes to it; then a test asks clients, and kills it or lets it go on.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::deadline::wait_for;
use crate::lone_agent::LoneAgent;
use crate::network::Process;

/// The thread of the agent that programs Services.
const RECONCILER: &str = "reconciler";
/// The system calls with which the agent writes: to nf_tables, IPVS and routes, where it also reads with it,
/// and to legacy tables.
const CALLS: &str = "sendto,setsockopt";
/// How often, and how often at once, the test looks whether it has.
const A_MOMENT: Duration = Duration::from_millis(1);
const LOOKS: u32 = 50;
/// The deadline of waits for `strace` and the agent.
const PROMPTLY: Duration = Duration::from_secs(60);
/// What `strace` prints when a thread of the agent takes the signal to stop.
const STOPPED: &str = "--- SIGSTOP {";

/// Whether the agent stops after each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// It does.
    Stopping,
    /// It does not.
    Undisturbed,
}

/// The threads of the agent whose writes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// The one that programs Services.
    Reconciler,
    /// All: handovers and what follows changes are the work of others.
    All,
}

/// The calls of an agent, while `strace` lists them.
#[derive(Debug)]
pub struct Tracer {
    /// Ends on drop.
    _strace: Process,
    /// The list, and its last line as far as that was read.
    trace: File,
    unfinished: String,
    calls: Calls,
    agent: Pid,
    writers: Writers,
    /// The number of stops after which the agent has gone on.
    resumed: usize,
}

/// What the agent has done since it is traced.
#[derive(Debug, Clone, Copy, Default)]
pub struct Calls {
    /// The calls that change something in the kernel.
    pub writes: usize,
    stops: usize,
}

/// Why no agent can be traced; `None` if it can.
pub fn obstacle() -> Option<String> {
    match Command::new("strace").arg("--version").output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("strace ends with {}", output.status)),
        Err(error) => Some(format!("strace does not start: {error}")),
    }
}

// === impl Tracer ===

impl Tracer {
    /// Lists the calls of the running agent in the file `trace`.
    pub fn attach(agent: &LoneAgent, writers: Writers, pace: Pace, trace: &Path) -> Result<Tracer> {
        let process = agent.process_id();
        match writers {
            Writers::Reconciler => {
                let thread = find_thread(process, RECONCILER)?;
                Tracer::start(process, &["-p", &thread], writers, pace, trace)
            }
            Writers::All => {
                let number = process.to_string();
                Tracer::start(process, &["-f", "-p", &number], writers, pace, trace)
            }
        }
    }

    /// The same of an agent that this stops, until [`Tracer::go_on`].
    pub fn of_stopped(agent: &LoneAgent, writers: Writers, trace: &Path) -> Result<Tracer> {
        let process = agent.process_id();
        kill_process(process_of(process)?, Signal::STOP)?;
        wait_for_stop(process)?;
        Tracer::attach(agent, writers, Pace::Stopping, trace)
    }

    /// Lists the calls of the reconciler of an agent that was started stopped from the first one on, and lets
    /// it go on.
    pub fn of_start(agent: &LoneAgent, pace: Pace, trace: &Path) -> Result<Tracer> {
        let process = agent.process_id();
        wait_for_stop(process)?;
        let number = process.to_string();
        // The thread that writes comes later.
        let traced = ["-f", "-p", &number];
        let tracer = Tracer::start(process, &traced, Writers::Reconciler, pace, trace)?;
        tracer.go_on()?;
        Ok(tracer)
    }

    fn start(
        process: u32,
        traced: &[&str],
        writers: Writers,
        pace: Pace,
        trace: &Path,
    ) -> Result<Tracer> {
        let mut command = Command::new("sh");
        command.args(["-c", "exec strace \"$@\" 2>&1", "sh", "-Y"]);
        command.args(traced).arg("-o").arg(trace);
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
            writers,
            resumed: 0,
        })
    }

    /// Lets the agent go on from stop to stop until it has made this write. Calls `look` after each new
    /// write. Returns whether it made it; it has not if `is_done` before.
    pub fn reach(
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

    /// Lets an agent go on that [`Tracer::of_stopped`] has stopped.
    pub fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills the agent.
    pub fn kill(self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.agent, signal)?)
    }

    /// Reads what has been traced.
    pub fn observe_calls(&mut self) -> Result<Calls> {
        self.trace.read_to_string(&mut self.unfinished)?;
        while let Some((line, rest)) = self.unfinished.split_once('\n') {
            self.calls.writes += usize::from(is_write(line, self.writers));
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
        // "attached", or "attached with 12 threads".
        if line.starts_with(&expected) && line.contains(" attached") {
            return Ok(());
        }
    }
}

/// Whether a call that `strace` printed changes something in the kernel: a batch of nf_tables, which is a list of
/// messages, a message to be acknowledged, or an option of a legacy table. If `strace` traces more threads than
/// one, it names the one before the call.
fn is_write(call: &str, writers: Writers) -> bool {
    let by_another = writers == Writers::Reconciler
        && call.starts_with(|c: char| c.is_ascii_digit())
        && !call.contains(&format!("<{RECONCILER}> "));
    let is_message = call.contains(", [[{") || call.contains("NLM_F_ACK");
    let is_of_table = call.contains("setsockopt(")
        && call.contains(", SOL_IP")
        // It belongs to a port that the agent opens.
        && !call.contains("IPV6_V6ONLY");
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
