//! Where what the kernel holds differs from what it should, piece by piece, for people.

/// A piece of a backend's rules, as it is wanted and as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// As the mechanism's own program prints it: `services { 10.96.0.10 . tcp . 80 : 2 . 0x03000002 }`,
    /// `nat chain SIGNPOST-SERVICES`.
    pub text: String,
    /// How it stands.
    pub standing: Standing,
}

/// How a piece that is wanted stands in what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is there as it is wanted.
    Present,
    /// It is not there.
    Missing,
    /// It is there, and nobody wants it.
    Unwanted,
    /// Something else is in its place.
    Different {
        /// The same, as it was found: an element, or the rules of a chain.
        found: Vec<String>,
    },
}
