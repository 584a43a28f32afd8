//! Interruption by Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

/// Whether the demo must end. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Interruption(Arc<AtomicBool>);

/// The error of an interrupted demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("interrupted")]
pub struct Interrupted;

// === impl Interruption ===

impl Interruption {
    /// Ends the demo at its next line of output or its next poll.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Fails after [`Interruption::raise`].
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Interrupted);
        }
        Ok(())
    }
}
