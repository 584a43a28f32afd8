//! Compares the Services in kube-proxy's rules of mode nftables with those in Signpost's.

use std::collections::BTreeSet;

use dataplane::Family;
use netlink::Socket;
use netlink::nf_tables::{Bytes, DataType};

use super::kernel::{ScanError, TABLE, open};

/// Signpost's maps of redirected and refused Services, by address and by node port.
const OURS: [[&str; 2]; 2] = [["services", "refusals"], ["nodeports", "nodeport-refusals"]];
/// kube-proxy's maps with the same keys (pkg/proxy/nftables/proxier.go).
const THEIRS: [[&str; 2]; 2] = [
    ["service-ips", "no-endpoint-services"],
    ["service-nodeports", "no-endpoint-nodeports"],
];

/// What only one of the two proxies serves, as nft prints it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Keys that only kube-proxy's maps contain.
    pub only_theirs: Vec<String>,
    /// Keys that only Signpost's maps contain.
    pub only_own: Vec<String>,
}

/// Compares addresses, protocols and ports of one family, redirected and refused alike.
pub fn observe_difference(family: Family) -> Result<Difference, ScanError> {
    let mut socket = open()?;
    let mut difference = Difference::default();
    let address = DataType::address(family);
    let keys: [&[DataType]; 2] = [
        &[address, DataType::Protocol, DataType::Service],
        &[DataType::Protocol, DataType::Service],
    ];
    for ((own, theirs), fields) in OURS.into_iter().zip(THEIRS).zip(keys) {
        let own = observe_keys(&mut socket, family, backend_nftables::TABLE, own)?;
        let theirs = observe_keys(&mut socket, family, TABLE, theirs)?;
        let print = |key: &Bytes| key.typed(fields).to_string();
        let only_theirs = theirs.difference(&own).map(print);
        difference.only_theirs.extend(only_theirs);
        let only_own = own.difference(&theirs).map(print);
        difference.only_own.extend(only_own);
    }
    Ok(difference)
}

fn observe_keys(
    socket: &mut Socket,
    family: Family,
    table: &str,
    maps: [&str; 2],
) -> Result<BTreeSet<Bytes>, ScanError> {
    let mut keys = BTreeSet::new();
    for map in maps {
        let elements = socket.observe_elements(family, table, map);
        let elements = elements.map_err(ScanError::Observe)?;
        keys.extend(elements.into_iter().map(|(key, _)| key));
    }
    Ok(keys)
}
