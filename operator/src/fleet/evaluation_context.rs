//! When nodes are evaluated, and what the operator knows of them then.

use jiff::Timestamp;

/// When nodes are evaluated, and what is known then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvaluationContext {
    /// The time.
    pub(crate) now: Timestamp,
    /// Until when at least no time counts against a node, because reports may be missing.
    pub(crate) suspended_until: Option<Timestamp>,
    /// Whether the cache of Nodes and NodeProxies is up to date.
    pub(crate) cache: CacheState,
}

/// Whether the cache of Nodes and NodeProxies is up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheState {
    /// It is.
    Synced,
    /// Their watches fail, so that no node is judged or changed by what is in it. Nodes without a
    /// configuration get one.
    Stale,
}
