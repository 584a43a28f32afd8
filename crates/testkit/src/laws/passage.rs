//! The law about packets while the kernel changes from one state to another.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::{Config, Dataplane, Family, FrontendKey, FrontendKind, Packet, Target, Verdict};

use super::ends::targets;

/// Checks rules between `[before, after]` whose verdict on `packet` is `held`. If the packet is
/// served in the end, and before was served or passed unchanged, these rules neither refuse it nor
/// send it to an endpoint that neither end uses. If both ends treat it the same, they serve it.
///
/// A packet to a Service CIDR may be dropped before its frontend exists: its sender retries,
/// whereas a packet that left unchanged would create a flow that is never redirected.
///
/// If a cluster IP is also on a device of the node, it accepts node ports, too. Such a packet to
/// one Service uses the address of another, and may be rejected until the node port is added. The
/// cluster IP cannot wait for the node port, since the node's connections from that address are
/// masqueraded because of it. Nor can the node port be added before frontends with an address: it
/// would take packets to an external IP of the node with the same port.
pub fn never_misleads(ends: [&Dataplane; 2], packet: &Packet, held: &Verdict) {
    let [before, after] = ends.map(|dataplane| dataplane.verdict(packet));
    let Verdict::Deliver(_) = after else { return };
    // A new configuration is programmed before the frontends that it changes.
    let mut reconfigured = ends[0].clone();
    reconfigured.set_node(Arc::clone(ends[1].node()), Arc::clone(ends[1].config()));
    let reconfigured = reconfigured.verdict(packet);
    let was_untouched = match &before {
        Verdict::Deliver(_) => false,
        Verdict::Untouched => true,
        Verdict::Reject | Verdict::Drop => return,
    };
    // A new configuration may open an old frontend to this packet before the frontend changes.
    let has_old = !ends[0].services().is_empty();
    if was_untouched && has_old && ends[0].config() != ends[1].config() {
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
        Verdict::Drop if was_untouched && is_in_service_cidr(ends, packet) => {}
        Verdict::Reject if becomes_node_port_at_cluster_ip(ends, packet) => {}
        Verdict::Reject | Verdict::Drop if before != reconfigured && *held == reconfigured => {}
        Verdict::Reject | Verdict::Drop => {
            panic!("{packet} is refused on the way: {held:?}, and at the end {after:?}")
        }
    }
}

/// Whether in the end a node port answers at a cluster IP, where before there was a frontend of
/// that address or the packet passed unchanged.
fn becomes_node_port_at_cluster_ip(ends: [&Dataplane; 2], packet: &Packet) -> bool {
    let had = ends[0].frontends().get(&at_address(packet)).is_some();
    let was_untouched = ends[0].verdict(packet) == Verdict::Untouched;
    is_for_node_port_at_cluster_ip(ends[1], packet) && (had || was_untouched)
}

/// Whether only a node port can answer `packet`, at a cluster IP that is also on a device of the node.
/// Such a packet may be rejected until the node port is added, see [`never_misleads`].
pub fn is_for_node_port_at_cluster_ip(dataplane: &Dataplane, packet: &Packet) -> bool {
    let frontend = dataplane.frontend_at(packet.destination, packet.protocol, packet.port);
    dataplane.cluster_ips().get(&packet.destination).is_some()
        && frontend.is_some_and(|frontend| frontend.kind == FrontendKind::NodePort)
}

/// If a node port gives way to a frontend with an address, or replaces one: the endpoints that the
/// Service port which served the packet before has in the end.
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
