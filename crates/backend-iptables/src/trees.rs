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

    fn new_tree(self, family: Family) -> Tree {
        let by_address = Shape {
            address: Some(family),
        };
        let by_port = Shape { address: None };
        match self {
            TreeName::Services => Tree::new("S-", by_address),
            TreeName::NodePorts => Tree::new("P-", by_port),
            TreeName::Hairpins => Tree::new("H-", by_address),
            TreeName::Sources => Tree::of_sources("F-", by_address),
            TreeName::Refusals => Tree::new("R-", by_address),
            TreeName::NodePortRefusals => Tree::new("RP-", by_port),
            TreeName::ClusterIps => Tree::new("C-", by_address),
            TreeName::HealthChecks => Tree::new("HC-", by_port),
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
