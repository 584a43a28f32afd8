//! The signals that end a process, from the kernel or from a channel.

use std::future::pending;
use std::io;

use thiserror::Error;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::mpsc;

/// A signal that asks the process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: what a kubelet sends.
    Terminate,
    /// SIGINT: what a terminal sends on Ctrl-C.
    Interrupt,
}

/// The source of signals.
#[derive(Debug)]
pub struct Signals(Source);

#[derive(Debug)]
enum Source {
    Kernel {
        terminate: unix::Signal,
        interrupt: unix::Signal,
    },
    Channel(mpsc::UnboundedReceiver<Signal>),
}

/// The kernel refused a signal handler.
#[derive(Debug, Error)]
#[error("failed to handle {name}")]
pub struct SignalsError {
    name: &'static str,
    source: io::Error,
}

// === impl Signal ===

impl Signal {
    /// The exit code of a process that a signal ended at once, as in shells: 128 plus the signal
    /// number.
    pub fn exit_code(self) -> u8 {
        match self {
            Signal::Terminate => 143,
            Signal::Interrupt => 130,
        }
    }

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Signal::Terminate => "SIGTERM",
            Signal::Interrupt => "SIGINT",
        }
    }
}

// === impl Signals ===

impl Signals {
    /// Catches the signals sent to this process. After this call they no longer end it by
    /// themselves. Must be called inside a tokio runtime, which must stay responsive.
    pub fn of_process() -> Result<Self, SignalsError> {
        let watch = |kind, name| unix::signal(kind).map_err(|source| SignalsError { name, source });
        Ok(Signals(Source::Kernel {
            terminate: watch(SignalKind::terminate(), Signal::Terminate.name())?,
            interrupt: watch(SignalKind::interrupt(), Signal::Interrupt.name())?,
        }))
    }

    /// Receives signals from a channel. A closed channel sends none.
    pub fn from_channel(receiver: mpsc::UnboundedReceiver<Signal>) -> Self {
        Signals(Source::Channel(receiver))
    }

    /// Waits for the next signal. Cancel safe.
    pub async fn recv(&mut self) -> Signal {
        let received = match &mut self.0 {
            Source::Kernel {
                terminate,
                interrupt,
            } => tokio::select! {
                received = terminate.recv() => received.map(|()| Signal::Terminate),
                received = interrupt.recv() => received.map(|()| Signal::Interrupt),
            },
            Source::Channel(receiver) => receiver.recv().await,
        };
        match received {
            Some(signal) => signal,
            None => pending().await,
        }
    }
}
