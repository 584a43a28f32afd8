//! The names of iptables' programs.

use dataplane::Family;
use xtables::Variant;

/// The program of this family and variant.
pub fn iptables_program(family: Family, variant: Variant) -> String {
    let family = match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    };
    let variant = match variant {
        Variant::NfTables => "nft",
        Variant::Legacy => "legacy",
    };
    format!("{family}-{variant}")
}
