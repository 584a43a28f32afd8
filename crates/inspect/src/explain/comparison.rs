//! Compares the desired state of one Service with the observed one, in the notation of the active
//! mode. Pure.

use backend::{AnyBackend, AnyRules, Piece, PieceState as Found};
use dataplane::{Dataplane, Family, FrontendKey};

use super::Evidence;
use super::answer::{PieceAnswer, PieceState};

/// The desired rules of some Services in one family, and the rules in the kernel.
#[derive(Debug)]
pub(super) struct Comparison {
    backend: AnyBackend,
    /// These Services.
    part: Dataplane,
    desired: AnyRules,
    /// `None` if no kernel was read.
    found: Option<AnyRules>,
}

// === impl Comparison ===

impl Comparison {
    /// Renders `part` for `family`, in the arrangement of the observed rules, to compare it with
    /// the kernel.
    pub(super) fn new(family: Family, part: &Dataplane, evidence: &Evidence<'_>) -> Comparison {
        let (backend, mode) = (evidence.backend(family), evidence.mode(family));
        let observed = evidence.observed.get(&family);
        let observed = observed.map(|held| held.of(mode)).unwrap_or_default();
        let found = evidence.kernel.held(family);
        Comparison {
            desired: backend.render_part(part, evidence.dataplane, &observed),
            backend,
            part: part.clone(),
            found: found.map(|held| held.of(mode)),
        }
    }

    /// Compares the elements or rules of one frontend.
    pub(super) fn elements(&self, key: &FrontendKey) -> Vec<PieceAnswer> {
        self.answer(|desired, found| self.backend.compare_frontend(desired, found, key))
    }

    /// Compares the chains that only packets to one frontend traverse.
    pub(super) fn chains(&self, key: &FrontendKey) -> Vec<PieceAnswer> {
        self.answer(|desired, found| self.backend.compare_chains(desired, found, key))
    }

    /// Compares the members of the sets, or rules, of cluster IPs and of endpoints on this node.
    pub(super) fn memberships(&self) -> Vec<PieceAnswer> {
        self.answer(|desired, found| self.backend.compare_memberships(desired, found, &self.part))
    }

    /// Converts the pieces that `compare` returns for the desired and the found rules.
    fn answer(&self, compare: impl FnOnce(&AnyRules, &AnyRules) -> Vec<Piece>) -> Vec<PieceAnswer> {
        let Some(found) = &self.found else {
            let unverified = |piece: Piece| PieceAnswer {
                piece: piece.text,
                state: PieceState::Unverified,
                found: Vec::new(),
            };
            let pieces = compare(&self.desired, &self.desired).into_iter();
            return pieces.map(unverified).collect();
        };
        let pieces = compare(&self.desired, found).into_iter();
        pieces.map(verified).collect()
    }
}

/// Converts a piece that was compared with the kernel.
pub(super) fn verified(piece: Piece) -> PieceAnswer {
    let (state, found) = match piece.state {
        Found::Present => (PieceState::Present, Vec::new()),
        Found::Missing => (PieceState::Missing, Vec::new()),
        Found::Leftover => (PieceState::Leftover, Vec::new()),
        Found::Draining => (PieceState::Draining, Vec::new()),
        Found::Different { found } => (PieceState::Different, found),
    };
    PieceAnswer {
        piece: piece.text,
        state,
        found,
    }
}
