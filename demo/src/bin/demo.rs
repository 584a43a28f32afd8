//! Demonstrates Signpost on this machine alone: `make demo`.

use std::io::{IsTerminal as _, stdout};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use demo::network::enter_private_namespaces;
use demo::{Interrupted, Interruption, Screen, Style, perform};
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a program ended by Ctrl-C, by shell convention.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("demo: {error:#}");
            if error.is::<Interrupted>() {
                ExitCode::from(INTERRUPTED)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn run() -> Result<ExitCode> {
    check_privileges()?;
    enter_private_namespaces()?;
    let interruption = Interruption::default();
    watch_signals(interruption.clone())?;
    let mut out = stdout();
    let style = if out.is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        Style::Coloured
    } else {
        Style::Plain
    };
    let summary = perform(&mut Screen::new(&mut out, style, interruption))?;
    Ok(if summary.is_flawless() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Fails with advice if network namespaces cannot be created.
fn check_privileges() -> Result<()> {
    let (as_whom, advice): (&[&str], _) = if rustix::process::geteuid().is_root() {
        (
            &[],
            "this container may make no namespaces: give it CAP_SYS_ADMIN and CAP_NET_ADMIN",
        )
    } else {
        (
            &["--user", "--map-root-user"],
            "this kernel gives you no user namespaces: run it as root, with sudo make demo",
        )
    };
    let mut command = Command::new("unshare");
    command.args(as_whom).args(["--net", "--mount", "true"]);
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let status = status.context("failed to run unshare: install util-linux")?;
    ensure!(status.success(), advice);
    Ok(())
}

/// Interrupts the demo instead of the process, so that everything it created is removed.
fn watch_signals(interruption: Interruption) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let runtime = runtime.context("failed to watch for signals")?;
    let signals = {
        let _inside = runtime.enter();
        [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ]
        .map(signal)
    };
    let [mut interrupt, mut terminate, mut hangup] = match signals {
        [Ok(interrupt), Ok(terminate), Ok(hangup)] => [interrupt, terminate, hangup],
        [Err(error), _, _] | [_, Err(error), _] | [_, _, Err(error)] => {
            return Err(error).context("failed to watch for signals");
        }
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        // The handlers stay installed: a second Ctrl-C does not interrupt the cleanup.
        interruption.raise();
    });
    Ok(())
}
