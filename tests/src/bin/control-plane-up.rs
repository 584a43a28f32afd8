//! Runs a control plane until Ctrl-C, to try things on with kubectl.

use anyhow::{Context, Result};
use tests::control_plane::{ADMINISTRATOR, ControlPlane, Options};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<()> {
    // Signals still kill us here; the servers then end with their input.
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
        // Nothing is lost with the one that is not chosen: we end.
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
