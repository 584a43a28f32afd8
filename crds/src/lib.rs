//! The API of Signpost: the profiles that users write, the configuration of a node, and the reports
//! of agents and operator.
//!
//! Types and pure functions, no I/O:
//!
//! - Validate a profile: [`check::parse`] and [`check::check`], with the messages of the API
//!   server.
//! - Find the configuration of a node, and the reason for it: [`resolve::resolve`], the same for
//!   the operator and for an agent without an operator.
//! - Find out what to do about a condition: [`condition::reason`].
//! - Find out on which nodes a DaemonSet runs its Pods: [`placement::Placement`].
//! - Find out what starts kube-proxy on a node again: [`starter::Starters`].
//! - Find out whether a takeover gives a port of a node from a Pod to a Service or back:
//!   [`host_ports::Change`].
//!
//! ```text
//!  ProxyProfile.spec --check--> FieldError
//!        |  (all of them, and a node's labels)
//!     resolve --> Resolution { effective: NodeProxy.spec, winner, reason, candidates }
//!                                  |  operator writes, agent reads
//!                         NodeProxy.status  (agent)  -->  ProxyProfile.status  (operator)
//! ```
//!
//! # Differences from kube-proxy's configuration
//!
//! Names are those of `KubeProxyConfiguration` where it has one. These differ:
//!
//! | there | here |
//! |---|---|
//! | `{iptables,ipvs,nftables}.syncPeriod`, `.minSyncPeriod` | `syncPeriod`, `minSyncPeriod` |
//! | `{iptables,nftables}.masqueradeAll`, `.masqueradeBit` | `masquerade.all`, `masquerade.markBit` |
//! | `ipvs.scheduler` | `loadBalancer.scheduler` |
//! | `nodePortAddresses` | `nodePorts.addresses`; its word `localhost` is `nodePorts.localhost` |
//! | `detectLocalMode`, `clusterCIDR` | `detectLocal.mode`, `detectLocal.clusterCIDRs` |
//! | `featureGates.AllowServiceExternalIPs` | `allowServiceExternalIPs` |
//! | `logging.options` | absent: a log line has one form for each format |
//! | `hostnameOverride`, `clientConnection.kubeconfig` | flags of the agent: needed before any profile can be read |
//! | `winkernel`, `windowsRunAsService` | absent: Windows |
//! | `portRange` | absent: kube-proxy does not read it either |

pub mod address;
pub mod check;
pub mod condition;
pub mod effective;
pub mod event;
pub mod host_ports;
pub mod int_or_percent;
pub mod interface_pattern;
pub mod manifest;
pub mod node_proxy;
pub mod placement;
pub mod profile;
pub mod readable;
pub mod reference;
pub mod resolve;
mod rule;
mod section;
pub mod span;
pub mod starter;
pub mod unsupported;

pub use check::{FieldError, check as check_spec, parse as parse_profile};
pub use effective::{EffectiveConfig, hash::ConfigHash};
pub use node_proxy::{NodeProxy, NodeProxySpec, NodeProxyStatus};
pub use profile::{ProxyProfile, ProxyProfileSpec, status::ProxyProfileStatus};
pub use resolve::{NodeFacts, Ranking, Resolution, resolve};
pub use span::Span;
