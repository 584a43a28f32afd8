//! Interprets the rules of one family, for traces and explanations.

use std::collections::BTreeSet;

use backend::{
    Backend, Change as _, Found, Inspect, MarkOwner, PacketPath, Piece, PieceState, Rendered,
    describe_repair,
};
use dataplane::{Dataplane, FrontendKey, Node, Packet, Verdict};
use netlink::nf_tables::family_name;

use crate::allocation::number_of;
use crate::kernel::Ipvs;
use crate::layout::TABLE;
use crate::rules::{Figures, Rules, print_foreign};
use crate::simulate::{paths, simulate};

impl Inspect for Ipvs {
    fn exist(&self, rules: &Rules) -> bool {
        rules.exist()
    }

    fn elements(&self, rules: &Rules) -> usize {
        rules.elements()
    }

    fn simulate(&self, rules: &Rules, node: &Node, packet: &Packet) -> Verdict {
        simulate(rules, node, packet)
    }

    fn paths(&self, rules: &Rules, node: &Node, packet: &Packet) -> Vec<PacketPath> {
        paths(rules, node, packet)
    }

    /// Renders only the part. What depends on other Services or on the kernel is in `observed`: the
    /// marks, and the schedulers that the kernel lacks.
    fn render_part(&self, part: &Dataplane, _desired: &Dataplane, observed: &Rules) -> Rules {
        let rules = observed.clone();
        let dataplane = Dataplane::default();
        self.render(part, &Rendered { dataplane, rules })
    }

    fn compare_frontend(&self, desired: &Rules, found: &Rules, key: &FrontendKey) -> Vec<Piece> {
        desired.compare_frontend(found, key)
    }

    /// Empty: every chain serves all frontends.
    fn compare_chains(&self, _: &Rules, _: &Rules, _: &FrontendKey) -> Vec<Piece> {
        Vec::new()
    }

    fn compare_memberships(&self, desired: &Rules, found: &Rules, _part: &Dataplane) -> Vec<Piece> {
        desired.compare_memberships(found)
    }

    /// Returns objects that differ from those programmed, leftover elements of shared sets, and
    /// virtual servers that are not programmed. An element missing there is reported with the Service
    /// that lacks it.
    fn compare_shared(&self, programmed: &Rules, found: &Rules) -> Vec<Piece> {
        let objects = programmed.compare_objects(found).into_iter();
        let objects = objects.filter(|piece| piece.state != PieceState::Present);
        let shared = programmed.compare_memberships(found).into_iter();
        let undesired = shared.filter(|piece| piece.state == PieceState::Leftover);
        let servers = programmed.compare_other_servers(found, self.family());
        objects.chain(undesired).chain(servers).collect()
    }

    fn mark_owner(&self, programmed: &Rules, found: &Rules, mark: u32) -> MarkOwner {
        let Some(number) = number_of(mark) else {
            return MarkOwner::NotSignpost;
        };
        let owner = programmed.servers.get(&number);
        let owner = owner.and_then(|server| server.owner.clone());
        match (owner, found.servers.get(&number)) {
            (Some(owner), _) => MarkOwner::ServicePort(owner),
            (None, Some(_)) => MarkOwner::Connections,
            (None, None) => MarkOwner::Unassigned,
        }
    }

    fn marks(&self, rules: &Rules, key: &FrontendKey) -> BTreeSet<u32> {
        rules.marks(key)
    }

    fn compare_mark(&self, desired: &Rules, found: &Rules, mark: u32) -> Vec<Piece> {
        let number = number_of(mark).into_iter();
        let pieces = number.flat_map(|number| desired.compare_server(found, self.family(), number));
        pieces.collect()
    }

    fn heading(&self) -> String {
        let family = family_name(self.family());
        format!("table {family} {TABLE} and its virtual servers")
    }

    fn describe(&self, found: Found<'_, Rules>) -> String {
        match found {
            Found::Unreadable(error) => {
                format!("! the table and the virtual servers could not be read: {error}")
            }
            Found::Missing => "! the table is missing in the kernel".to_owned(),
            Found::Rules { programmed, found } => {
                let held = found.without_draining(programmed);
                let repair = self.diff(&held, programmed).size();
                let repair = describe_repair(repair, held.elements());
                format!("{repair}{}", describe_foreign(&found.figures))
            }
        }
    }
}

/// Names the virtual servers of other programs; empty if there are none.
fn describe_foreign(figures: &Figures) -> String {
    match print_foreign(&figures.foreign) {
        None => String::new(),
        Some(named) => format!("; virtual servers of other programs: {named}"),
    }
}
