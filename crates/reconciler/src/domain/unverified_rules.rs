//! What the kernel was left with, if it is not verified that the kernel still holds it.

/// The rules to compare with when the kernel is read next. Until then its state is not known.
#[derive(Debug)]
pub(super) struct UnverifiedRules<R> {
    /// What the kernel was left with.
    pub(super) rules: R,
    pub(super) cause: Cause,
}

/// Why it is not certain that the kernel holds the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Another program may have changed them, and reading them failed.
    Unread,
    /// The kernel refused all of a change that was based on them.
    Refused,
}
