//! Checks that the kernel and a table are able to apply Signpost's rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink::ObserveError;
use netlink::nf_tables::{Chain, Extension as Asked, ExtensionKind, TableState, family_name};
use rustix::io::Errno;
use thiserror::Error;

use super::chains::{base_chain, table_name};
use super::{Cause, Failure, NfTables, fault};
use crate::extension::{Extension, encode_match, encode_target};
use crate::{
    BuiltIn, Family, Fault, Match, PacketEnd, Protocol, States, TableChange, TableName, Target,
};

/// Whether the kernel is known to have the matches and targets that every node's rules use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extensions {
    /// The kernel was not asked, or lacked one of them.
    Unknown,
    /// The kernel has all of them.
    Present,
}

/// Why packets do not traverse a built-in chain, or not when they traverse it for iptables.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Obstacle {
    /// The table is dormant.
    #[error(
        "table {0} {table} is dormant, so its chains see no packets: reactivate it with `nft add \
         table {0} {table}`",
        family_name(*family)
    )]
    Dormant { family: Family, table: TableName },
    /// Another program has created a different chain with the same name.
    #[error(
        "a chain of table {} {table} differs from the one that iptables creates, {expected}, so \
         packets do not traverse it as they should: delete or rename it",
        family_name(*family)
    )]
    Chain {
        family: Family,
        table: TableName,
        expected: Chain,
    },
}

/// A feature that the kernel lacks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum MissingFeature {
    /// The module through which nf_tables rules use all matches and targets.
    #[error(
        "this kernel has no nft_compat, which nf_tables rules need in order to use matches and \
         targets of iptables"
    )]
    Compatibility,
    /// A match or target.
    #[error(
        "this kernel has no {kind} {name} (revision {revision}), nor a module that provides it"
    )]
    Extension {
        kind: ExtensionKind,
        name: String,
        revision: u8,
    },
}

// === impl NfTables ===

impl NfTables {
    /// Fails if the rules that `change` writes would have no effect. Removals are always possible.
    pub(super) fn observe_prerequisites(&mut self, change: &TableChange) -> Result<(), Failure> {
        if change.rules() > 0 && self.extensions == Extensions::Unknown {
            for (kind, extension) in fixed_extensions(self.family) {
                let lack = self.observe_lack(asked(kind, &extension));
                if let Some(lack) = lack.map_err(Failure::of_reading)? {
                    return Err(Failure::impossible(lack));
                }
            }
            self.extensions = Extensions::Present;
        }
        for (chain, rules) in &change.entries {
            if rules.is_empty() {
                continue;
            }
            let obstacle = self.observe_obstacle(change.table, *chain);
            if let Some(obstacle) = obstacle.map_err(Failure::of_reading)? {
                return Err(Failure::impossible(obstacle));
            }
        }
        Ok(())
    }

    /// Returns what keeps packets from traversing `chain`; `None` also if the chain does not exist,
    /// because Signpost will create it.
    pub(super) fn observe_obstacle(
        &mut self,
        table: TableName,
        chain: BuiltIn,
    ) -> Result<Option<Obstacle>, ObserveError> {
        let (family, name) = (self.family, table_name(table));
        if self.socket.observe_table_state(family, name)? == Some(TableState::Dormant) {
            return Ok(Some(Obstacle::Dormant { family, table }));
        }
        let expected = base_chain(table, chain);
        let found = self
            .socket
            .observe_one_chain(family, name, &expected.name)?;
        let is_expected = found.is_none_or(|found| found.as_ref() == Ok(&expected));
        Ok((!is_expected).then_some(Obstacle::Chain {
            family,
            table,
            expected,
        }))
    }

    /// Returns what the kernel lacks to run rules with this match or target.
    pub(super) fn observe_lack(
        &mut self,
        extension: Asked<'_>,
    ) -> Result<Option<MissingFeature>, ObserveError> {
        lack(
            extension,
            self.socket.observe_extension(self.family, extension),
        )
    }
}

/// Interprets the reply to a request for `extension`. The request is well formed, so EINVAL means
/// that the kernel has no nft_compat (nfnetlink_rcv_msg in net/netfilter/nfnetlink.c).
fn lack(
    extension: Asked<'_>,
    answer: Result<bool, ObserveError>,
) -> Result<Option<MissingFeature>, ObserveError> {
    match answer {
        Err(ObserveError::Refused { source, .. })
            if Errno::from_io_error(&source) == Some(Errno::INVAL) =>
        {
            Ok(Some(MissingFeature::Compatibility))
        }
        answer => Ok((!answer?).then(|| MissingFeature::Extension {
            kind: extension.kind,
            name: extension.name.to_owned(),
            revision: extension.revision,
        })),
    }
}

/// The matches and targets that rules use regardless of which Services exist. Without any of these
/// nothing works. The ones that only some Services need (affinity, a choice of endpoints, SCTP)
/// fail with those Services.
fn fixed_extensions(family: Family) -> Vec<(ExtensionKind, Extension)> {
    let unspecified = match family {
        Family::Ipv4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        Family::Ipv6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let ports = Match::DestinationPorts { first: 0, last: 0 };
    let matches = [
        (Match::ConnectionState(States::NEW), None),
        (Match::Mark { value: 0, mask: 0 }, None),
        (Match::LocalAddress(PacketEnd::Destination), None),
        (ports.clone(), Some(Protocol::Tcp)),
        (ports, Some(Protocol::Udp)),
    ];
    let targets = [
        Target::Mark { value: 0, mask: 0 },
        Target::Masquerade,
        Target::DestinationNat {
            address: unspecified,
            port: 0,
        },
        Target::Reject,
    ];
    let matches = matches.map(|(asked, protocol)| encode_match(&asked, protocol));
    let targets = targets
        .iter()
        .filter_map(|target| encode_target(target, family));
    matches
        .into_iter()
        .map(|asked| (ExtensionKind::Match, asked))
        .chain(targets.map(|done| (ExtensionKind::Target, done)))
        .collect()
}

fn asked(kind: ExtensionKind, extension: &Extension) -> Asked<'_> {
    Asked {
        kind,
        name: extension.name,
        revision: extension.revision,
    }
}

// === impl Failure ===

impl Failure {
    fn impossible(source: impl std::error::Error + Send + Sync + 'static) -> Failure {
        Failure {
            fault: Fault::Impossible,
            cause: Cause::Other,
            source: source.into(),
        }
    }

    /// The kernel could not be read.
    pub(super) fn of_reading(error: ObserveError) -> Failure {
        Failure {
            fault: fault::of_reading(&error),
            cause: Cause::Other,
            source: error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNTRACK: Asked<'_> = Asked {
        kind: ExtensionKind::Match,
        name: "conntrack",
        revision: 3,
    };

    fn refused(errno: Errno) -> Result<bool, ObserveError> {
        Err(ObserveError::Refused {
            what: "a match or target",
            source: errno.into(),
        })
    }

    #[test]
    fn what_a_kernel_lacks_is_named() {
        let of = |answer| lack(CONNTRACK, answer).map(|lack| lack.map(|lack| lack.to_string()));
        let none = of(Ok(false)).expect("an answer").unwrap_or_default();
        assert!(none.contains("match conntrack (revision 3)"), "{none}");
        let no_way = of(refused(Errno::INVAL)).expect("an answer");
        let no_way = no_way.unwrap_or_default();
        assert!(no_way.contains("nft_compat"), "{no_way}");
        assert_eq!(of(Ok(true)).expect("an answer"), None);
        let unanswered = of(refused(Errno::NOMEM)).map_err(|error| fault::of_reading(&error));
        assert_eq!(unanswered, Err(Fault::Passing));
    }

    #[test]
    fn every_node_needs_the_same_but_for_addresses() {
        let names = |family| -> Vec<String> {
            let all = fixed_extensions(family);
            let all = all
                .iter()
                .map(|(kind, e)| format!("{kind} {} {}", e.name, e.revision));
            all.collect()
        };
        let expected = [
            "match conntrack 3",
            "match mark 1",
            "match addrtype 1",
            "match tcp 0",
            "match udp 0",
            "target MARK 2",
            "target MASQUERADE 0",
            "target DNAT 2",
            "target REJECT 0",
        ];
        assert_eq!(names(Family::Ipv4), expected);
        assert_eq!(names(Family::Ipv6), expected);
    }

    #[test]
    fn an_obstacle_names_table_and_chain_and_a_way_out() {
        let chain = Obstacle::Chain {
            family: Family::Ipv4,
            table: TableName::Nat,
            expected: base_chain(TableName::Nat, BuiltIn::Prerouting),
        };
        assert_eq!(
            chain.to_string(),
            "a chain of table ip nat differs from the one that iptables creates, PREROUTING { type \
             nat hook prerouting priority -100; }, so packets do not traverse it as they should: \
             delete or rename it"
        );
    }
}
