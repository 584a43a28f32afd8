//! Builds and runs every test of this workspace, test programs side by side: `make test`.
//!
//! `run-tests NAME…` runs only the test targets with these names, and no documentation tests.
//! `SIGNPOST_TESTS_AT_ONCE` sets how many programs run concurrently; the default is the number of
//! processors.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::io::{Write as _, stdout};
use std::process::{Command, ExitCode, Stdio};
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tests::test_run::{Outcome, Program, Queue, parse, run_all};

/// The length of the list of slowest programs.
const LISTED: usize = 15;

fn main() -> Result<ExitCode> {
    let names: BTreeSet<String> = env::args().skip(1).collect();
    let programs = chosen(build()?, &names)?;
    let outcomes = run_all(Queue::new(programs, at_once()?), &mut stdout())?;
    let documentation_passed = !names.is_empty() || run_documentation_tests()?;
    print_times(&outcomes)?;
    let failed: Vec<&Outcome> = outcomes.iter().filter(|o| !o.status.success()).collect();
    for outcome in &failed {
        println!("failed: {}\n{}", outcome.program, outcome.failures());
    }
    if failed.is_empty() && documentation_passed {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::FAILURE)
    }
}

fn at_once() -> Result<usize> {
    match env::var("SIGNPOST_TESTS_AT_ONCE") {
        Ok(number) => number.parse().context("SIGNPOST_TESTS_AT_ONCE"),
        Err(_) => {
            let processors = available_parallelism().context("failed to count processors")?;
            Ok(processors.get())
        }
    }
}

fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

/// Builds everything that the tests run, in one command: each choice of targets enables other
/// features, and shared dependencies would be compiled once for each.
fn build() -> Result<Vec<Program>> {
    let output = cargo()
        .args(["build", "--workspace", "--bins", "--examples", "--tests"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("failed to run cargo")?;
    ensure!(output.status.success(), "the tests do not build");
    let messages = String::from_utf8(output.stdout).context("cargo prints UTF-8")?;
    Ok(parse(&messages)?)
}

/// Returns the programs with one of these names, or all of them without names.
fn chosen(all: Vec<Program>, names: &BTreeSet<String>) -> Result<Vec<Program>> {
    let known = |name: &String| all.iter().any(|program| program.name == *name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        bail!("there is no test target {unknown}");
    }
    let mut chosen = all;
    chosen.retain(|program| names.is_empty() || names.contains(&program.name));
    Ok(chosen)
}

/// Returns whether the documentation tests passed. Cargo prints the details.
fn run_documentation_tests() -> Result<bool> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
    let status = command.status().context("failed to run cargo")?;
    Ok(status.success())
}

fn print_times(outcomes: &[Outcome]) -> Result<()> {
    let mut longest: Vec<&Outcome> = outcomes.iter().collect();
    longest.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
    let mut out = stdout();
    writeln!(out, "\n  seconds  of a processor")?;
    for outcome in longest.iter().take(LISTED) {
        let [took, processor] = [outcome.took, outcome.processor_time].map(|d| d.as_secs_f64());
        writeln!(out, "{took:>9.1} {processor:>15.1}  {}", outcome.program)?;
    }
    let of_all = |time: fn(&Outcome) -> Duration| -> f64 {
        outcomes.iter().map(time).sum::<Duration>().as_secs_f64()
    };
    let [took, processor] = [of_all(|o| o.took), of_all(|o| o.processor_time)];
    writeln!(
        out,
        "{took:>9.1} {processor:>15.1}  all {} programs",
        outcomes.len()
    )?;
    Ok(())
}
