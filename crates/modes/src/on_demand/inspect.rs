//! Inspection of iptables rules: simulates packets and describes differences.

use backend::{Found, Inspect, PacketPath, Piece};
use backend_iptables::Rules;
use dataplane::{Dataplane, FrontendKey, Node, Packet, Verdict};

use super::{OpenOnDemand, VariantRules};

/// Covers the variant in use: the other one should hold no rules that packets reach.
impl Inspect for OpenOnDemand {
    fn exist(&self, rules: &VariantRules) -> bool {
        self.pure().exist(&rules.used)
    }

    fn elements(&self, rules: &VariantRules) -> usize {
        let (used, leftover) = (&rules.used, &rules.leftover);
        self.pure().elements(used) + self.pure().elements(leftover)
    }

    fn simulate(&self, rules: &VariantRules, node: &Node, packet: &Packet) -> Verdict {
        self.pure().simulate(&rules.used, node, packet)
    }

    fn paths(&self, rules: &VariantRules, node: &Node, packet: &Packet) -> Vec<PacketPath> {
        self.pure().paths(&rules.used, node, packet)
    }

    fn render_part(
        &self,
        part: &Dataplane,
        desired: &Dataplane,
        observed: &VariantRules,
    ) -> VariantRules {
        VariantRules {
            used: self.pure().render_part(part, desired, &observed.used),
            leftover: Rules::default(),
        }
    }

    fn compare_frontend(
        &self,
        desired: &VariantRules,
        found: &VariantRules,
        key: &FrontendKey,
    ) -> Vec<Piece> {
        self.pure()
            .compare_frontend(&desired.used, &found.used, key)
    }

    fn compare_chains(
        &self,
        desired: &VariantRules,
        found: &VariantRules,
        key: &FrontendKey,
    ) -> Vec<Piece> {
        let backend = self.pure();
        Inspect::compare_chains(backend, &desired.used, &found.used, key)
    }

    fn compare_memberships(
        &self,
        desired: &VariantRules,
        found: &VariantRules,
        part: &Dataplane,
    ) -> Vec<Piece> {
        let backend = self.pure();
        backend.compare_memberships(&desired.used, &found.used, part)
    }

    fn compare_shared(&self, programmed: &VariantRules, found: &VariantRules) -> Vec<Piece> {
        let backend = self.pure();
        backend.compare_shared(&programmed.used, &found.used)
    }

    fn heading(&self) -> String {
        self.pure().heading()
    }

    fn describe(&self, found: Found<'_, VariantRules>) -> String {
        self.pure().describe(match found {
            Found::Unreadable(error) => Found::Unreadable(error),
            Found::Missing => Found::Missing,
            Found::Rules { programmed, found } => Found::Rules {
                programmed: &programmed.used,
                found: &found.used,
            },
        })
    }
}
