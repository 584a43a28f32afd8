//! The flowtable: packets of established connections to Services that arrive on its devices are
//! forwarded without traversing any chain, of Signpost or of another program.
//!
//! ```text
//! flowtable established { hook ingress priority 0; devices = { eth0, veth1, … } }
//! filter-forward-established     an established connection of TCP with a redirected destination:
//!                                  flow add @established
//! ```
//!
//! The chain is written after the devices have joined, and removed before they leave. When a connection is
//! added, the kernel looks for the device at which the packets of each direction arrive: if that is the
//! port of a bridge or carries a VLAN, only among the devices of the flowtable. Without it, that direction
//! traverses the rules for as long as the connection stays in the flowtable (`nft_dev_forward_path` in
//! net/netfilter/nft_flow_offload.c of Linux 6.1).

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::Protocol;
use netlink::nf_tables::{
    ChainKind, Expression, Flowtable, HookPoint, MetaKey, Operation, Operator, Register,
    Transaction,
};
use nftables_model::{
    ChainWithRules, FlowtableWithDevices, base, compare, ct_dnat, ct_established, rule,
};

use crate::layout;
use crate::table::Table;

/// The name of the flowtable.
const NAME: &str = "established";
/// The chain that adds connections to it.
const CHAIN: &str = "filter-forward-established";
/// After the chains of all other programs: what one of them drops must not be added. The highest
/// priority that the kernel names at this hook is `NF_IP_PRI_SECURITY`, 50.
const AFTER_ALL: i32 = 1_000;

/// The flowtable without devices.
fn flowtable() -> Flowtable {
    Flowtable {
        name: layout::name(NAME),
        priority: 0,
    }
}

/// The chain that adds connections of TCP. Not those of UDP: they have no end that the kernel sees, and
/// kernels before 6.4 refuse to forget one in a flowtable, so that its client would stay with an endpoint
/// that has left the Service.
fn chain() -> ChainWithRules {
    let mut expressions = vec![
        Expression::Meta {
            key: MetaKey::TransportProtocol,
            to: Register(0),
        },
        compare(Operator::Equal, &[Protocol::Tcp.number()]),
    ];
    expressions.extend(ct_established());
    expressions.extend(ct_dnat());
    expressions.push(Expression::Offload {
        flowtable: layout::name(NAME),
    });
    base(
        CHAIN,
        ChainKind::Filter,
        HookPoint::Forward,
        AFTER_ALL,
        vec![rule(expressions)],
    )
}

/// Gives `table` the flowtable with `devices`, and the chain; `None`: neither.
pub(crate) fn render(table: &mut Table, devices: Option<&BTreeSet<Arc<str>>>) {
    table.flowtables.clear();
    let Some(devices) = devices else {
        if table.chains.contains_key(CHAIN) {
            Arc::make_mut(&mut table.chains).remove(CHAIN);
        }
        return;
    };
    let flowtable = flowtable();
    let with_devices = FlowtableWithDevices {
        flowtable: Some(flowtable.clone()),
        devices: devices.clone(),
    };
    table.flowtables.insert(flowtable.name, with_devices);
    let chain = chain();
    let present = table.chains.get(CHAIN);
    if present.is_none_or(|present| **present != chain) {
        let name = Arc::clone(&chain.chain.name);
        Arc::make_mut(&mut table.chains).insert(name, Arc::new(chain));
    }
}

/// What a kernel with flowtables accepts.
pub(crate) fn probe() -> Vec<Operation> {
    let ChainWithRules { chain, rules } = chain();
    let mut operations = vec![
        Operation::AddTable,
        Operation::AddFlowtable(flowtable()),
        Operation::AddChain(chain.clone()),
    ];
    operations.extend(rules.into_iter().map(|rule| Operation::AddRule {
        chain: Arc::clone(&chain.name),
        rule,
    }));
    operations
}

/// Whether every flowtable in both is the same, without its devices.
pub(crate) fn is_same(observed: &Table, desired: &Table) -> bool {
    desired.flowtables.iter().all(|(name, desired)| {
        let observed = observed.flowtables.get(name);
        observed.is_none_or(|observed| observed.flowtable == desired.flowtable)
    })
}

/// Creates missing flowtables.
pub(crate) fn add(observed: &Table, desired: &Table, transaction: &mut Transaction) {
    let new = desired.flowtables.iter();
    let new = new.filter(|(name, _)| !observed.flowtables.contains_key(*name));
    let new = new.filter_map(|(_, new)| new.flowtable.clone());
    transaction
        .operations
        .extend(new.map(Operation::AddFlowtable));
}

/// Whether this is the chain that adds connections.
pub(crate) fn is_chain(name: &str) -> bool {
    name == CHAIN
}

/// The chain that adds connections, if it is to be written.
pub(crate) fn chains<'a>(
    observed: &Table,
    desired: &'a Table,
) -> Vec<(&'a Arc<str>, &'a Arc<ChainWithRules>)> {
    let chain = desired.chains.get_key_value(CHAIN);
    let changed = chain.filter(|(name, chain)| observed.chains.get(*name) != Some(*chain));
    changed.into_iter().collect()
}

/// Deletes flowtables that are not desired, after the chains that refer to them. Within a transaction the
/// kernel removes the one from its hook and then the other from its devices, in the order of the
/// operations (`nf_tables_commit`).
pub(crate) fn delete(observed: &Table, desired: &Table, transaction: &mut Transaction) {
    let names = observed.flowtables.keys();
    let undesired = names.filter(|name| !desired.flowtables.contains_key(*name));
    transaction
        .operations
        .extend(undesired.map(|name| Operation::DeleteFlowtable(Arc::clone(name))));
}

/// The devices to add and to remove, each by itself: any of them may cease to exist at any moment, and
/// then the kernel refuses the transaction.
pub(crate) fn devices(observed: &Table, desired: &Table) -> Vec<Operation> {
    static NONE: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut operations = Vec::new();
    for (name, desired) in &desired.flowtables {
        let Some(flowtable) = &desired.flowtable else {
            continue;
        };
        let observed = observed.flowtables.get(name);
        let observed = observed.map_or(&NONE, |observed| &observed.devices);
        let gone = observed.difference(&desired.devices);
        operations.extend(gone.map(|device| Operation::DeleteDevice {
            flowtable: flowtable.clone(),
            device: Arc::clone(device),
        }));
        let new = desired.devices.difference(observed);
        operations.extend(new.map(|device| Operation::AddDevice {
            flowtable: flowtable.clone(),
            device: Arc::clone(device),
        }));
    }
    operations
}

/// Whether this is the name of Signpost's flowtable.
pub(crate) fn is_own(name: &str) -> bool {
    name == NAME
}

/// The operations of `transaction` that change Signpost's flowtable or its devices.
pub(crate) fn changes(transaction: &Transaction) -> Vec<Operation> {
    let is_change = |operation: &&Operation| match operation {
        Operation::AddFlowtable(flowtable)
        | Operation::AddDevice { flowtable, .. }
        | Operation::DeleteDevice { flowtable, .. } => is_own(&flowtable.name),
        Operation::DeleteFlowtable(name) => is_own(name),
        Operation::DeleteTable => true,
        _ => false,
    };
    if *transaction.table != *layout::TABLE {
        return Vec::new();
    }
    let operations = transaction.operations.iter();
    operations.filter(is_change).cloned().collect()
}

/// Whether `transaction` only adds or removes a device.
pub(crate) fn is_of_device(transaction: &Transaction) -> bool {
    matches!(
        transaction.operations[..],
        [Operation::AddDevice { .. } | Operation::DeleteDevice { .. }]
    )
}

/// Whether `transaction` creates a flowtable.
pub(crate) fn creates_one(transaction: &Transaction) -> bool {
    let mut operations = transaction.operations.iter();
    operations.any(|operation| matches!(operation, Operation::AddFlowtable(_)))
}

#[cfg(test)]
pub(crate) mod tests;
