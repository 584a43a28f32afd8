//! A change to the kernel as a value.

use std::sync::Arc;

use super::{Bytes, Chain, ElementData, Family, Flowtable, Rule, Set};

/// Operations that take effect together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// The family of the table that all operations change.
    pub family: Family,
    /// The table's name.
    pub table: Arc<str>,
    /// The operations in order.
    pub operations: Vec<Operation>,
}

/// One step of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Creates the table, or leaves it as it is.
    AddTable,
    /// Creates a table of which this socket is the owner (`NFT_TABLE_F_OWNER`, since Linux 5.12): no
    /// other program can change or remove it, not even with all tables at once, and the kernel removes
    /// it when the socket is closed (`nft_flush` and `nft_rcv_nl_event` in
    /// net/netfilter/nf_tables_api.c). Older kernels refuse it.
    AddOwnedTable,
    /// Removes the table with its content.
    ///
    /// Packets do not see this as one step. In net/netfilter/nf_tables_api.c, the elements of maps
    /// are gone at once (`nft_map_deactivate`), but each chain of a hook keeps its rules until the
    /// kernel removes the chain from its hook, one after another (`nf_tables_commit_chain_prepare`
    /// skips chains that go), and other sets still match. [`Operation::FlushTable`], in an earlier
    /// transaction, empties what packets traverse.
    DeleteTable,
    /// Removes the rules of all chains. At each hook, a packet meets either all of them or none.
    FlushTable,
    /// Creates a chain, or leaves it as it is.
    AddChain(Chain),
    /// Removes the rules of a chain.
    FlushChain(Arc<str>),
    /// Removes a chain that has no rules and that nothing leads to.
    DeleteChain(Arc<str>),
    /// Appends a rule to a chain.
    AddRule {
        /// The chain.
        chain: Arc<str>,
        /// The rule.
        rule: Rule,
    },
    /// Inserts a rule before all others of a chain.
    InsertRule {
        /// The chain.
        chain: Arc<str>,
        /// The rule.
        rule: Rule,
    },
    /// Removes one rule.
    DeleteRule {
        /// The chain.
        chain: Arc<str>,
        /// The rule's handle, from a [`Jump`](super::Jump) or a [`ListedRule`](super::ListedRule).
        handle: u64,
    },
    /// Creates a set, or leaves it as it is.
    AddSet(Set),
    /// Removes a set that no rule refers to.
    DeleteSet(Arc<str>),
    /// Creates a flowtable without devices, or leaves it as it is.
    AddFlowtable(Flowtable),
    /// Removes a flowtable that no rule refers to. Its connections go through the hooks again.
    DeleteFlowtable(Arc<str>),
    /// Adds a device to a flowtable, or leaves it there. Refused with `ENOENT` if there is no such device.
    AddDevice {
        /// The flowtable.
        flowtable: Flowtable,
        /// The name of the device.
        device: Arc<str>,
    },
    /// Removes a device from a flowtable. Refused with `ENOENT` if there is no such device: the kernel
    /// has removed it already.
    DeleteDevice {
        /// The flowtable.
        flowtable: Flowtable,
        /// The name of the device.
        device: Arc<str>,
    },
    /// Adds elements whose keys the set does not have.
    AddElements {
        /// The set.
        set: Arc<Set>,
        /// Keys and data.
        elements: Vec<(Bytes, ElementData)>,
    },
    /// Removes elements that the set has.
    DeleteElements {
        /// The set.
        set: Arc<Set>,
        /// Their keys.
        keys: Vec<Bytes>,
    },
}

impl Transaction {
    /// A transaction without operations.
    pub fn new(family: Family, table: Arc<str>) -> Transaction {
        Transaction {
            family,
            table,
            operations: Vec::new(),
        }
    }

    /// The transactions that remove a table, in order: the first one empties all chains at once, see
    /// [`Operation::DeleteTable`]. They succeed if the table does not exist.
    pub fn removal(family: Family, table: &Arc<str>) -> [Transaction; 2] {
        [Operation::FlushTable, Operation::DeleteTable].map(|step| Transaction {
            family,
            table: Arc::clone(table),
            // Adding a missing table first lets the step succeed.
            operations: vec![Operation::AddTable, step],
        })
    }

    /// The number of elements that it adds or removes.
    pub fn elements(&self) -> usize {
        self.operations
            .iter()
            .map(|operation| match operation {
                Operation::AddElements { elements, .. } => elements.len(),
                Operation::DeleteElements { keys, .. } => keys.len(),
                _ => 0,
            })
            .sum()
    }
}
