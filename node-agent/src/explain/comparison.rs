//! What is wanted for one Service beside what the kernel was seen to hold, in the words of the
//! mechanism that carries it out. Pure.

use backend::{AnyBackend, AnyRules, Piece, Standing as Found};
use dataplane::{Dataplane, Family, FrontendKey};

use super::Evidence;
use super::answer::{PieceAnswer, PieceStanding};

/// One family of what is wanted for some Services, and of what was found.
#[derive(Debug)]
pub(super) struct Comparison {
    backend: AnyBackend,
    /// These Services.
    part: Dataplane,
    wanted: AnyRules,
    /// `None`: no kernel was read.
    found: Option<AnyRules>,
}

// === impl Comparison ===

impl Comparison {
    /// What `part` comes to in `family`, in the arrangement that is believed, beside what was found.
    pub(super) fn new(family: Family, part: &Dataplane, evidence: &Evidence<'_>) -> Comparison {
        let (backend, mechanism) = (evidence.backend(family), evidence.mechanism(family));
        let believed = evidence.believed.get(&family);
        let believed = believed.map(|held| held.of(mechanism)).unwrap_or_default();
        let found = evidence.kernel.held(family);
        Comparison {
            wanted: backend.render_part(part, evidence.dataplane, &believed),
            backend,
            part: part.clone(),
            found: found.map(|held| held.of(mechanism)),
        }
    }

    /// The elements or rules of one frontend.
    pub(super) fn elements(&self, key: &FrontendKey) -> Vec<PieceAnswer> {
        self.answer(|wanted, found| self.backend.compare_frontend(wanted, found, key))
    }

    /// The chains that packets to one frontend pass and others do not.
    pub(super) fn chains(&self, key: &FrontendKey) -> Vec<PieceAnswer> {
        self.answer(|wanted, found| self.backend.compare_chains(wanted, found, key))
    }

    /// Cluster IPs and endpoints of this node, in the sets or among the rules of those.
    pub(super) fn memberships(&self) -> Vec<PieceAnswer> {
        self.answer(|wanted, found| self.backend.compare_memberships(wanted, found, &self.part))
    }

    /// The pieces that `compare` names, given what is wanted and what was found.
    fn answer(&self, compare: impl FnOnce(&AnyRules, &AnyRules) -> Vec<Piece>) -> Vec<PieceAnswer> {
        let Some(found) = &self.found else {
            let unverified = |piece: Piece| PieceAnswer {
                piece: piece.text,
                standing: PieceStanding::Unverified,
                found: Vec::new(),
            };
            let pieces = compare(&self.wanted, &self.wanted).into_iter();
            return pieces.map(unverified).collect();
        };
        let pieces = compare(&self.wanted, found).into_iter();
        pieces.map(verified).collect()
    }
}

/// A piece that was looked for in the kernel.
pub(super) fn verified(piece: Piece) -> PieceAnswer {
    let (standing, found) = match piece.standing {
        Found::Present => (PieceStanding::Present, Vec::new()),
        Found::Missing => (PieceStanding::Missing, Vec::new()),
        Found::Unwanted => (PieceStanding::Unwanted, Vec::new()),
        Found::Different { found } => (PieceStanding::Different, found),
    };
    PieceAnswer {
        piece: piece.text,
        standing,
        found,
    }
}
