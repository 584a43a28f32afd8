//! Whether this kernel redirects SCTP.

use std::path::Path;

/// A setting of conntrack that is there exactly when it knows SCTP, once NAT has loaded it.
const SCTP_SETTING: &str = "/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established";
/// A setting of conntrack that is there whenever conntrack is.
const CONNTRACK_SETTING: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Whether the kernel can redirect SCTP (`CONFIG_NF_CT_PROTO_SCTP`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sctp {
    Tracked,
    Untracked,
}

/// What the kernel was built with, once it has conntrack; it does not change as long as it runs.
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
