//! Runs a control plane until Ctrl-C, for experiments with kubectl.

use anyhow::{Context, Result};
use tests::control_plane::{ADMINISTRATOR, ControlPlane, Options};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<()> {
    // Until the handlers are installed, signals kill this process; the servers then end with their
    // input.
    let control_plane = ControlPlane::start(Options::default())?;
    let kubeconfig = control_plane.kubeconfig(ADMINISTRATOR)?;
    println!("export KUBECONFIG={}", kubeconfig.display());
    println!("export PATH={}:$PATH", control_plane.programs().display());
    eprintln!("the control plane is ready; Ctrl-C ends it and removes what it has stored");
    let signals = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    signals
        .context("failed to prepare for signals")?
        .block_on(wait_for_signal())
}

async fn wait_for_signal() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        // Cancel safe: this process ends here.
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
