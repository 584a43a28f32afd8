//! kube-proxy's node ports in the legacy variant of iptables.

use dataplane::Family;
use xtables::{AddressMatch, CountedRule, TableName, Tables};

use super::{DestinationMatch, NODE_PORTS, NodePort, NodePortScope, SERVICES, scope};
use crate::kernel::{ScanError, open_legacy};

/// Reads the addresses on which rules of `family` accept node ports.
pub(super) fn observe_rules(family: Family) -> Result<NodePortScope, ScanError> {
    let rules = observe_chains(family, |name| name == SERVICES)?.into_iter();
    let leading = rules.filter(|rule| rule.leads_to.as_deref() == Some(NODE_PORTS));
    Ok(scope(leading.map(|rule| destination(&rule)).collect()))
}

/// Returns what the rules of the Services require of the destination.
pub(super) fn observe_services(family: Family) -> Result<Vec<DestinationMatch>, ScanError> {
    let rules = observe_chains(family, |name| name == SERVICES)?;
    Ok(rules.iter().map(destination).collect())
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
    let tables = open_legacy(family).map_err(ScanError::OpenLegacy)?;
    match tables {
        Tables::Legacy(tables) => tables
            .observe_counted_rules(TableName::Nat, is_chosen)
            .map_err(ScanError::ObserveLegacy),
        Tables::NfTables(_) => Ok(Vec::new()),
    }
}

pub(crate) fn destination(rule: &CountedRule) -> DestinationMatch {
    match rule.destination {
        Some(AddressMatch { inverted: true, .. }) => DestinationMatch::Outside,
        Some(AddressMatch { range, .. }) if range.prefix_len() == range.max_prefix_len() => {
            DestinationMatch::Is(range.addr())
        }
        Some(_) => DestinationMatch::Within,
        None => DestinationMatch::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rule_requires_of_the_destination_says_where_node_ports_are() {
        let matched = |range: Option<&str>, inverted| {
            let required = range.map(|range| AddressMatch {
                range: range.parse().expect("a range"),
                inverted,
            });
            destination(&CountedRule {
                destination: required,
                protocol: None,
                destination_port: None,
                leads_to: Some(NODE_PORTS.into()),
                translates_to: None,
                packets: 0,
            })
        };
        let address = "10.0.0.1".parse().expect("an address");
        let only = DestinationMatch::Is(address);
        assert_eq!(matched(Some("10.0.0.1/32"), false), only);
        let outside = DestinationMatch::Outside;
        assert_eq!(matched(Some("127.0.0.0/8"), true), outside);
        assert_eq!(matched(Some("::1/128"), true), outside);
        let within = DestinationMatch::Within;
        assert_eq!(matched(Some("10.0.0.0/8"), false), within);
        assert_eq!(matched(None, false), DestinationMatch::Any);
    }
}
