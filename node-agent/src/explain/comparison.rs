//! The desired state of one Service beside the observed one, in the notation of the active
//! mechanism. Pure.

use backend::{AnyBackend, AnyRules, Piece, Standing as Found};
use dataplane::{Dataplane, Family, FrontendKey};

use super::Evidence;
use super::answer::{PieceAnswer, PieceStanding};

/// The desired state of some Services in one family, and what was found.
#[derive(Debug)]
pub(super) struct Comparison {
    backend: AnyBackend,
    /// These Services.
    part: Dataplane,
    desired: AnyRules,
    /// `None`: no kernel was read.
    found: Option<AnyRules>,
}

// === impl Comparison ===

impl Comparison {
    /// What `part` renders to in `family`, in the arrangement of the observed rules, beside what was found.
    pub(super) fn new(family: Family, part: &Dataplane, evidence: &Evidence<'_>) -> Comparison {
        let (backend, mechanism) = (evidence.backend(family), evidence.mechanism(family));
        let believed = evidence.believed.get(&family);
        let believed = believed.map(|held| held.of(mechanism)).unwrap_or_default();
        let found = evidence.kernel.held(family);
        Comparison {
            desired: backend.render_part(part, evidence.dataplane, &believed),
            backend,
            part: part.clone(),
            found: found.map(|held| held.of(mechanism)),
        }
    }

    /// The elements or rules of one frontend.
    pub(super) fn elements(&self, key: &FrontendKey) -> Vec<PieceAnswer> {
        self.answer(|desired, found| self.backend.compare_frontend(desired, found, key))
    }

    /// The chains that only packets to one frontend traverse.
    pub(super) fn chains(&self, key: &FrontendKey) -> Vec<PieceAnswer> {
        self.answer(|desired, found| self.backend.compare_chains(desired, found, key))
    }

    /// Cluster IPs and endpoints of this node, in the sets or among the rules of those.
    pub(super) fn memberships(&self) -> Vec<PieceAnswer> {
        self.answer(|desired, found| self.backend.compare_memberships(desired, found, &self.part))
    }

    /// The pieces that `compare` names, given the desired rules and those found.
    fn answer(&self, compare: impl FnOnce(&AnyRules, &AnyRules) -> Vec<Piece>) -> Vec<PieceAnswer> {
        let Some(found) = &self.found else {
            let unverified = |piece: Piece| PieceAnswer {
                piece: piece.text,
                standing: PieceStanding::Unverified,
                found: Vec::new(),
            };
            let pieces = compare(&self.desired, &self.desired).into_iter();
            return pieces.map(unverified).collect();
        };
        let pieces = compare(&self.desired, found).into_iter();
        pieces.map(verified).collect()
    }
}

/// A piece that was looked for in the kernel.
pub(super) fn verified(piece: Piece) -> PieceAnswer {
    let (standing, found) = match piece.standing {
        Found::Present => (PieceStanding::Present, Vec::new()),
        Found::Missing => (PieceStanding::Missing, Vec::new()),
        Found::Leftover => (PieceStanding::Leftover, Vec::new()),
        Found::Different { found } => (PieceStanding::Different, found),
    };
    PieceAnswer {
        piece: piece.text,
        standing,
        found,
    }
}
