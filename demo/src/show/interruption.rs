//! Somebody pressed Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

/// Whether the demo is to end. Clones are of the same one.
#[derive(Debug, Clone, Default)]
pub struct Interruption(Arc<AtomicBool>);

/// What a demo that was interrupted ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("interrupted")]
pub struct Interrupted;

// === impl Interruption ===

impl Interruption {
    /// Ends the demo at its next line, or its next look at what it waits for.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Fails once somebody has called [`Interruption::raise`].
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Interrupted);
        }
        Ok(())
    }
}
