//! iptables matches and targets, which nf_tables rules can use if the kernel has nft_compat.

use std::fmt;

/// A match or target, in one of its revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension<'a> {
    /// Whether it is a match or a target.
    pub kind: ExtensionKind,
    /// Its name, as in [`Module::name`](super::Module::name).
    pub name: &'a str,
    /// The revision of its payload layout.
    pub revision: u8,
}

/// The two kinds of extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtensionKind {
    /// Matches packets: `struct xt_match`.
    Match,
    /// Acts on packets: `struct xt_target`.
    Target,
}

impl fmt::Display for Extension<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Extension {
            kind,
            name,
            revision,
        } = self;
        write!(f, "{kind} {name} (revision {revision})")
    }
}

impl fmt::Display for ExtensionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExtensionKind::Match => "match",
            ExtensionKind::Target => "target",
        })
    }
}
