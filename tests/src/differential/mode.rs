//! The mechanisms that both proxies are compared in.

use std::fmt;

use anyhow::{Result, ensure};
use xtables::Variant;

/// What both program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Tables of nf_tables.
    Nftables,
    /// Tables of iptables, in one of the kernel's two variants.
    Iptables(Variant),
}

// === impl Mode ===

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 3] = [
        Mode::Nftables,
        Mode::Iptables(Variant::NfTables),
        Mode::Iptables(Variant::Legacy),
    ];

    /// Those whose names begin with `text`: `iptables` stands for both variants.
    pub fn parse(text: &str) -> Result<Vec<Mode>> {
        let all = Mode::ALL.into_iter();
        let chosen: Vec<Mode> = all
            .filter(|mode| mode.to_string().starts_with(text))
            .collect();
        ensure!(
            !text.is_empty() && !chosen.is_empty(),
            "{text:?} is no mode: {:?} are",
            Mode::ALL.map(|mode| mode.to_string())
        );
        Ok(chosen)
    }

    /// The variant of iptables, if it is one.
    pub fn variant(self) -> Option<Variant> {
        match self {
            Mode::Nftables => None,
            Mode::Iptables(variant) => Some(variant),
        }
    }

    /// What the configurations of both call it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::Iptables(_) => "iptables",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Nftables => "nftables",
            Mode::Iptables(Variant::NfTables) => "iptables-nft",
            Mode::Iptables(Variant::Legacy) => "iptables-legacy",
        })
    }
}
