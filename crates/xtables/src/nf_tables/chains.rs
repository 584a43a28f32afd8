//! The chains that `iptables-nft` creates automatically.

use netlink::nf_tables::{Chain, ChainKind, Hook, HookPoint};

use crate::{BuiltIn, TableName};

/// The table's name in nf_tables.
pub(super) fn table_name(table: TableName) -> &'static str {
    match table {
        TableName::Nat => "nat",
        TableName::Filter => "filter",
    }
}

/// The built-in chains of a table.
pub(super) fn built_ins(table: TableName) -> &'static [BuiltIn] {
    match table {
        TableName::Nat => &[
            BuiltIn::Prerouting,
            BuiltIn::Input,
            BuiltIn::Output,
            BuiltIn::Postrouting,
        ],
        TableName::Filter => &[BuiltIn::Input, BuiltIn::Forward, BuiltIn::Output],
    }
}

/// The chain as `iptables-nft` creates it, with policy accept. With any other priority or type,
/// `iptables-nft` would call the whole table incompatible.
pub(super) fn base_chain(table: TableName, chain: BuiltIn) -> Chain {
    let kind = match table {
        TableName::Nat => ChainKind::Nat,
        TableName::Filter => ChainKind::Filter,
    };
    let point = match chain {
        BuiltIn::Prerouting => HookPoint::Prerouting,
        BuiltIn::Input => HookPoint::Input,
        BuiltIn::Forward => HookPoint::Forward,
        BuiltIn::Output => HookPoint::Output,
        BuiltIn::Postrouting => HookPoint::Postrouting,
    };
    // NF_IP_PRI_NAT_DST, NF_IP_PRI_NAT_SRC and NF_IP_PRI_FILTER; the same for IPv6.
    let priority = match (table, chain) {
        (TableName::Nat, BuiltIn::Prerouting | BuiltIn::Output) => -100,
        (TableName::Nat, _) => 100,
        (TableName::Filter, _) => 0,
    };
    Chain {
        name: chain.to_string().into(),
        hook: Some(Hook {
            kind,
            point,
            priority,
        }),
    }
}
