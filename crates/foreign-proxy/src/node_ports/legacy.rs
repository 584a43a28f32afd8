//! kube-proxy's node ports in the legacy variant of iptables.

use dataplane::Family;
use xtables::{AddressMatch, CountedRule, TableName, Tables};

use super::{FrontendContext, NODE_PORTS, NodePort, NodePortScope, SERVICES, scope};
use crate::kernel::{ScanError, open_legacy};
use crate::legacy_chains;

/// Reads the addresses on which rules of `family` accept node ports.
pub(super) fn observe_rules(family: Family) -> Result<NodePortScope, ScanError> {
    let rules = observe_chains(family, |name| name == SERVICES)?.into_iter();
    let leading = rules.filter(|rule| rule.leads_to.as_deref() == Some(NODE_PORTS));
    Ok(scope(leading.map(|rule| asked(&rule)).collect()))
}

/// Returns how many connections the rule of each node port has had, if any.
pub(super) fn observe_counts(family: Family) -> Result<Vec<(NodePort, u64)>, ScanError> {
    let rules = observe_chains(family, |name| name == NODE_PORTS)?.into_iter();
    let counted = rules.filter(|rule| rule.packets > 0).filter_map(|rule| {
        let node_port = (rule.protocol?, rule.destination_port?);
        Some((node_port, rule.packets))
    });
    Ok(counted.collect())
}

/// Reads the rules of the chains in table `nat` whose names `is_chosen` accepts.
pub(crate) fn observe_chains(
    family: Family,
    is_chosen: impl Fn(&str) -> bool,
) -> Result<Vec<CountedRule>, ScanError> {
    let tables = open_legacy(legacy_chains::of(family)).map_err(ScanError::OpenLegacy)?;
    match tables {
        Tables::Legacy(tables) => tables
            .observe_counted_rules(TableName::Nat, is_chosen)
            .map_err(ScanError::ObserveLegacy),
        Tables::NfTables(_) => Ok(Vec::new()),
    }
}

pub(crate) fn asked(rule: &CountedRule) -> FrontendContext {
    match rule.destination {
        Some(AddressMatch { inverted: true, .. }) => FrontendContext::Not,
        Some(AddressMatch { range, .. }) if range.prefix_len() == range.max_prefix_len() => {
            FrontendContext::For(range.addr())
        }
        Some(_) | None => FrontendContext::Anything,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rule_asks_of_the_destination_says_where_node_ports_are() {
        let asked = |range: Option<&str>, inverted| {
            let destination = range.map(|range| AddressMatch {
                range: range.parse().expect("a range"),
                inverted,
            });
            asked(&CountedRule {
                destination,
                protocol: None,
                destination_port: None,
                leads_to: Some(NODE_PORTS.into()),
                translates_to: None,
                packets: 0,
            })
        };
        let address = "10.0.0.1".parse().expect("an address");
        let only = FrontendContext::For(address);
        assert_eq!(asked(Some("10.0.0.1/32"), false), only);
        assert_eq!(asked(Some("127.0.0.0/8"), true), FrontendContext::Not);
        assert_eq!(asked(Some("::1/128"), true), FrontendContext::Not);
        assert_eq!(asked(None, false), FrontendContext::Anything);
    }
}
