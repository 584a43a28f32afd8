//! How full the kernel's table of connections is.

use crds::node_proxy::ConntrackFill;

/// Entries and limit of this network namespace; `None` where the kernel does not say (no module, or
/// a user namespace that may not look).
pub(crate) fn observe_fill() -> Option<ConntrackFill> {
    let read = |name: &str| -> Option<u32> {
        let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/{name}")).ok()?;
        text.trim().parse().ok()
    };
    Some(ConntrackFill {
        entries: read("nf_conntrack_count")?,
        max: read("nf_conntrack_max")?,
    })
}
