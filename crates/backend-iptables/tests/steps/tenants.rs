//! Honest Services while the objects of hostile tenants come and go.

use backend::{Backend, Rendered};
use backend_iptables::{Rules, simulate};
use dataplane::{Dataplane, Family, Packet};
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::{cases, laws, questions_beside_tenants};

use super::{backend, parts};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(30)))]

    /// Failure story T352: also if an agent is killed after any part, and the next one finds the
    /// tenants gone.
    #[test]
    fn t352_honest_services_notice_nothing_while_tenants_come_and_go(
        (cluster, tenants, packets) in questions_beside_tenants(8), killed_after in any::<Index>(),
    ) {
        let mut beside = cluster.clone();
        beside.services.extend(tenants.iter().cloned());
        let [honest, beside] = [&cluster, &beside].map(|cluster| cluster.compile());
        for family in Family::ALL {
            let backend = backend(family);
            let packets = packets.iter().filter(|p| Family::of(p.destination) == family);
            let packets: Vec<Packet> = packets.cloned().collect();
            let rules = backend.render(&honest, &Rendered::default());
            let verdict = |held: &Rules, packet: &Packet| simulate(held, honest.node(), packet);
            let verdicts = laws::HonestVerdicts::of(&cluster, &tenants, &packets, |packet| {
                verdict(&rules, packet)
            });
            let steps = |from: &Rendered<Rules>, to: &Dataplane| {
                let desired = backend.render(to, from);
                let (mut held, mut reached) = (from.rules.clone(), Vec::new());
                for part in parts(&backend, &from.rules, &desired) {
                    held.replay(&part).expect("every part of a step can be taken");
                    verdicts.expect(|packet| verdict(&held, packet));
                    reached.push(held.clone());
                }
                assert_eq!(held, desired);
                (reached, desired)
            };
            let alone = Rendered { dataplane: honest.clone(), rules };
            let (mut reached, rules) = steps(&alone, &beside);
            let crowded = Rendered { dataplane: beside.clone(), rules };
            reached.extend(steps(&crowded, &honest).0);
            if !reached.is_empty() {
                let rules = killed_after.get(&reached).clone();
                steps(&Rendered { dataplane: Dataplane::default(), rules }, &honest);
            }
        }
    }
}
