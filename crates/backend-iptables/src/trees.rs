//! The trees: in table nat two that redirect and two that masquerade, and in table filter those
//! that refuse and accept.

use dataplane::{Family, FrontendKey};
use xtables::{Rule, TableName, Target};

use crate::key::{Key, Shape};
use crate::tree::Tree;

/// The name of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TreeName {
    /// Redirects connections to cluster, external and load-balancer IPs.
    Services,
    /// Redirects connections to node ports.
    NodePorts,
    /// Endpoints of this node: masquerades connections of an endpoint to itself.
    Hairpins,
    /// Cluster IPs outside of all known ranges: masquerades connections from them.
    Sources,
    /// Refuses packets to cluster, external and load-balancer IPs.
    Refusals,
    /// Refuses packets to node ports.
    NodePortRefusals,
    /// Refuses packets that are still addressed to cluster IPs.
    ClusterIps,
    /// Accepts packets to health-check node ports.
    HealthChecks,
}

/// All trees of one family.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trees(Option<[Tree; TreeName::ALL.len()]>);

/// The place of a frontend in the trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrontendTrees {
    pub(crate) key: Key,
    pub(crate) shape: Shape,
    /// The tree that redirects it, if it is served.
    pub(crate) dispatch: TreeName,
    /// The tree that refuses it, if it is refused.
    pub(crate) refusals: TreeName,
}

// === impl TreeName ===

impl TreeName {
    pub(crate) const ALL: [TreeName; 8] = [
        TreeName::Services,
        TreeName::NodePorts,
        TreeName::Hairpins,
        TreeName::Sources,
        TreeName::Refusals,
        TreeName::NodePortRefusals,
        TreeName::ClusterIps,
        TreeName::HealthChecks,
    ];

    pub(crate) fn table(self) -> TableName {
        match self {
            TreeName::Services | TreeName::NodePorts | TreeName::Hairpins | TreeName::Sources => {
                TableName::Nat
            }
            TreeName::Refusals
            | TreeName::NodePortRefusals
            | TreeName::ClusterIps
            | TreeName::HealthChecks => TableName::Filter,
        }
    }

    /// The prefix of the names of its chains, after the common prefix.
    pub(crate) fn tag(self) -> &'static str {
        match self {
            TreeName::Services => "S-",
            TreeName::NodePorts => "P-",
            TreeName::Hairpins => "H-",
            TreeName::Sources => "F-",
            TreeName::Refusals => "R-",
            TreeName::NodePortRefusals => "RP-",
            TreeName::ClusterIps => "C-",
            TreeName::HealthChecks => "HC-",
        }
    }

    /// The key that a rule of the tree matches; `None` for any other match.
    pub(crate) fn key_of(self, rule: &Rule) -> Option<Key> {
        let (protocol, port) = crate::key::port_asked(rule)?;
        match self {
            TreeName::NodePorts | TreeName::NodePortRefusals | TreeName::HealthChecks => {
                Some(Key::port(protocol, port))
            }
            TreeName::Services | TreeName::Refusals => {
                let range = rule.destination.as_ref()?.range;
                let is_one = range.prefix_len() == range.max_prefix_len();
                is_one.then(|| Key::address(range.addr()).with_port(protocol, port))
            }
            TreeName::Hairpins | TreeName::Sources | TreeName::ClusterIps => None,
        }
    }

    fn new_tree(self, family: Family) -> Tree {
        let by_address = Shape {
            address: Some(family),
        };
        match self {
            TreeName::NodePorts | TreeName::NodePortRefusals | TreeName::HealthChecks => {
                Tree::new(self.tag(), Shape { address: None })
            }
            TreeName::Sources => Tree::of_sources(self.tag(), by_address),
            TreeName::Services | TreeName::Hairpins | TreeName::Refusals | TreeName::ClusterIps => {
                Tree::new(self.tag(), by_address)
            }
        }
    }
}

// === impl Trees ===

impl Trees {
    /// Empty trees.
    pub(crate) fn new(family: Family) -> Trees {
        Trees(Some(TreeName::ALL.map(|name| name.new_tree(family))))
    }

    /// Whether these belong to rules that were rendered rather than read.
    pub(crate) fn are_known(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn get(&self, name: TreeName) -> Option<&Tree> {
        self.0.as_ref().map(|trees| &trees[name as usize])
    }

    pub(crate) fn get_mut(&mut self, name: TreeName) -> Option<&mut Tree> {
        self.0.as_mut().map(|trees| &mut trees[name as usize])
    }
}

// === impl FrontendTrees ===

impl FrontendTrees {
    pub(crate) fn of(frontend: &FrontendKey) -> FrontendTrees {
        match *frontend {
            FrontendKey::Address {
                address,
                protocol,
                port,
            } => FrontendTrees {
                key: Key::address(address).with_port(protocol, port),
                shape: Shape {
                    address: Some(frontend.family()),
                },
                dispatch: TreeName::Services,
                refusals: TreeName::Refusals,
            },
            FrontendKey::NodePort { protocol, port, .. } => FrontendTrees {
                key: Key::port(protocol, port),
                shape: Shape { address: None },
                dispatch: TreeName::NodePorts,
                refusals: TreeName::NodePortRefusals,
            },
        }
    }

    /// A rule that matches exactly this frontend.
    pub(crate) fn rule(&self, target: Target) -> Rule {
        self.shape.criteria(&self.key).rule(target)
    }
}
