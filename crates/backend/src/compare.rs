//! Differences between desired and observed rules, piece by piece, for users.

/// A piece of a backend's rules: as desired and as found in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// As the mechanism's own program prints it: `services { 10.96.0.10 . tcp . 80 : 2 . 0x03000002 }`,
    /// `nat chain SIGNPOST-SERVICES`.
    pub text: String,
    /// Its state.
    pub standing: Standing,
}

/// The state of a piece in the rules that were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is there as desired.
    Present,
    /// It is not there.
    Missing,
    /// It is there, but not in the desired rules.
    Leftover,
    /// Something else is in its place.
    Different {
        /// What was found: an element, or the rules of a chain.
        found: Vec<String>,
    },
}

// === impl Piece ===

impl Piece {
    /// The piece that prints as `wanted` in desired rules and as `found` in the kernel; `None` if it is in neither.
    pub fn compare(wanted: Option<&String>, found: Option<&String>) -> Option<Piece> {
        let standing = match (wanted, found) {
            (Some(wanted), Some(found)) if wanted == found => Standing::Present,
            (Some(_), Some(found)) => Standing::Different {
                found: vec![found.clone()],
            },
            (Some(_), None) => Standing::Missing,
            (None, Some(_)) => Standing::Leftover,
            (None, None) => return None,
        };
        let text = wanted.or(found).cloned()?;
        Some(Piece { text, standing })
    }
}
