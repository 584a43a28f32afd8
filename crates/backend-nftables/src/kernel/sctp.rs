//! Detects whether the kernel redirects SCTP.

use std::path::Path;

/// A conntrack setting that exists exactly if conntrack supports SCTP, once NAT has loaded
/// conntrack.
const SCTP_SETTING: &str = "/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established";
/// A conntrack setting that exists whenever conntrack is loaded.
const CONNTRACK_SETTING: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Whether the kernel can redirect SCTP (`CONFIG_NF_CT_PROTO_SCTP`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sctp {
    Tracked,
    Untracked,
}

/// Returns what the kernel was built with, once conntrack is loaded. Constant while the kernel
/// runs.
pub(super) fn observe_sctp() -> Option<Sctp> {
    let is_there = |setting: &str| Path::new(setting).exists();
    if !is_there(CONNTRACK_SETTING) {
        return None;
    }
    Some(match is_there(SCTP_SETTING) {
        true => Sctp::Tracked,
        false => Sctp::Untracked,
    })
}
