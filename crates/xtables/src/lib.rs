//! Tables of iptables without iptables: rules as values, in both of the kernel's forms.
//!
//! There are two kernels behind one command. The legacy variant has tables of its own, one blob
//! each, which a process reads and replaces whole by socket options (`ip_tables`, `ip6_tables`).
//! The nf_tables variant keeps the same matches and targets inside rules of nf_tables
//! (`nft_compat`), which are changed one by one over netlink. No program is run for either: one
//! that is as old as the image or as new as the host reads the other's rules wrongly, `iptables-nft`
//! takes time that grows with the square of the rules, and a process for each change is what
//! kube-proxy is slow with.
//!
//! ```text
//!                                   +-- extension: payloads of matches and targets --+
//! Rule --[TableChange]--> Tables ---+                                                 +--> kernel
//!                                   +-- legacy: blob, lock | nf_tables: transaction --+
//! ```
//!
//! The names of chains identify Signpost's rules. Everything else in a table is carried
//! over as it is, with its counters.
//!
//! `unsafe` is in one place, `legacy/socket_option`: the kernel takes a legacy table as the value of a
//! socket option, with a pointer in it to where the old counters go, and no crate offers that. All
//! that makes and reads these values is plain handling of bytes.

mod change;
mod detect;
mod error;
mod extension;
#[cfg(test)]
mod generate;
mod legacy;
mod nf_tables;
mod rule;
mod tables;

pub use change::{Held, TableChange};
pub use detect::{
    Choice, DetectError, Found, Lookout, Ours, Presence, Split, Why, observe_variants,
};
pub use error::{CommitError, Fault, ObserveError, OpenError};
pub use rule::{
    AddressMatch, BuiltIn, Family, InterfaceMatch, Match, Protocol, Recent, Rule, States,
    TableName, Target, Which,
};
pub use tables::{Listening, Tables, Variant};
