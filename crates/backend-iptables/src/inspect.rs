//! Interprets the rules of one family, for traces and explanations.

use backend::{
    Backend, Change as _, Found, Inspect, PacketPath, Piece, PieceState, Rendered, count,
};
use dataplane::{Dataplane, Family, FrontendKey, Node, Packet, Verdict};

use crate::kernel::Iptables;
use crate::rules::Rules;
use crate::simulate::{paths, simulate};

impl Inspect for Iptables {
    fn exist(&self, rules: &Rules) -> bool {
        rules.exist()
    }

    fn elements(&self, rules: &Rules) -> usize {
        let tables = xtables::TableName::ALL.iter();
        tables.map(|table| rules.count(*table)).sum()
    }

    fn simulate(&self, rules: &Rules, node: &Node, packet: &Packet) -> Verdict {
        simulate(rules, node, packet)
    }

    fn paths(&self, rules: &Rules, node: &Node, packet: &Packet) -> Vec<PacketPath> {
        paths(rules, node, packet)
    }

    /// Renders all of `desired`: the place of a rule in a tree depends on all other Services. Which ports
    /// have lists of clients is in `observed`.
    fn render_part(&self, _part: &Dataplane, desired: &Dataplane, observed: &Rules) -> Rules {
        let (dataplane, rules) = (Dataplane::default(), observed.clone());
        self.render(desired, &Rendered { dataplane, rules })
    }

    fn compare_frontend(&self, desired: &Rules, found: &Rules, key: &FrontendKey) -> Vec<Piece> {
        desired.compare_rules(found, key)
    }

    fn compare_chains(&self, desired: &Rules, found: &Rules, key: &FrontendKey) -> Vec<Piece> {
        desired.compare_chains(found, &desired.chains_of(key))
    }

    fn compare_memberships(&self, desired: &Rules, found: &Rules, part: &Dataplane) -> Vec<Piece> {
        desired.compare_memberships(found, part, self.family())
    }

    /// Returns chains that all packets traverse and that differ from those programmed, and leftover
    /// chains.
    fn compare_shared(&self, programmed: &Rules, found: &Rules) -> Vec<Piece> {
        let mut shared = programmed.compare_shared(found);
        shared.retain(|piece| piece.state != PieceState::Present);
        shared
    }

    fn heading(&self) -> String {
        let program = match self.family() {
            Family::Ipv4 => "iptables",
            Family::Ipv6 => "ip6tables",
        };
        format!("# {program}")
    }

    fn describe(&self, found: Found<'_, Rules>) -> String {
        let (programmed, found) = match found {
            Found::Unreadable(error) => return format!("! the rules could not be read: {error}"),
            Found::Missing => return "! Signpost's rules are missing in the kernel".to_owned(),
            Found::Rules { programmed, found } => (programmed, found),
        };
        let repair = self.diff(found, programmed).size();
        if repair.is_empty() {
            let (rules, variant) = (count(self.elements(found), "rule"), self.variant());
            return format!(
                "the kernel holds what was programmed, {rules} of iptables ({variant})"
            );
        }
        // Chains are written as a whole: the number of rules in the repair is not the number of
        // wrong rules.
        let chains = count(repair.objects, "chain");
        format!("! the kernel differs from what was programmed: {chains} to repair")
    }
}
