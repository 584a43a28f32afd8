//! Other processes of this machine, as far as this process can see them.

use std::fmt;
use std::fs;
use std::path::Path;

/// The initial PID namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h). A process in it sees
/// every process under the id that the kernel reports.
const MACHINE: &str = "pid:[4026531836]";

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id in this process's PID namespace.
    pub id: u32,
    /// The name of its program, truncated to 15 bytes.
    pub name: String,
}

/// Which processes this process can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// All processes of the machine.
    Machine,
    /// Only the processes of this container.
    Container,
}

/// Reads which processes this process can see. The answer does not change while this process runs.
pub fn observe_view() -> View {
    let namespace = fs::read_link("/proc/self/ns/pid");
    match namespace.is_ok_and(|namespace| namespace == Path::new(MACHINE)) {
        true => View::Machine,
        false => View::Container,
    }
}

/// Returns the process that thread `id` belongs to. `id` is an id in this process's own PID
/// namespace. Returns `None` if the thread has ended or is not called `name`, because the kernel
/// reuses ids.
pub fn observe_process_of(id: u32, name: &str) -> Option<Process> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let (thread, process) = parse_status(&status)?;
    if thread != name {
        return None;
    }
    observe_process(process)
}

/// Returns process `id`, or `None` if it does not run.
pub fn observe_process(id: u32) -> Option<Process> {
    let name = fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
    let name = name.trim_end().to_owned();
    Some(Process { id, name })
}

/// Parses the thread's name and its process id out of a `/proc/ID/status`.
fn parse_status(status: &str) -> Option<(&str, u32)> {
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))
    };
    Some((field("Name")?, field("Tgid")?.parse().ok()?))
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.name, self.id)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_is_reported_by_its_process() {
        let (sender, threads) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name("a thread".to_owned());
        let thread = thread.spawn(move || {
            let id = fs::read_link("/proc/thread-self").expect("Linux has it");
            let id = id.file_name().and_then(|id| id.to_str()?.parse().ok());
            sender.send(id).expect("the receiver is there");
            let _ = ended.recv();
        });
        let thread = thread.expect("a thread");
        let id: Option<u32> = threads.recv().expect("it runs");
        let id = id.expect("a number");
        let process = observe_process_of(id, "a thread").expect("it runs");
        assert_eq!(process.id, std::process::id());
        assert_ne!(process.name, "a thread");
        assert_eq!(observe_process_of(id, "another"), None);
        drop(end);
        thread.join().expect("it ends");
    }

    #[test]
    fn a_status_that_is_none_tells_nothing() {
        let status = "Name:\treconciler\nUmask:\t0022\nTgid:\t17\nPid:\t23\n";
        assert_eq!(parse_status(status), Some(("reconciler", 17)));
        assert_eq!(parse_status("Name:\ta\n"), None);
        assert_eq!(parse_status("Tgid:\tx\nName:\ta\n"), None);
    }
}
