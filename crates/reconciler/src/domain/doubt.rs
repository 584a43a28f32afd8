//! What the kernel was left with, where it was not seen to hold that.

/// What to compare the kernel with once it is read: until then nothing is believed of it.
#[derive(Debug)]
pub(super) struct Doubt<R> {
    /// What it was left with.
    pub(super) rules: R,
    pub(super) cause: Cause,
}

/// Why it is doubted that the kernel holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Somebody may have changed it, and reading it failed.
    Unread,
    /// It refused all of a change that should have led on from there.
    Refused,
}
