//! Honest Services while the objects of hostile tenants come and go.

use backend::{Backend, Rendered};
use backend_iptables::{Iptables, Rules, simulate};
use dataplane::{Dataplane, Family, Node, Packet, Verdict};
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::laws::Stepwise;
use testkit::{cases, laws, questions_beside_tenants};

use super::{backend, parts};

/// Changes in steps of single chains.
struct Smallest(Iptables);

impl Stepwise for Smallest {
    type Rules = Rules;

    fn family(&self) -> Family {
        self.0.family()
    }

    fn render(&self, dataplane: &Dataplane, from: &Rendered<Rules>) -> Rules {
        self.0.render(dataplane, from)
    }

    fn steps(&self, held: &Rules, desired: &Rules) -> Vec<Rules> {
        let mut rules = held.clone();
        let steps = parts(&self.0, held, desired).into_iter().map(|part| {
            rules
                .replay(&part)
                .expect("every part of a step can be taken");
            rules.clone()
        });
        let steps: Vec<Rules> = steps.collect();
        assert_eq!(rules, *desired);
        steps
    }

    fn simulate(&self, held: &Rules, node: &Node, packet: &Packet) -> Verdict {
        simulate(held, node, packet)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(30)))]

    /// Failure story T352: also if an agent is killed after any part, and the next one finds the
    /// tenants gone.
    #[test]
    fn t352_honest_services_notice_nothing_while_tenants_come_and_go(
        (cluster, tenants, packets) in questions_beside_tenants(8), killed_after in any::<Index>(),
    ) {
        for family in Family::ALL {
            laws::honest_services_notice_nothing_while_tenants_come_and_go(
                &Smallest(backend(family)), &cluster, &tenants, &packets, killed_after,
            );
        }
    }
}
