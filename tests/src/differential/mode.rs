//! The modes in which the proxies are compared.

use std::fmt;

use anyhow::{Result, ensure};
use xtables::Variant;

/// The mode of both proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// nftables.
    Nftables,
    /// iptables, in one of its two variants.
    Iptables(Variant),
    /// IPVS, with iptables beside it for kube-proxy.
    Ipvs,
}

// === impl Mode ===

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 4] = [
        Mode::Nftables,
        Mode::Iptables(Variant::NfTables),
        Mode::Iptables(Variant::Legacy),
        Mode::Ipvs,
    ];

    /// Returns the modes whose names start with `text`: `iptables` means both variants.
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

    /// Returns the variant of iptables, if the mode is iptables.
    pub fn variant(self) -> Option<Variant> {
        match self {
            Mode::Nftables | Mode::Ipvs => None,
            Mode::Iptables(variant) => Some(variant),
        }
    }

    /// Returns the name in both proxies' configurations.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::Iptables(_) => "iptables",
            Mode::Ipvs => "ipvs",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Nftables => "nftables",
            Mode::Iptables(Variant::NfTables) => "iptables-nft",
            Mode::Iptables(Variant::Legacy) => "iptables-legacy",
            Mode::Ipvs => "ipvs",
        })
    }
}
