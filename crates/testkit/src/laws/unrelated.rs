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
) -> Concerned {
    let [before, after] = ends;
    let is_same_node = before.node() == after.node() && before.config() == after.config();
    let frontends = ends
        .map(|dataplane| dataplane.frontend_at(packet.destination, packet.protocol, packet.port));
    let ([Some(had), Some(has)], true) = (frontends, is_same_node) else {
        return Concerned::Possibly;
    };
    let rules = ends.map(|dataplane| dataplane.services().get(&has.service_port.service));
    let verdicts = ends.map(|dataplane| dataplane.verdict(packet));
    if had != has || rules[0] != rules[1] || verdicts[0] != verdicts[1] {
        return Concerned::Possibly;
    }
    assert_eq!(
        *held, verdicts[1],
        "left is what happens on the way to {packet}, whose Service does not change"
    );
    Concerned::No
}

/// Whether a change concerns the Service of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concerned {
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
                let concerned = unrelated_services_notice_nothing(ends, &packet, &verdict);
                counts[usize::from(concerned == Concerned::No)] += 1;
                let lie = match verdict {
                    Verdict::Drop => Verdict::Reject,
                    _ => Verdict::Drop,
                };
                let law = || unrelated_services_notice_nothing(ends, &packet, &lie);
                let is_found = catch_unwind(AssertUnwindSafe(law)).is_err();
                assert_eq!(is_found, concerned == Concerned::No, "{packet}");
            }
        }
        assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    }
}
