//! How tasks learn that the process is ending.

use tokio::sync::watch;

/// Tells whoever holds it whether it is time to end. Cheap to clone, the same for all clones,
/// and never taken back.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

/// The other end of a [`Stop`]. Dropping it stops too: whoever could have said so is gone.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

// === impl Stop ===

impl Stop {
    /// A token and what sets it.
    pub fn new() -> (Stopper, Stop) {
        let (sender, receiver) = watch::channel(false);
        (Stopper(sender), Stop(receiver))
    }

    /// Returns once it is time to end; at once when it already is. Cancel safe.
    pub async fn stopped(&self) {
        let mut receiver = self.0.clone();
        // The error says that the stopper is gone, which means the same.
        let _ = receiver.wait_for(|stopped| *stopped).await;
    }

    /// Whether it is time to end. For loops on threads; costs one uncontended lock.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}

// === impl Stopper ===

impl Stopper {
    /// Says that it is time to end.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_clone_is_told_and_late_ones_too() {
        let (stopper, stop) = Stop::new();
        let clone = stop.clone();
        assert!(!stop.is_stopped() && !clone.is_stopped());
        stopper.stop();
        stop.stopped().await;
        clone.stopped().await;
        assert!(clone.clone().is_stopped());
    }

    #[tokio::test]
    async fn a_dropped_stopper_stops() {
        let (stopper, stop) = Stop::new();
        drop(stopper);
        stop.stopped().await;
        assert!(stop.is_stopped());
    }
}
