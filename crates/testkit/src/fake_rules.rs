//! The fake kernel's rules and changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use backend::{Change, Size};
use dataplane::{
    Config, Dataplane, Family, Frontend, FrontendKey, Hairpin, Node, ServiceKey, Target,
};

/// One family of a [`Dataplane`], unchanged: every programmed frontend with its Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FakeRules {
    /// The single shared object; `None` in a kernel that was never written.
    pub base: Option<FakeBase>,
    /// The frontends, by key.
    pub frontends: BTreeMap<FrontendKey, Arc<Frontend>>,
    /// The cluster IPs.
    pub cluster_ips: BTreeSet<IpAddr>,
    /// The endpoints that could receive their own packets.
    pub hairpins: BTreeSet<Hairpin>,
}

/// The settings that all Services share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeBase {
    /// The node.
    pub node: Arc<Node>,
    /// Its configuration.
    pub config: Arc<Config>,
}

/// One step, which the fake kernel applies as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FakeOperation {
    /// Sets the shared settings.
    SetBase(FakeBase),
    /// Removes them.
    RemoveBase,
    /// Adds or replaces a frontend.
    SetFrontend(FrontendKey, Arc<Frontend>),
    /// Removes a frontend.
    RemoveFrontend(FrontendKey),
    /// Adds a cluster IP.
    AddClusterIp(IpAddr),
    /// Removes a cluster IP.
    RemoveClusterIp(IpAddr),
    /// Adds a hairpin.
    AddHairpin(Hairpin),
    /// Removes a hairpin.
    RemoveHairpin(Hairpin),
}

/// Steps, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FakeChange(pub Vec<FakeOperation>);

// === impl FakeRules ===

impl FakeRules {
    /// The rules of one family of `dataplane`.
    pub fn render(dataplane: &Dataplane, family: Family) -> FakeRules {
        FakeRules {
            base: Some(FakeBase {
                node: Arc::clone(dataplane.node()),
                config: Arc::clone(dataplane.config()),
            }),
            frontends: dataplane
                .frontends()
                .iter()
                .filter(|(key, _)| key.family() == family)
                .map(|(key, claims)| (*key, Arc::clone(claims.winner().1)))
                .collect(),
            cluster_ips: dataplane
                .cluster_ips()
                .iter()
                .map(|(address, _)| *address)
                .filter(|address| Family::of(*address) == family)
                .collect(),
            hairpins: dataplane
                .hairpins()
                .iter()
                .map(|(hairpin, _)| *hairpin)
                .filter(|hairpin| Family::of(hairpin.address) == family)
                .collect(),
        }
    }

    /// Computes the steps from `self` to `desired`.
    pub fn diff(&self, desired: &FakeRules) -> FakeChange {
        let mut steps = Vec::new();
        match &desired.base {
            Some(base) if self.base.as_ref() != Some(base) => {
                steps.push(FakeOperation::SetBase(base.clone()));
            }
            _ => {}
        }
        for (key, frontend) in &desired.frontends {
            if self.frontends.get(key) != Some(frontend) {
                steps.push(FakeOperation::SetFrontend(*key, Arc::clone(frontend)));
            }
        }
        let gone = self.frontends.keys();
        steps.extend(
            gone.filter(|key| !desired.frontends.contains_key(key))
                .map(|key| FakeOperation::RemoveFrontend(*key)),
        );
        let sets = [
            (&desired.cluster_ips, &self.cluster_ips, true),
            (&self.cluster_ips, &desired.cluster_ips, false),
        ];
        for (these, not_those, added) in sets {
            steps.extend(these.difference(not_those).map(|address| match added {
                true => FakeOperation::AddClusterIp(*address),
                false => FakeOperation::RemoveClusterIp(*address),
            }));
        }
        let sets = [
            (&desired.hairpins, &self.hairpins, true),
            (&self.hairpins, &desired.hairpins, false),
        ];
        for (these, not_those, added) in sets {
            steps.extend(these.difference(not_those).map(|hairpin| match added {
                true => FakeOperation::AddHairpin(*hairpin),
                false => FakeOperation::RemoveHairpin(*hairpin),
            }));
        }
        if desired.base.is_none() && self.base.is_some() {
            steps.push(FakeOperation::RemoveBase);
        }
        FakeChange(steps)
    }

    /// The endpoints that connections to `key` are sent to, under either policy.
    pub fn targets(&self, key: &FrontendKey) -> BTreeSet<Target> {
        self.frontends
            .get(key)
            .into_iter()
            .flat_map(|frontend| frontend.cluster.iter().chain(frontend.local.iter()))
            .copied()
            .collect()
    }

    pub(crate) fn carry_out(&mut self, step: &FakeOperation) {
        match step.clone() {
            FakeOperation::SetBase(base) => self.base = Some(base),
            FakeOperation::RemoveBase => self.base = None,
            FakeOperation::SetFrontend(key, frontend) => {
                self.frontends.insert(key, frontend);
            }
            FakeOperation::RemoveFrontend(key) => {
                self.frontends.remove(&key);
            }
            FakeOperation::AddClusterIp(address) => {
                self.cluster_ips.insert(address);
            }
            FakeOperation::RemoveClusterIp(address) => {
                self.cluster_ips.remove(&address);
            }
            FakeOperation::AddHairpin(hairpin) => {
                self.hairpins.insert(hairpin);
            }
            FakeOperation::RemoveHairpin(hairpin) => {
                self.hairpins.remove(&hairpin);
            }
        }
    }
}

impl fmt::Display for FakeRules {
    /// Prints one line for each item, sorted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = FakeRules::default().diff(self);
        steps.fmt(f)
    }
}

// === impl FakeChange ===

impl FakeChange {
    /// The Services of `desired` that the change affects.
    pub fn suspects(&self, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        let mut suspects = BTreeSet::new();
        for step in &self.0 {
            match step {
                FakeOperation::SetFrontend(_, frontend) => {
                    suspects.insert(frontend.service_port.service.clone());
                }
                FakeOperation::AddClusterIp(address) => {
                    let claims = desired.cluster_ips().get(address);
                    suspects.extend(claims.map(|claims| claims.winner().0.clone()));
                }
                FakeOperation::AddHairpin(hairpin) => {
                    let services = desired.services().iter();
                    let with_it = services.filter(|(_, rules)| rules.hairpins.contains(hairpin));
                    suspects.extend(with_it.map(|(service, _)| service.clone()).min());
                }
                FakeOperation::SetBase(_)
                | FakeOperation::RemoveBase
                | FakeOperation::RemoveFrontend(_)
                | FakeOperation::RemoveClusterIp(_)
                | FakeOperation::RemoveHairpin(_) => {}
            }
        }
        suspects.retain(|service| desired.services().get(service).is_some());
        suspects
    }
}

impl Change for FakeChange {
    fn size(&self) -> Size {
        let is_object = |step: &&FakeOperation| {
            matches!(step, FakeOperation::SetBase(_) | FakeOperation::RemoveBase)
        };
        let objects = self.0.iter().filter(is_object).count();
        Size {
            elements: self.0.len() - objects,
            objects,
        }
    }
}

impl fmt::Display for FakeChange {
    /// Prints one step per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.0 {
            match step {
                FakeOperation::SetBase(base) => writeln!(f, "set base of {}", base.node.name)?,
                FakeOperation::RemoveBase => writeln!(f, "remove base")?,
                FakeOperation::SetFrontend(key, frontend) => {
                    write!(f, "set {key} of {}:", frontend.service_port)?;
                    for target in frontend.cluster.iter().chain(frontend.local.iter()) {
                        write!(f, " {target}")?;
                    }
                    writeln!(f)?;
                }
                FakeOperation::RemoveFrontend(key) => writeln!(f, "remove {key}")?,
                FakeOperation::AddClusterIp(address) => writeln!(f, "add cluster IP {address}")?,
                FakeOperation::RemoveClusterIp(address) => {
                    writeln!(f, "remove cluster IP {address}")?;
                }
                FakeOperation::AddHairpin(hairpin) => {
                    writeln!(f, "add hairpin {} {}", hairpin.address, hairpin.port)?;
                }
                FakeOperation::RemoveHairpin(hairpin) => {
                    writeln!(f, "remove hairpin {} {}", hairpin.address, hairpin.port)?;
                }
            }
        }
        Ok(())
    }
}
