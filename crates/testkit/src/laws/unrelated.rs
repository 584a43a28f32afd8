//! The law about Services that a change does not concern.

use dataplane::{Dataplane, Packet, Verdict};

/// Checks rules between `ends` whose verdict on `packet` is `held`. If the packet is for a Service that
/// is the same at both ends, and both treat it the same, so do these rules.
///
/// # Panics
///
/// If they do not.
pub fn unrelated_services_notice_nothing(
    ends: [&Dataplane; 2],
    packet: &Packet,
    held: &Verdict,
) -> AffectsPacket {
    let [before, after] = ends;
    let is_same_node = before.node() == after.node() && before.config() == after.config();
    let frontends = ends
        .map(|dataplane| dataplane.frontend_at(packet.destination, packet.protocol, packet.port));
    let ([Some(had), Some(has)], true) = (frontends, is_same_node) else {
        return AffectsPacket::Possibly;
    };
    let rules = ends.map(|dataplane| dataplane.services().get(&has.service_port.service));
    let verdicts = ends.map(|dataplane| dataplane.verdict(packet));
    if had != has || rules[0] != rules[1] || verdicts[0] != verdicts[1] {
        return AffectsPacket::Possibly;
    }
    assert_eq!(
        *held, verdicts[1],
        "left is what happens on the way to {packet}, whose Service does not change"
    );
    AffectsPacket::No
}

/// Whether a change affects the Service of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffectsPacket {
    /// It may.
    Possibly,
    /// It does not.
    No,
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;

    use super::*;
    use crate::changes;

    #[test]
    fn changes_leave_services_alone_and_a_lie_about_those_is_found() {
        let mut runner = TestRunner::deterministic();
        let mut counts = [0, 0];
        for _ in 0..100 {
            let tree = changes(6).new_tree(&mut runner);
            let (before, after, packets) = tree.expect("changes are not filtered").current();
            let [before, after] = [before.compile(), after.compile()];
            let ends = [&before, &after];
            for packet in packets {
                let verdict = after.verdict(&packet);
                let affects = unrelated_services_notice_nothing(ends, &packet, &verdict);
                counts[usize::from(affects == AffectsPacket::No)] += 1;
                let lie = match verdict {
                    Verdict::Drop => Verdict::Reject,
                    _ => Verdict::Drop,
                };
                let law = || unrelated_services_notice_nothing(ends, &packet, &lie);
                let is_found = catch_unwind(AssertUnwindSafe(law)).is_err();
                assert_eq!(is_found, affects == AffectsPacket::No, "{packet}");
            }
        }
        assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    }
}
