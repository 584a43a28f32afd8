//! The demo and its output.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use demo::{Interrupted, Interruption, Screen, Style, Summary, perform};
use libtest_mimic::Arguments;
use tests::deadline::patience;
use tests::network::{enter_private_namespaces, namespaces_of};
use tests::trial::trial;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let trials = vec![
        trial("it_shows_what_it_promises", it_shows_what_it_promises),
        trial(
            "who_interrupts_it_has_nothing_to_clean_up",
            who_interrupts_it_has_nothing_to_clean_up,
        ),
    ];
    // Serial, because each test checks for leftovers of this process.
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit();
}

fn it_shows_what_it_promises() -> Result<()> {
    let start = Instant::now();
    let mut printed = Vec::new();
    let shown = perform(&mut Screen::new(
        &mut printed,
        Style::Plain,
        Interruption::default(),
    ));
    let took = start.elapsed();
    let printed = String::from_utf8(printed)?;
    let summary = shown.with_context(|| printed.clone())?;
    expect_promises(&summary, &printed).with_context(|| printed.clone())?;
    ensure!(took < patience(Duration::from_secs(60)), "it took {took:?}");
    Ok(())
}

fn expect_promises(summary: &Summary, printed: &str) -> Result<()> {
    ensure!(summary.failures() == 0, "connections failed: {summary:?}");
    ensure!(summary.spread.len() == 6, "{:?}", summary.spread);
    for way in &summary.spread {
        ensure!(
            way.answered.iter().all(|count| *count > 0),
            "not all servers serve {way:?}"
        );
    }
    let removal = &summary.removal;
    ensure!(removal.before.iter().all(|count| *count > 0), "{removal:?}");
    ensure!(removal.after[0] > 0 && removal.after[2] > 0, "{removal:?}");
    ensure!(summary.restart.without_agent > 0, "{:?}", summary.restart);
    ensure!(summary.restart.writes.is_empty(), "{:?}", summary.restart);
    ensure!(
        summary.left_behind.is_empty(),
        "left behind: {:?}",
        summary.left_behind
    );
    ensure!(summary.is_flawless());
    for words in [
        "web-1",
        "10.96.0.10:80/tcp",
        "Ready: True",
        "0 failed",
        "make test",
    ] {
        ensure!(printed.contains(words), "{words:?} is not printed");
    }
    Ok(())
}

/// Interrupts at the first line of the second part, when the network exists.
struct Impatient {
    interruption: Interruption,
}

impl std::io::Write for Impatient {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        if String::from_utf8_lossy(text).contains("2. ") {
            self.interruption.raise();
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn who_interrupts_it_has_nothing_to_clean_up() -> Result<()> {
    let interruption = Interruption::default();
    let mut person = Impatient {
        interruption: interruption.clone(),
    };
    let error = perform(&mut Screen::new(&mut person, Style::Plain, interruption))
        .err()
        .context("it went on to the end")?;
    ensure!(
        error.is::<Interrupted>(),
        "it ended for another reason: {error:#}"
    );
    let left = namespaces_of(std::process::id())?;
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}
