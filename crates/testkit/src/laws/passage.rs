//! What packets meet while the kernel is led from one state to another.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::{Config, Dataplane, Family, FrontendKey, Packet, Target, Verdict};

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
    // A new configuration comes before the frontends that it changes.
    let mut reconfigured = ends[0].clone();
    reconfigured.set_node(Arc::clone(ends[1].node()), Arc::clone(ends[1].config()));
    let reconfigured = reconfigured.verdict(packet);
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
            known.extend(targets(&reconfigured));
            known.extend(targets(&after));
            known.extend(followed(ends, packet));
            assert!(
                targets(held).is_subset(&known),
                "{packet} is misled: {held:?}, and at the ends {before:?} and {after:?}"
            );
        }
        Verdict::Untouched => assert!(before != after, "{packet} is not served on the way"),
        Verdict::Drop if is_nobodys && is_in_service_cidr(ends, packet) => {}
        Verdict::Reject if becomes_node_port_at_cluster_ip(ends, packet) => {}
        Verdict::Reject | Verdict::Drop if before != reconfigured && *held == reconfigured => {}
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

/// Whether a node port answers in the end at a cluster IP, where a frontend of that address or nothing at all
/// did before.
fn becomes_node_port_at_cluster_ip(ends: [&Dataplane; 2], packet: &Packet) -> bool {
    let [had, has] = ends.map(|dataplane| dataplane.frontends().get(&at_address(packet)).is_some());
    let was_nobodys = ends[0].verdict(packet) == Verdict::Untouched;
    let is_cluster_ip = ends[1].cluster_ips().get(&packet.destination).is_some();
    is_cluster_ip && !has && (had || was_nobodys)
}

/// Where a node port of an address gives way to a frontend with that address, or follows it: the endpoints
/// that the Service port has in the end that served the packet at first.
fn followed(ends: [&Dataplane; 2], packet: &Packet) -> BTreeSet<Target> {
    let (address, node_port) = (at_address(packet), at_node_port(packet));
    let [had, has] = ends.map(|dataplane| dataplane.frontends().get(&address).is_some());
    let served = match (had, has) {
        (true, false) => ends[0].frontends().get(&address),
        (false, true) => ends[0].frontends().get(&node_port),
        (true, true) | (false, false) => None,
    };
    let Some(served) = served.map(|claims| claims.winner().1) else {
        return BTreeSet::new();
    };
    let frontends = ends[1].frontends().iter();
    let frontends = frontends.map(|(_, claims)| claims.winner().1);
    frontends
        .filter(|frontend| frontend.service_port == served.service_port)
        .flat_map(|frontend| frontend.cluster.iter().chain(frontend.local.iter()))
        .copied()
        .collect()
}

fn at_address(packet: &Packet) -> FrontendKey {
    FrontendKey::Address {
        address: packet.destination,
        protocol: packet.protocol,
        port: packet.port,
    }
}

fn at_node_port(packet: &Packet) -> FrontendKey {
    FrontendKey::NodePort {
        family: Family::of(packet.destination),
        protocol: packet.protocol,
        port: packet.port,
    }
}

fn is_in_service_cidr(ends: [&Dataplane; 2], packet: &Packet) -> bool {
    let holds = |config: &Config| {
        let mut cidrs = config.service_cidrs.iter();
        cidrs.any(|cidr| cidr.contains(&packet.destination))
    };
    ends.iter().any(|dataplane| holds(dataplane.config()))
}
