//! Interprets the tables of one family, for traces and explanations.

use backend::{
    Backend, Change as _, Found, Inspect, PacketPath, Piece, PieceState, Rendered, describe_repair,
};
use dataplane::{Dataplane, FrontendKey, Node, Packet, Verdict};

use netlink::nf_tables::family_name;

use crate::kernel::Nftables;
use crate::layout::TABLE;
use crate::simulate::{paths, simulate};
use crate::table::Table;

impl Inspect for Nftables {
    fn exist(&self, rules: &Table) -> bool {
        rules.exists()
    }

    fn elements(&self, rules: &Table) -> usize {
        rules.elements()
    }

    fn simulate(&self, rules: &Table, node: &Node, packet: &Packet) -> Verdict {
        simulate(rules, node, packet)
    }

    fn paths(&self, rules: &Table, node: &Node, packet: &Packet) -> Vec<PacketPath> {
        paths(rules, node, packet)
    }

    /// Renders only the part: no element depends on other Services except for its slot, which
    /// `observed` has.
    fn render_part(&self, part: &Dataplane, _desired: &Dataplane, observed: &Table) -> Table {
        let from = Rendered {
            dataplane: Dataplane::default(),
            rules: observed.clone(),
        };
        self.render(part, &from)
    }

    fn compare_frontend(&self, desired: &Table, found: &Table, key: &FrontendKey) -> Vec<Piece> {
        desired.compare_elements(found, key)
    }

    fn compare_chains(&self, desired: &Table, found: &Table, key: &FrontendKey) -> Vec<Piece> {
        let mut chains = desired.compare_chains(found);
        let names = desired.chains_of(key);
        let named = names.iter().filter_map(|name| chains.remove(name));
        named.collect()
    }

    fn compare_memberships(&self, desired: &Table, found: &Table, _part: &Dataplane) -> Vec<Piece> {
        desired.compare_memberships(found)
    }

    /// Returns chains and sets that differ from those programmed, and leftover elements in sets
    /// that all Services share. An element missing there is reported with the Service that lacks
    /// it.
    fn compare_shared(&self, programmed: &Table, found: &Table) -> Vec<Piece> {
        let chains = programmed.compare_chains(found).into_values();
        let shared = programmed.compare_memberships(found).into_iter();
        chains
            .chain(programmed.compare_sets(found))
            .chain(programmed.compare_numbers(found))
            .filter(|piece| piece.state != PieceState::Present)
            .chain(shared.filter(|piece| piece.state == PieceState::Leftover))
            .collect()
    }

    fn heading(&self) -> String {
        format!("table {} {TABLE}", family_name(self.family()))
    }

    fn describe(&self, found: Found<'_, Table>) -> String {
        let (programmed, found) = match found {
            Found::Unreadable(error) => return format!("! the table could not be read: {error}"),
            Found::Missing => return "! the table is missing in the kernel".to_owned(),
            Found::Rules { programmed, found } => (programmed, found),
        };
        describe_repair(self.diff(found, programmed).size(), found.elements())
    }
}
