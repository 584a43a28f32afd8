//! Parses a ServiceCIDR object into its ranges.

use std::collections::BTreeSet;

use dataplane::ObjectKind;
use ipnet::IpNet;

use super::findings::Findings;
use super::{Parsed, address};
use crate::object::field::quoted;
use crate::object::{self, Object};

/// The maximum number of ranges that are read. The API server accepts one per family; each becomes
/// a rule.
const MOST_CIDRS: usize = 100;

/// Returns the valid ranges. The object stays in force as long as it exists, also while it is being
/// deleted: Services may still have addresses in it.
pub(crate) fn parse_service_cidr(object: &object::ServiceCidr) -> Parsed<BTreeSet<IpNet>> {
    const OTHERS: &str = "do not count: unused addresses in them are not dropped";
    const INSTEAD: &str = "unused addresses in it are not dropped";
    let key = object.key();
    let mut findings = Findings::new(ObjectKind::ServiceCidr, &key);
    let mut ranges = BTreeSet::new();
    let list = "spec.cidrs";
    let fields = findings.bounded(list, &object.spec.cidrs, MOST_CIDRS, OTHERS);
    for (i, field) in fields.iter().enumerate() {
        let path = format_args!("{list}[{i}]");
        let Ok(text) = findings.text(path, field, INSTEAD) else {
            continue;
        };
        match address::parse_cidr(text) {
            Some(range) => {
                ranges.insert(range);
            }
            None => {
                findings.reject(path, format!("{} is not a CIDR; {INSTEAD}", quoted(text)));
            }
        }
    }
    findings.into_parsed(Some(ranges))
}
