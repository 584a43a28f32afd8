//! What packets meet while the kernel is led from one state to another.

use std::collections::BTreeSet;

use dataplane::{Config, Dataplane, FrontendKey, Packet, Target, Verdict};

/// Rules somewhere between `[before, after]`, which send `packet` to `held`, neither refuse it nor send
/// it where neither end does, if it is served in the end and was served, or nobody's, before; and they
/// serve it if both do the same with it.
///
/// What is addressed to a Service CIDR may be dropped before its frontend is there: its sender tries
/// again, where a packet that went out as it is would leave a flow behind that is never redirected.
///
/// Where a cluster IP is also on a device of the node, a node port answers there, too. Such a packet is
/// for one Service by the address of another, and may be rejected until the node port comes. The cluster
/// IP cannot wait for it: connections of the node from that address are masqueraded by it. Nor can the
/// node port come before frontends with an address: it would take what is for an external IP of
/// the node with its number.
pub fn never_misleads(ends: [&Dataplane; 2], packet: &Packet, held: &Verdict) {
    let [before, after] = ends.map(|dataplane| dataplane.verdict(packet));
    let Verdict::Deliver(_) = after else { return };
    let is_nobodys = match &before {
        Verdict::Deliver(_) => false,
        Verdict::Untouched => true,
        Verdict::Reject | Verdict::Drop => return,
    };
    // A new configuration may open an old frontend to this packet before the frontend changes.
    let has_old = !ends[0].services().is_empty();
    if is_nobodys && has_old && ends[0].config() != ends[1].config() {
        return;
    }
    match held {
        Verdict::Deliver(_) => {
            let mut known = targets(&before);
            known.extend(targets(&after));
            assert!(
                targets(held).is_subset(&known),
                "{packet} is misled: {held:?}, and at the ends {before:?} and {after:?}"
            );
        }
        Verdict::Untouched => assert!(before != after, "{packet} is not served on the way"),
        Verdict::Drop if is_nobodys && is_in_service_cidr(ends, packet) => {}
        Verdict::Reject if is_nobodys && is_node_port_at_cluster_ip(ends[1], packet) => {}
        Verdict::Reject | Verdict::Drop => {
            panic!("{packet} is refused on the way: {held:?}, and at the end {after:?}")
        }
    }
}

fn targets(verdict: &Verdict) -> BTreeSet<Target> {
    match verdict {
        Verdict::Deliver(choices) => choices.iter().map(|choice| choice.target).collect(),
        Verdict::Reject | Verdict::Drop | Verdict::Untouched => BTreeSet::new(),
    }
}

fn is_node_port_at_cluster_ip(dataplane: &Dataplane, packet: &Packet) -> bool {
    let frontend = FrontendKey::Address {
        address: packet.destination,
        protocol: packet.protocol,
        port: packet.port,
    };
    let is_cluster_ip = dataplane.cluster_ips().get(&packet.destination).is_some();
    is_cluster_ip && dataplane.frontends().get(&frontend).is_none()
}

fn is_in_service_cidr(ends: [&Dataplane; 2], packet: &Packet) -> bool {
    let holds = |config: &Config| {
        let mut cidrs = config.service_cidrs.iter();
        cidrs.any(|cidr| cidr.contains(&packet.destination))
    };
    ends.iter().any(|dataplane| holds(dataplane.config()))
}
