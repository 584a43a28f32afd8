//! The law about a kernel between two states.

use std::collections::BTreeSet;

use dataplane::{Dataplane, Packet, Target, Verdict};

/// Checks that the verdict on `packet` between two states is no worse than at both ends, see
/// [`is_no_worse_than_both_ends`].
///
/// # Panics
///
/// If the verdict is worse.
pub fn no_worse_than_both_ends(
    packet: &Packet,
    desired: [&Dataplane; 2],
    [before, after]: [&Verdict; 2],
    between: &Verdict,
) {
    assert!(
        is_no_worse_than_both_ends(packet, desired, [before, after], between),
        "{packet} is {between:?} on the way from {before:?} to {after:?}"
    );
}

/// Whether the verdict on `packet` between two states is no worse than at both ends:
///
/// - A packet that both ends refuse or drop is not let through, nor one that one of them refuses or
///   drops and the other delivers.
/// - A packet that both ends deliver is delivered, to a target that the Service port has at one of
///   them.
/// - A packet that the new state delivers is not refused, unless the old state refused it, nor sent
///   anywhere else. It may not be delivered yet: its sender retries.
///
/// `desired` are the dataplanes of the two ends.
pub fn is_no_worse_than_both_ends(
    packet: &Packet,
    desired: [&Dataplane; 2],
    [before, after]: [&Verdict; 2],
    between: &Verdict,
) -> bool {
    let refuses = |verdict: &Verdict| matches!(verdict, Verdict::Reject | Verdict::Drop);
    let delivers = |verdict: &Verdict| matches!(verdict, Verdict::Deliver(_));
    if refuses(before) && refuses(after) {
        refuses(between)
    } else if delivers(after) {
        let mut known = targets_of_ports(packet, desired);
        known.extend(targets(before));
        known.extend(targets(after));
        match between {
            Verdict::Deliver(_) => targets(between).is_subset(&known),
            Verdict::Reject => *before == Verdict::Reject,
            Verdict::Drop => !delivers(before),
            Verdict::Untouched => *before == Verdict::Untouched,
        }
    } else {
        let leaves = delivers(before) && refuses(after);
        !leaves || *between != Verdict::Untouched
    }
}

/// The endpoints, in either state, of the Service ports that have the destination of `packet` in
/// one.
fn targets_of_ports(packet: &Packet, desired: [&Dataplane; 2]) -> BTreeSet<Target> {
    let owners = desired.iter().filter_map(|dataplane| {
        let frontend = dataplane.frontend_at(packet.destination, packet.protocol, packet.port)?;
        Some(&frontend.service_port)
    });
    let owners: BTreeSet<_> = owners.collect();
    let services = owners
        .iter()
        .flat_map(|port| desired.map(|dataplane| dataplane.services().get(&port.service)));
    let frontends = services.flatten().flat_map(|service| &service.frontends);
    frontends
        .filter(|(_, frontend)| owners.contains(&frontend.service_port))
        .flat_map(|(_, frontend)| frontend.cluster.iter().chain(frontend.local.iter()))
        .copied()
        .collect()
}

/// The endpoints to which `verdict` delivers.
pub(super) fn targets(verdict: &Verdict) -> BTreeSet<Target> {
    match verdict {
        Verdict::Deliver(choices) => choices.iter().map(|choice| choice.target).collect(),
        Verdict::Reject | Verdict::Drop | Verdict::Untouched => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use dataplane::{Choice, Origin, Protocol};

    use super::*;

    fn deliver(address: &str) -> Verdict {
        Verdict::Deliver(vec![Choice {
            target: Target {
                address: crate::parse(address, "an address"),
                port: crate::port(80),
            },
            weight: 1,
            masquerade: false,
        }])
    }

    fn is_good(before: &Verdict, after: &Verdict, between: &Verdict) -> bool {
        let packet = Packet {
            origin: Origin::Node,
            source: crate::parse("10.0.0.1", "an address"),
            destination: crate::parse("10.96.0.1", "an address"),
            protocol: Protocol::Tcp,
            port: crate::port(80),
        };
        let nothing = Dataplane::default();
        let desired = [&nothing, &nothing];
        is_no_worse_than_both_ends(&packet, desired, [before, after], between)
    }

    #[test]
    fn a_lie_about_a_packet_on_the_way_is_found() {
        use Verdict::{Drop, Reject, Untouched};
        let (one, other, third) = (
            deliver("10.0.2.1"),
            deliver("10.0.2.2"),
            deliver("10.0.2.3"),
        );
        for (before, after) in [(&Reject, &Drop), (&Drop, &Reject), (&Drop, &Drop)] {
            assert!(is_good(before, after, &Drop) && is_good(before, after, &Reject));
            assert!(!is_good(before, after, &Untouched) && !is_good(before, after, &one));
        }
        assert!(is_good(&one, &other, &one) && is_good(&one, &other, &other));
        for worse in [&third, &Reject, &Drop, &Untouched] {
            assert!(!is_good(&one, &other, worse), "{worse:?}");
        }
        assert!(is_good(&Untouched, &one, &Drop) && is_good(&Untouched, &one, &Untouched));
        assert!(!is_good(&Untouched, &one, &Reject) && !is_good(&Untouched, &one, &other));
        assert!(is_good(&Reject, &one, &Reject) && is_good(&one, &Untouched, &Reject));
        assert!(!is_good(&Reject, &one, &Untouched) && !is_good(&one, &Drop, &Untouched));
        assert!(is_good(&one, &Drop, &one) && is_good(&one, &Drop, &Reject));
    }
}
