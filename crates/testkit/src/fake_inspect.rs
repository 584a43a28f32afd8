//! Interprets the fake kernel's rules: their verdicts are those of the equivalent dataplane.

use backend::{
    Backend, Change as _, Found, Inspect, PacketPath, Piece, PieceState, Rendered, count,
};
use dataplane::{Dataplane, FrontendKey, Node, Packet, ServiceKey, ServiceRules, Verdict};

use crate::{FakeBackend, FakeRules};

impl Inspect for FakeBackend {
    fn exist(&self, rules: &FakeRules) -> bool {
        *rules != FakeRules::default()
    }

    fn elements(&self, rules: &FakeRules) -> usize {
        rules.frontends.len() + rules.cluster_ips.len() + rules.hairpins.len()
    }

    fn simulate(&self, rules: &FakeRules, _node: &Node, packet: &Packet) -> Verdict {
        let Some(base) = &rules.base else {
            return Verdict::Untouched;
        };
        let mut dataplane = Dataplane::new(base.node.clone(), base.config.clone());
        let all = ServiceRules {
            service: ServiceKey::new("fake", "all"),
            frontends: rules.frontends.clone().into_iter().collect(),
            cluster_ips: rules.cluster_ips.iter().copied().collect(),
            hairpins: rules.hairpins.iter().copied().collect(),
            health_check: None,
            rejections: Vec::new(),
        };
        dataplane.set(all.into());
        dataplane.verdict(packet)
    }

    fn paths(&self, rules: &FakeRules, node: &Node, packet: &Packet) -> Vec<PacketPath> {
        let outcomes = match self.simulate(rules, node, packet) {
            Verdict::Deliver(choices) => choices
                .into_iter()
                .map(|choice| Verdict::Deliver(vec![choice]))
                .collect(),
            other => vec![other],
        };
        let way = |outcome| PacketPath {
            events: Vec::new(),
            outcome,
        };
        outcomes.into_iter().map(way).collect()
    }

    fn render_part(
        &self,
        part: &Dataplane,
        _desired: &Dataplane,
        _believed: &FakeRules,
    ) -> FakeRules {
        self.render(part, &Rendered::default())
    }

    fn compare_frontend(
        &self,
        desired: &FakeRules,
        found: &FakeRules,
        key: &FrontendKey,
    ) -> Vec<Piece> {
        let (desired, found) = (desired.frontends.get(key), found.frontends.get(key));
        let text = |targets| format!("fake {key}: {} endpoints", targets);
        let state = match (desired, found) {
            (Some(desired), Some(found)) if desired == found => PieceState::Present,
            (Some(_), Some(found)) => PieceState::Different {
                found: vec![text(found.cluster.len())],
            },
            (Some(_), None) => PieceState::Missing,
            (None, Some(_)) => PieceState::Leftover,
            (None, None) => return Vec::new(),
        };
        let targets = desired
            .or(found)
            .map_or(0, |frontend| frontend.cluster.len());
        let text = text(targets);
        vec![Piece { text, state }]
    }

    fn compare_chains(&self, _: &FakeRules, _: &FakeRules, _: &FrontendKey) -> Vec<Piece> {
        Vec::new()
    }

    fn compare_memberships(&self, _: &FakeRules, _: &FakeRules, _: &Dataplane) -> Vec<Piece> {
        Vec::new()
    }

    fn compare_shared(&self, _: &FakeRules, _: &FakeRules) -> Vec<Piece> {
        Vec::new()
    }

    fn heading(&self) -> String {
        format!("# fake {}", self.family())
    }

    fn describe(&self, found: Found<'_, FakeRules>) -> String {
        match found {
            Found::Unreadable(error) => format!("! the fake rules could not be read: {error}"),
            Found::Missing => "! the fake rules are missing in the kernel".to_owned(),
            Found::Rules { programmed, found } => {
                match self.diff(found, programmed).size().elements {
                    0 => "the kernel holds what was programmed".to_owned(),
                    number => format!("! the kernel differs: {} to repair", count(number, "piece")),
                }
            }
        }
    }
}
