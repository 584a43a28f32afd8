//! The law about the repair of what another program has removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::{Dataplane, Frontend, FrontendKind, Packet, Target, Verdict};

use super::ends::{is_no_worse_than_both_ends, targets};
use super::unrelated::unrelated_services_notice_nothing;

/// Checks the verdict `between` on `packet` at a step from rules that another program has damaged, with
/// the verdict `found`, to those of `dataplane`, with the verdict `repaired`. It is no worse than both,
/// as [`is_no_worse_than_both_ends`] says, and where they agree it is the same, but for three things:
///
/// - What the damage has taken from its clients may be refused until all of it is back.
/// - What is refused may be refused in another way: its sender tries again, or learns of it.
/// - A node port may be back before a frontend that hides it at an address of the node: so it is where
///   the damage has taken the frontend alone.
///
/// # Panics
///
/// If it is worse.
pub fn no_worse_during_repair(
    packet: &Packet,
    dataplane: &Dataplane,
    [found, repaired]: [&Verdict; 2],
    between: &Verdict,
) {
    if delivers(repaired) && !delivers(found) && refuses(between) {
        return;
    }
    if is_of_a_hidden_node_port(packet, dataplane, [found, between]) {
        return;
    }
    let ends = [dataplane, dataplane];
    assert!(
        is_no_worse_than_both_ends(packet, ends, [found, repaired], between),
        "{packet} is {between:?} during the repair from {found:?} to {repaired:?}"
    );
    if found == repaired && !(refuses(repaired) && refuses(between)) {
        unrelated_services_notice_nothing(ends, packet, between);
    }
}

/// Whether `between` delivers `packet` to endpoints of its frontend which is restricted to other sources.
pub fn is_served_in_spite_of_its_source(
    packet: &Packet,
    dataplane: &Dataplane,
    between: &Verdict,
) -> bool {
    let frontend = dataplane.frontend_at(packet.destination, packet.protocol, packet.port);
    let frontend = frontend.filter(|frontend| !frontend.source_ranges.is_empty());
    let known = frontend.into_iter().flat_map(endpoints);
    dataplane.verdict(packet) == Verdict::Drop
        && delivers(between)
        && targets(between).is_subset(&known.collect())
}

/// Whether `between` delivers `packet` to endpoints of a node port which another frontend hides at this
/// address, and `found` does not deliver it to those of that frontend.
fn is_of_a_hidden_node_port(
    packet: &Packet,
    dataplane: &Dataplane,
    [found, between]: [&Verdict; 2],
) -> bool {
    let (address, protocol, port) = (packet.destination, packet.protocol, packet.port);
    let is_node_port = |frontend: &&Arc<Frontend>| frontend.kind == FrontendKind::NodePort;
    let served = dataplane.frontend_at(address, protocol, port);
    if served.is_none_or(|served| is_node_port(&served)) {
        return false;
    }
    let all = dataplane.equals_at(address, protocol, port);
    let hidden: BTreeSet<Target> = all.filter(is_node_port).flat_map(endpoints).collect();
    let by_it = |verdict: &Verdict| targets(verdict).is_subset(&hidden);
    delivers(between) && by_it(between) && by_it(found)
}

fn endpoints(frontend: &Arc<Frontend>) -> impl Iterator<Item = Target> {
    frontend
        .cluster
        .iter()
        .chain(frontend.local.iter())
        .copied()
}

fn delivers(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Deliver(_))
}

fn refuses(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Reject | Verdict::Drop)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use dataplane::{Choice, Origin, Protocol, compile};

    use super::*;
    use crate::{mk_config, mk_endpoints, mk_node, mk_service, parse, port};

    fn deliver(addresses: &[&str]) -> Verdict {
        let choices = addresses.iter().map(|address| Choice {
            target: Target {
                address: parse(address, "an address"),
                port: port(8080),
            },
            weight: 1,
            masquerade: true,
        });
        Verdict::Deliver(choices.collect())
    }

    /// At the node's address, port 30080 is that of a load balancer with endpoints 10.0.1.5 and 10.0.1.6,
    /// and hides a node port with endpoint 10.0.1.7.
    fn hidden_node_port() -> (Packet, Dataplane) {
        let (node, config) = (
            mk_node(1).build(),
            mk_config().node_ports_anywhere().build(),
        );
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        let web = mk_service("shop/web").cluster_ip("10.96.0.1");
        let web = web.load_balancer_ip("192.168.0.1").port("", 30_080);
        let other = mk_service("shop/other").cluster_ip("10.96.0.2");
        let other = other.port("", 80).node_port(30_080);
        let ready =
            |endpoint| move |slice: crate::EndpointsBuilder| slice.ready(endpoint, "node-1");
        let of_web = ready("10.0.1.6:8080")(ready("10.0.1.5:8080")(mk_endpoints().tcp("")));
        let of_other = ready("10.0.1.7:8080")(mk_endpoints().tcp(""));
        for (service, endpoints) in [(web, of_web), (other, of_other)] {
            let rules = compile(&service.build(), &endpoints.build(), &node, &config);
            dataplane.set(rules.into());
        }
        let packet = Packet {
            origin: Origin::Outside {
                interface: "eth0".into(),
            },
            source: parse("192.0.2.7", "an address"),
            destination: parse("192.168.0.1", "an address"),
            protocol: Protocol::Tcp,
            port: port(30_080),
        };
        (packet, dataplane)
    }

    #[test]
    fn a_lie_about_a_packet_during_a_repair_is_found() {
        use Verdict::{Drop, Reject, Untouched};
        let (packet, dataplane) = hidden_node_port();
        let is_good = |found: &Verdict, repaired: &Verdict, between: &Verdict| {
            let law = || no_worse_during_repair(&packet, &dataplane, [found, repaired], between);
            catch_unwind(AssertUnwindSafe(law)).is_ok()
        };
        let whole = dataplane.verdict(&packet);
        assert!(delivers(&whole));
        let (half, hidden) = (deliver(&["10.0.1.5"]), deliver(&["10.0.1.7"]));
        for found in [&Reject, &Drop, &Untouched, &hidden] {
            for better in [found, &hidden, &half, &whole] {
                assert!(is_good(found, &whole, better), "{found:?}, {better:?}");
            }
            assert!(
                !is_good(found, &whole, &deliver(&["10.0.1.8"])),
                "{found:?}"
            );
        }
        for worse in [&hidden, &Reject, &Drop, &Untouched] {
            assert!(!is_good(&half, &whole, worse) && !is_good(&whole, &whole, worse));
        }
        assert!(!is_good(&whole, &whole, &half) && is_good(&whole, &whole, &whole));
        for (found, repaired) in [(&Reject, &Drop), (&Drop, &Reject), (&Drop, &Drop)] {
            assert!(is_good(found, repaired, &Drop) && is_good(found, repaired, &Reject));
            assert!(is_good(found, repaired, &hidden));
            assert!(!is_good(found, repaired, &whole) && !is_good(found, repaired, &Untouched));
        }
        assert!(!is_good(&Reject, &whole, &Untouched) && !is_good(&hidden, &whole, &Reject));
    }
}
