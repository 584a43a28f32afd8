//! Matches and targets of iptables, which rules of nf_tables may use where the kernel has nft_compat.

use std::fmt;

/// One of them, in one of its layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension<'a> {
    /// Which of the two.
    pub kind: ExtensionKind,
    /// Its name, as in [`Module::name`](super::Module::name).
    pub name: &'a str,
    /// Which of its layouts.
    pub revision: u8,
}

/// What rules use it for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtensionKind {
    /// It asks something of a packet: `struct xt_match`.
    Match,
    /// It does something to a packet: `struct xt_target`.
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
