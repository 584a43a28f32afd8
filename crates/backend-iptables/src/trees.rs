//! The trees that packets are led through: two in table nat that redirect, one that masquerades,
//! and in table filter those that refuse and let in.

use dataplane::{Family, FrontendKey};
use xtables::{Rule, TableName, Target};

use crate::key::{Key, Shape};
use crate::tree::Tree;

/// Which tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TreeName {
    /// Cluster, external and load-balancer IPs: where connections are sent.
    Services,
    /// Node ports: where connections are sent.
    NodePorts,
    /// Endpoints of this node, by what they are sent: masqueraded when they sent it themselves.
    Hairpins,
    /// Cluster IPs outside of all known ranges: masqueraded where they are the source.
    Sources,
    /// Cluster, external and load-balancer IPs that refuse.
    Refusals,
    /// Node ports that refuse.
    NodePortRefusals,
    /// Cluster IPs: refuse what is still addressed to them.
    ClusterIps,
    /// Health-check node ports: let in.
    HealthChecks,
}

/// All of them, for one family.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trees(Option<[Tree; TreeName::ALL.len()]>);

/// Where a frontend is in the trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) key: Key,
    pub(crate) shape: Shape,
    /// Where it is sent on, if it is.
    pub(crate) dispatch: TreeName,
    /// Where it is refused, if it is.
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

    /// What the names of its chains begin with, behind what all names do.
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

    /// The key that a rule of the tree asks for; `None` where it asks for something else.
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
    /// Without keys.
    pub(crate) fn new(family: Family) -> Trees {
        Trees(Some(TreeName::ALL.map(|name| name.new_tree(family))))
    }

    /// Whether these are of rules that were rendered, not read.
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

// === impl Place ===

impl Place {
    pub(crate) fn of(frontend: &FrontendKey) -> Place {
        match *frontend {
            FrontendKey::Address {
                address,
                protocol,
                port,
            } => Place {
                key: Key::address(address).with_port(protocol, port),
                shape: Shape {
                    address: Some(frontend.family()),
                },
                dispatch: TreeName::Services,
                refusals: TreeName::Refusals,
            },
            FrontendKey::NodePort { protocol, port, .. } => Place {
                key: Key::port(protocol, port),
                shape: Shape { address: None },
                dispatch: TreeName::NodePorts,
                refusals: TreeName::NodePortRefusals,
            },
        }
    }

    /// A rule that asks for it and nothing else.
    pub(crate) fn rule(&self, target: Target) -> Rule {
        self.shape.criteria(&self.key).rule(target)
    }
}
