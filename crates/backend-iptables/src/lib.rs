//! Programs Services as iptables rules in a tree.
//!
//! kube-proxy has one chain with a rule for each Service, which the first packet of each connection
//! walks through. Here the digits of a packet's destination select its Service, with at most
//! sixteen rules at each step ([`tree`]). The chains of the Service port that it finds
//! ([`service_chains`]) are named after kube-proxy's. Chain names begin with `SIGNPOST-`; comments
//! contain `namespace/name:port`.
//!
//! ```text
//! nat PREROUTING, OUTPUT -j SIGNPOST-SERVICES
//!     -d 10.96.0.0/16   -j S-10.96.0.0/16   -g S-10.96.32.0/20   -g …
//!         -d 10.96.0.10/32 -p tcp --dport 80   -g SVC-…    cluster IP
//!         -d 192.0.2.7/32 -p tcp --dport 80    -g EXT-…    external IP
//!     -m addrtype --dst-type LOCAL -j SIGNPOST-NODEPORTS   -p tcp --dport 30080 -g EXT-…
//! FW-…           source ranges
//! EXT-…          marks for masquerade, or selects endpoints on this node
//! SVC-…, SVL-…   DNAT at random
//! nat POSTROUTING -j SIGNPOST-POSTROUTING
//!                masquerades marked packets, and packets from an endpoint to itself
//! filter INPUT, FORWARD, OUTPUT
//!                refuse packets that nat did not redirect; accept health checks
//! ```
//!
//! The kernel is programmed through [`xtables`], without any iptables program, in either of its
//! variants.

mod client_lists;
mod comment;
mod compare;
mod diff;
mod fixed_chains;
mod inspect;
mod kernel;
mod key;
mod names;
mod notification_listener;
mod render;
mod replay;
mod rules;
mod service_chains;
mod simulate;
mod table_rules;
mod tree;
mod trees;

pub use compare::ChainName;
pub use diff::Change;
pub use kernel::{Iptables, Lock, open, open_with_listener, recovery};
pub use names::PREFIX;
pub use notification_listener::NotificationListener;
pub use replay::Refused;
pub use rules::Rules;
pub use simulate::{Memory, paths, simulate, simulate_next};
