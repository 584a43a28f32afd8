//! iptables tables without the iptables programs: rules as values, for both kernel variants.
//!
//! Linux has two implementations of iptables. The legacy variant (`ip_tables`, `ip6_tables`) has
//! separate tables, one blob each, which a process reads and replaces whole through socket options.
//! The nf_tables variant keeps the same matches and targets inside nf_tables rules (`nft_compat`),
//! which a process changes one by one over netlink. Signpost runs no program for either: an
//! iptables program as old as the image, or as new as the host, misreads the rules of a different
//! version; the time that `iptables-nft` takes grows with the square of the number of rules; and a
//! process for each change is what makes kube-proxy slow.
//!
//! ```text
//!                                   +-- extension: payloads of matches and targets --+
//! Rule --[TableChange]--> Tables ---+                                                 +--> kernel
//!                                   +-- legacy: blob, lock | nf_tables: transaction --+
//! ```
//!
//! Signpost identifies its rules by the names of their chains. It preserves everything else in a
//! table as it is, with its counters.
//!
//! `unsafe` is in one place, `legacy/socket_option`: the kernel takes a legacy table as the value
//! of a socket option that holds a pointer to the buffer for the old counters, and no crate offers
//! that. All code that builds and reads these values is plain byte handling.

mod change;
mod detect;
mod error;
mod extension;
mod foreign;
#[cfg(test)]
mod generate;
mod legacy;
mod nf_tables;
mod rule;
mod tables;

pub use change::{OwnRules, TableChange};
pub use detect::{
    Choice, DetectError, Found, OwnChains, Presence, Split, VariantDetector, VariantReason,
    observe_variants,
};
pub use error::{CommitError, Fault, ObserveError, OpenError};
pub use foreign::{ChainKind, CountedRule, ListedChain, Policy};
pub use rule::{
    AddressMatch, BuiltIn, Family, InterfaceMatch, Match, PacketEnd, Protocol, Recent, Rule,
    States, TableName, Target,
};
pub use tables::{Listening, Tables, Variant};
