//! The laws about the steps of a change, for backends whose rules can be simulated.

use backend::Rendered;
use dataplane::{Dataplane, Endpoints, Family, Node, Packet, Service, Verdict};
use proptest::sample::Index;

use super::{
    HonestVerdicts, is_for_node_port_at_cluster_ip, never_misleads, no_worse_than_both_ends,
    unrelated_services_notice_nothing,
};
use crate::Cluster;

/// A backend for one family whose changes are followed step by step.
pub trait Stepwise {
    /// What the kernel holds.
    type Rules: Clone + Default;

    /// The family of the rules.
    fn family(&self) -> Family;

    /// The rules that `dataplane` needs, made from others.
    fn render(&self, dataplane: &Dataplane, from: &Rendered<Self::Rules>) -> Self::Rules;

    /// What the kernel holds after each of the smallest steps from `held` to `desired`, of which the
    /// last one leads there.
    fn steps(&self, held: &Self::Rules, desired: &Self::Rules) -> Vec<Self::Rules>;

    /// What happens to a packet on a node that holds `rules`.
    fn simulate(&self, rules: &Self::Rules, node: &Node, packet: &Packet) -> Verdict;
}

/// Checks packets at every step from `before` to `after`, and at every step from there on of an agent
/// that starts: the previous one may have been killed.
///
/// # Panics
///
/// If a packet fares worse than at both ends, or is misled, or a Service that does not change notices.
pub fn a_change_that_is_cut_short_harms_nobody(
    backend: &impl Stepwise,
    [before, after]: [&Dataplane; 2],
    packets: &[Packet],
) {
    let ends = [before, after];
    let packets = of_family(backend, packets);
    let verdict = |held: &_, packet: &Packet| backend.simulate(held, after.node(), packet);
    let rules = backend.render(before, &Rendered::default());
    let serving = read_by(before, rules);
    let desired = backend.render(after, &serving);
    let of_packets: Vec<_> = packets
        .iter()
        .map(|packet| {
            let had = verdict(&serving.rules, packet);
            (packet, had, verdict(&desired, packet))
        })
        .collect();
    let expect_good = |held: &_| {
        for (packet, had, has) in &of_packets {
            let between = verdict(held, packet);
            unrelated_services_notice_nothing(ends, packet, &between);
            never_misleads(ends, packet, &between);
            if !is_for_node_port_at_cluster_ip(after, packet) {
                no_worse_than_both_ends(packet, ends, [had, has], &between);
            }
        }
    };
    for cut_short in backend.steps(&serving.rules, &desired) {
        expect_good(&cut_short);
        let found = read_by(&Dataplane::default(), cut_short);
        let desired = backend.render(after, &found);
        backend
            .steps(&found.rules, &desired)
            .iter()
            .for_each(expect_good);
    }
}

/// Checks packets to honest Services at every step while all `tenants` come, and while they go; and
/// while an agent that starts finds them gone where the previous one was `killed_after` a step.
///
/// # Panics
///
/// If a packet does not fare as without the tenants.
pub fn honest_services_notice_nothing_while_tenants_come_and_go(
    backend: &impl Stepwise,
    cluster: &Cluster,
    tenants: &[(Service, Endpoints)],
    packets: &[Packet],
    killed_after: Index,
) {
    let mut beside = cluster.clone();
    beside.services.extend(tenants.iter().cloned());
    let [honest, beside] = [cluster, &beside].map(Cluster::compile);
    let packets = of_family(backend, packets);
    let verdict = |held: &_, packet: &Packet| backend.simulate(held, honest.node(), packet);
    let alone = read_by(&honest, backend.render(&honest, &Rendered::default()));
    let verdicts = HonestVerdicts::of(cluster, tenants, &packets, |packet| {
        verdict(&alone.rules, packet)
    });
    let reached = |from: &Rendered<_>, to: &Dataplane| {
        let desired = backend.render(to, from);
        let reached = backend.steps(&from.rules, &desired);
        for held in &reached {
            verdicts.expect(|packet| verdict(held, packet));
        }
        (reached, desired)
    };
    let (mut all, rules) = reached(&alone, &beside);
    all.extend(reached(&read_by(&beside, rules), &honest).0);
    if !all.is_empty() {
        let rules = killed_after.get(&all).clone();
        reached(&read_by(&Dataplane::default(), rules), &honest);
    }
}

/// What an agent works from that holds `rules` and knows that they were made for `dataplane`.
fn read_by<R>(dataplane: &Dataplane, rules: R) -> Rendered<R> {
    Rendered {
        dataplane: dataplane.clone(),
        rules,
    }
}

fn of_family(backend: &impl Stepwise, packets: &[Packet]) -> Vec<Packet> {
    let packets = packets.iter();
    let packets = packets.filter(|packet| Family::of(packet.destination) == backend.family());
    packets.cloned().collect()
}
