//! Runs test programs and prints their results.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::{Program, Queue};
use crate::bench::process_tree::ProcessTree;

/// The result of a program.
#[derive(Debug)]
pub struct Outcome {
    /// The program.
    pub program: Program,
    /// Its exit status or signal.
    pub status: ExitStatus,
    /// Its duration.
    pub took: Duration,
    /// Its processor time, including children that ended before it.
    pub processor_time: Duration,
    /// Its standard output and standard error, in order of arrival.
    output: Vec<u8>,
}

/// Runs all programs of the queue, and copies the output of each to `out` when it has ended.
/// Returns the outcomes in the order in which the programs ended.
///
/// # Errors
///
/// A program that could not be started, or a failed write to `out`. Other running programs then
/// continue.
pub fn run_all(mut queue: Queue, out: &mut impl Write) -> Result<Vec<Outcome>> {
    let (sender, ended) = mpsc::channel();
    let mut outcomes = Vec::new();
    while !queue.is_empty() {
        while let Some(program) = queue.start_next() {
            writeln!(out, "     Started {program}")?;
            let sender = sender.clone();
            thread::spawn(move || {
                let outcome = run(&program).with_context(|| format!("failed to run {program}"));
                // The receiver is gone after another program failed to run.
                drop(sender.send(outcome));
            });
        }
        let outcome = ended.recv().context("no program runs")??;
        queue.finish(&outcome.program);
        outcome.print(out)?;
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// The environment of all programs, unless the caller sets something else.
const ENVIRONMENT: [(&str, &str); 2] = [
    // The seed of property tests: a run of all tests must pass or fail because of changes, not by
    // chance. `make properties` searches for new cases.
    ("PROPTEST_RNG_SEED", "20261123"),
    // Programs in Go, such as the API server, kubectl and Helm, collect garbage when the live memory
    // has grown by this percentage instead of 100. Collections were a fifth of their processor time.
    ("GOGC", "400"),
];

fn run(program: &Program) -> Result<Outcome> {
    let environment = ENVIRONMENT.map(|(name, value)| {
        let given = env::var_os(name);
        (name, given.unwrap_or_else(|| OsString::from(value)))
    });
    let mut output = tempfile::tempfile().context("failed to make a file for its output")?;
    let start = Instant::now();
    let mut child = Command::new(&program.executable)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .envs(environment)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .spawn()
        .with_context(|| program.executable.display().to_string())?;
    // Wait without reaping, so that `/proc` still has the process afterwards.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(error) = waitid(WaitId::Pid(Pid::from_child(&child)), options) {
        if io::Error::from(error).kind() != io::ErrorKind::Interrupted {
            return Err(error).context("failed to wait for it");
        }
    }
    let took = start.elapsed();
    let processor_time = ProcessTree::of(child.id()).observe_processor_time()?;
    let status = child.wait().context("failed to wait for it")?;
    Ok(Outcome {
        program: program.clone(),
        status,
        took,
        processor_time,
        output: read_again(&mut output).context("failed to read its output")?,
    })
}

fn read_again(file: &mut File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut content)?;
    Ok(content)
}

/// The longest excerpt of a failed program's output.
const EXCERPT: usize = 40;

/// Returns what the output of a failed program says about the tests that failed: the list of
/// libtest, or the last lines if the program ended without it.
fn excerpt(output: &str) -> Vec<&str> {
    let lines: Vec<&str> = output.lines().collect();
    let is_heading = |line: &&str| **line == *"failures:";
    let Some(first) = lines.iter().position(is_heading) else {
        return lines[lines.len().saturating_sub(EXCERPT)..].to_vec();
    };
    // The second heading begins the list of names alone.
    let said = lines[first + 1..].split(is_heading).next();
    let said = said.unwrap_or_default();
    said[..said.len().min(EXCERPT)].to_vec()
}

// === impl Outcome ===

impl Outcome {
    /// Returns what a failed program printed about its failed tests, in at most 40 lines without
    /// the closing lines that `tools/tally` counts.
    pub fn failures(&self) -> String {
        let output = String::from_utf8_lossy(&self.output);
        let counted = |line: &&&str| line.starts_with("test result: ");
        let said = excerpt(&output);
        let said = said.iter().filter(|line| !counted(line));
        said.map(|line| format!("  {line}\n")).collect()
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "     Running {} ({}), ended after {:.1} s",
            self.program,
            self.program.executable.display(),
            self.took.as_secs_f64(),
        )?;
        out.write_all(&self.output)?;
        // Start the next message on a new line.
        if self.output.last().is_some_and(|last| *last != b'\n') {
            writeln!(out)?;
        }
        if !self.status.success() {
            // The format of cargo's message: users and tools/tally search for it.
            writeln!(out, "error: test failed, to rerun pass `{}`", self.program)?;
            if let Some(signal) = self.status.signal() {
                writeln!(out, "  it was ended by signal {signal}")?;
            }
            writeln!(out)?;
        }
        out.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use anyhow::{Context, Result, ensure};

    use super::{excerpt, run_all};
    use crate::test_run::{Program, Queue};

    /// A script that waits until the other script runs too.
    const MEET: &str =
        "mkdir $0-runs; for _ in $(seq 1000); do [ -d $other-runs ] && break; sleep 0.02; done
        [ -d $other-runs ] || exit 9";

    /// Writes a script from another process. This process may start programs meanwhile, which would
    /// inherit the open file.
    fn script(folder: &Path, name: &str, text: &str) -> Result<Program> {
        let executable = folder.join(name);
        let status = Command::new("sh")
            .args([
                "-c",
                r#"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod +x "$0""#,
            ])
            .arg(&executable)
            .arg(text)
            .status()?;
        ensure!(status.success(), "{name} was not written");
        Ok(Program {
            package: "scripts".into(),
            target: format!("--test {name}"),
            name: name.into(),
            folder: folder.to_owned(),
            executable,
        })
    }

    /// Returns the last line of the output of `tools/tally`.
    fn tally(printed: &[u8]) -> Result<String> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/tally");
        let mut command = Command::new(program);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        child
            .stdin
            .take()
            .context("it is a pipe")?
            .write_all(printed)?;
        let output = String::from_utf8(child.wait_with_output()?.stdout)?;
        Ok(output.lines().last().unwrap_or_default().to_owned())
    }

    #[test]
    fn the_end_of_a_run_repeats_what_failed_and_why() {
        let listed = "test it ... FAILED\n\nfailures:\n\n---- it ----\nno answer\n\n\nfailures:\n    it\n\ntest result: FAILED.";
        assert_eq!(excerpt(listed), ["", "---- it ----", "no answer", "", ""]);
        assert_eq!(excerpt("Segmentation fault"), ["Segmentation fault"]);
        let long: String = (0..99).map(|number| format!("{number}\n")).collect();
        assert_eq!(excerpt(&long)[..1], ["59"]);
    }

    #[test]
    fn programs_run_side_by_side_and_are_printed_whole_and_counted() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let passes = format!(
            "other=$(dirname $0)/fails; echo begins; {MEET}; echo goes on
            echo 'test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured'"
        );
        let fails = format!(
            "other=$(dirname $0)/passes; echo 'test it ... FAILED' >&2; {MEET}
            echo 'test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured'; exit 101"
        );
        let programs = vec![
            script(folder.path(), "passes", &passes)?,
            script(folder.path(), "fails", &fails)?,
            script(
                folder.path(),
                "killed",
                "printf 'in the middle'; kill -KILL $$",
            )?,
        ];
        let mut printed = Vec::new();
        let mut outcomes = run_all(Queue::new(programs, 2), &mut printed)?;
        outcomes.sort_by_key(|outcome| outcome.program.name.clone());
        let ends = outcomes
            .iter()
            .map(|o| (o.status.code(), o.status.signal()));
        let ends: Vec<_> = ends.collect();
        let text = String::from_utf8(printed.clone())?;
        assert_eq!(
            ends,
            [(Some(101), None), (None, Some(9)), (Some(0), None)],
            "{text}"
        );
        for whole in [
            "begins\ngoes on\ntest result: ok. 2 passed",
            "test it ... FAILED\ntest result: FAILED. 3 passed",
            "in the middle\nerror: test failed, to rerun pass `--package scripts --test killed`\n  it was ended by signal 9\n",
        ] {
            assert!(text.contains(whole), "{whole:?} is not in\n{text}");
        }
        assert_eq!(
            tally(&printed)?,
            "total: 5 passed, 2 failed, 1 skipped",
            "{text}"
        );
        Ok(())
    }

    #[test]
    fn a_program_that_does_not_start_is_an_error() {
        let missing = Program {
            package: "scripts".into(),
            target: "--test missing".into(),
            name: "missing".into(),
            folder: "/".into(),
            executable: "/missing".into(),
        };
        let ended = run_all(Queue::new(vec![missing], 1), &mut Vec::new());
        let error = ended.map(drop).expect_err("there is no such program");
        assert!(format!("{error:#}").contains("--test missing"), "{error:#}");
    }
}
