//! Computes the change from some rules to others.
//!
//! The two mechanisms have no common transaction: a target of packets must exist before packets are
//! sent to it, and may be removed only when none are. So the routing rule comes first. Then virtual
//! servers are added or changed, each with all its destinations. Then come the table's
//! transactions, then virtual servers are removed, and the routing rule is removed last.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use backend::Size;
use dataplane::{Family, FrontendKey, ServiceKey};
use netlink::ipvs::{Operation, SchedulerName, VirtualServerKey};
use netlink::nf_tables::{self, Transaction};
use netlink::route::Presence;
use nftables_model::parse_frontend;

use crate::idle::IdleTimeouts;
use crate::layout::{DELIVERY, MARKS, SetName};
use crate::rules::Rules;
use crate::table_diff;

/// Steps in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Change {
    pub(crate) steps: Vec<Step>,
    services: BTreeSet<ServiceKey>,
}

/// A part of a change that one of the mechanisms applies.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Operations on virtual servers, each of which is applied separately, in order.
    Servers(Vec<Operation>),
    /// The routing rule that brings marked packets to IPVS: [`Presence::Whole`] adds what is
    /// missing, [`Presence::Absent`] removes what exists.
    Delivery(Presence),
    /// How long IPVS remembers idle connections of all programs. Times that are not set stay.
    Timeouts(IdleTimeouts),
    /// A transaction on the table, which takes effect as a whole or not at all.
    Table(Transaction),
}

/// Operations on virtual servers.
#[derive(Default)]
struct Servers {
    /// Additions of virtual servers and changes to existing ones. They can come first: a new
    /// frontend then finds no destination that is about to be removed.
    first: Vec<Operation>,
    /// Removals of virtual servers that nothing leads to any more.
    last: Vec<Operation>,
    /// The Services of these virtual servers.
    services: BTreeSet<ServiceKey>,
}

pub(crate) fn diff(family: Family, observed: &Rules, desired: &Rules) -> Change {
    let servers = Servers::between(family, observed, desired);
    let table = table_diff::diff(family, &observed.table, &desired.table);
    let operations = |operations: Vec<Operation>| {
        let some = (!operations.is_empty()).then_some(operations);
        some.map(Step::Servers)
    };
    let delivery = (observed.delivery != desired.delivery).then_some(desired.delivery);
    let delivery = |going: bool| {
        let step = delivery.filter(|presence| (*presence == Presence::Absent) == going);
        step.map(Step::Delivery)
    };
    let timeouts = desired.idle.is_more_than(&observed.idle);
    let timeouts = timeouts.then_some(Step::Timeouts(desired.idle));
    let steps = timeouts.into_iter().chain(delivery(false));
    Change {
        steps: steps
            .chain(operations(servers.first))
            .chain(table.into_iter().map(Step::Table))
            .chain(operations(servers.last))
            .chain(delivery(true))
            .collect(),
        services: servers.services,
    }
}

// === impl Servers ===

impl Servers {
    fn between(family: Family, observed: &Rules, desired: &Rules) -> Servers {
        let mut servers = Servers::default();
        let mut differences = observed.servers.differences(&desired.servers);
        differences.sort_by_key(|difference| *difference.key);
        for difference in differences {
            let Some(mark) = MARKS.mark(*difference.key) else {
                continue;
            };
            let key = VirtualServerKey { family, mark };
            let owners = [difference.before, difference.after].into_iter().flatten();
            servers
                .services
                .extend(owners.filter_map(|server| server.owner.clone()));
            let Some(after) = difference.after else {
                servers.last.push(Operation::RemoveVirtualServer { key });
                continue;
            };
            let server = after.server.clone();
            match difference.before {
                None => servers
                    .first
                    .push(Operation::AddVirtualServer { key, server }),
                Some(before) if before.server != after.server => {
                    servers
                        .first
                        .push(Operation::SetVirtualServer { key, server });
                }
                Some(_) => {}
            }
            let nothing = BTreeMap::new();
            let before = difference.before.map_or(&nothing, |b| &b.destinations);
            // New destinations are added before old ones stop receiving connections.
            let mut changed = Vec::new();
            for (address, destination) in &after.destinations {
                let (address, destination) = (*address, *destination);
                match before.get(&address) {
                    None => servers.first.push(Operation::AddDestination {
                        key,
                        address,
                        destination,
                    }),
                    Some(old) if *old != destination => changed.push(Operation::SetDestination {
                        key,
                        address,
                        destination,
                    }),
                    Some(_) => {}
                }
            }
            servers.first.extend(changed);
            let gone = before
                .keys()
                .filter(|address| !after.destinations.contains_key(address));
            let gone = gone.map(|address| Operation::RemoveDestination {
                key,
                address: *address,
            });
            servers.first.extend(gone);
        }
        servers
    }
}

// === impl Change ===

impl Change {
    /// The steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether it begins to bring packets to IPVS.
    pub(crate) fn begins(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step, Step::Delivery(Presence::Partial | Presence::Whole)))
    }

    /// Whether it stops doing so.
    pub(crate) fn ends(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step, Step::Delivery(Presence::Absent)))
    }

    /// The frontends whose elements are added or removed. The cost is proportional to the change.
    pub(crate) fn frontends(&self, family: Family) -> BTreeSet<FrontendKey> {
        let mut frontends = BTreeSet::new();
        let tables = self.steps.iter().filter_map(|step| match step {
            Step::Table(transaction) => Some(transaction),
            Step::Servers(_) | Step::Delivery(_) | Step::Timeouts(_) => None,
        });
        for operation in tables.flat_map(|transaction| &transaction.operations) {
            let (set, keys): (_, Vec<_>) = match operation {
                nf_tables::Operation::AddElements { set, elements } => {
                    (set, elements.iter().map(|(key, _)| key).collect())
                }
                nf_tables::Operation::DeleteElements { set, keys } => (set, keys.iter().collect()),
                _ => continue,
            };
            if let Some(fields) = SetName::parse(&set.name).and_then(SetName::fields) {
                let keys = keys.into_iter();
                frontends
                    .extend(keys.filter_map(|key| parse_frontend(family, fields, key.as_slice())));
            }
        }
        frontends
    }

    /// The schedulers that its virtual servers need.
    pub(crate) fn schedulers(&self) -> BTreeSet<&SchedulerName> {
        let servers = self.steps.iter().filter_map(|step| match step {
            Step::Servers(operations) => Some(operations),
            Step::Table(_) | Step::Delivery(_) | Step::Timeouts(_) => None,
        });
        let named = servers.flatten().filter_map(|operation| match operation {
            Operation::AddVirtualServer { server, .. }
            | Operation::SetVirtualServer { server, .. } => Some(&server.scheduler),
            _ => None,
        });
        named.collect()
    }

    /// The Services whose virtual servers change, as far as known.
    pub(crate) fn services(&self) -> &BTreeSet<ServiceKey> {
        &self.services
    }
}

impl backend::Change for Change {
    fn size(&self) -> Size {
        let mut size = Size::default();
        for step in &self.steps {
            match step {
                Step::Servers(operations) => size.elements += operations.len(),
                Step::Delivery(_) | Step::Timeouts(_) => size.objects += 1,
                Step::Table(transaction) => {
                    size.elements += transaction.elements();
                    let is_element = |operation: &&nf_tables::Operation| {
                        matches!(
                            operation,
                            nf_tables::Operation::AddElements { .. }
                                | nf_tables::Operation::DeleteElements { .. }
                        )
                    };
                    let operations = transaction.operations.iter();
                    size.objects += operations.filter(|o| !is_element(o)).count();
                }
            }
        }
        size
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            match step {
                Step::Table(transaction) => transaction.fmt(f)?,
                Step::Delivery(Presence::Absent) => writeln!(f, "delete routing rule {DELIVERY}")?,
                Step::Delivery(_) => writeln!(f, "add routing rule {DELIVERY}")?,
                Step::Timeouts(timeouts) => writeln!(f, "set {timeouts}")?,
                Step::Servers(operations) => {
                    for operation in operations {
                        writeln!(f, "{operation}")?;
                    }
                }
            }
        }
        Ok(())
    }
}
