//! Differences between desired and observed rules, as a list of pieces for users.

/// A piece of a backend's rules, as desired and as found in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The piece in the notation of the mode's own tool:
    /// `services { 10.96.0.10 . tcp . 80 : 2 . 0x03000002 }`, `nat chain SIGNPOST-SERVICES`.
    pub text: String,
    /// Whether it exists, and as desired.
    pub state: PieceState,
}

/// The state of a piece in the kernel's rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PieceState {
    /// It exists as desired.
    Present,
    /// It is desired but does not exist.
    Missing,
    /// It exists but is not desired.
    Leftover,
    /// It is no longer desired, and stays until its connections have ended.
    Draining,
    /// The kernel holds something else in its place.
    Different {
        /// The element that was found, or the rules of the chain.
        found: Vec<String>,
    },
}

// === impl Piece ===

impl Piece {
    /// Compares the text of a piece in the desired rules with that in the kernel. Returns `None` if
    /// neither has it.
    pub fn compare(desired: Option<&String>, found: Option<&String>) -> Option<Piece> {
        let state = match (desired, found) {
            (Some(desired), Some(found)) if desired == found => PieceState::Present,
            (Some(_), Some(found)) => PieceState::Different {
                found: vec![found.clone()],
            },
            (Some(_), None) => PieceState::Missing,
            (None, Some(_)) => PieceState::Leftover,
            (None, None) => return None,
        };
        let text = desired.or(found).cloned()?;
        Some(Piece { text, state })
    }
}
