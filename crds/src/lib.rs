//! The API of Signpost: what people write, what a node is given, what nodes and operator report.
//!
//! Types and pure functions, no input or output. Three questions are answered here, and for everybody:
//!
//! - Is this profile right? [`check::parse`] and [`check::check`], in the words the API server uses.
//! - What is this node to do, and why? [`resolve::resolve`], the same for the operator and for an agent on its own.
//! - What does this condition want of me? [`condition::reason`].
//!
//! ```text
//!  ProxyProfile.spec --check--> FieldError
//!        |  (all of them, and a node's labels)
//!     resolve --> Resolution { effective: NodeProxy.spec, winner, reason, candidates }
//!                                  |  operator stamps, agent reads
//!                         NodeProxy.status  (agent)  -->  ProxyProfile.status  (operator)
//! ```
//!
//! # Where kube-proxy's configuration went
//!
//! Names are those of `KubeProxyConfiguration` where it has one. These moved:
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
pub mod honoured;
pub mod int_or_percent;
pub mod manifest;
pub mod node_proxy;
pub mod profile;
pub mod resolve;
mod rule;
mod section;
pub mod span;

pub use check::{FieldError, check as check_spec, parse as parse_profile};
pub use effective::{EffectiveConfig, hash::ConfigHash};
pub use node_proxy::{NodeProxy, NodeProxySpec, NodeProxyStatus};
pub use profile::{ProxyProfile, ProxyProfileSpec, status::ProxyProfileStatus};
pub use resolve::{NodeFacts, Ranking, Resolution, resolve};
pub use span::Span;
