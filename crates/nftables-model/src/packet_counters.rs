//! Counters that rules keep of the packets that reach their end.

use std::collections::BTreeMap;

use dataplane::Family;
use netlink::nf_tables::{Expression, ListedRule, Verdict};
use netlink::{ObserveError, OpenError, Socket};

/// A group of packets that rules count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CountedPackets {
    /// Packets that begin a connection to an address of a Service, with a usable endpoint or
    /// without, or to a node port with one.
    NewConnections,
    /// Packets that are refused, for this reason.
    Refused(RefusalReason),
}

/// Why a packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalReason {
    /// Rejected: its frontend has no endpoint anywhere.
    NoEndpoints,
    /// Dropped: its frontend has endpoints, but the traffic policy is Local and none is on this
    /// node.
    NoLocalEndpoints,
    /// Dropped: its source is in none of the source ranges of its frontend.
    SourceNotAllowed,
    /// Rejected: no Service has its port at this cluster IP.
    NoSuchPort,
    /// Dropped: no Service has its destination, which is in a Service CIDR.
    NoSuchAddress,
    /// Dropped: its connection to a cluster IP began before the kernel had the rules.
    NotRedirected,
    /// Rejected: IPVS has no endpoint and no connection for it.
    NotTakenByIpvs,
}

/// How a rule that counts packets ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleEnd {
    /// It rejects the packet.
    Reject,
    /// It drops the packet.
    Drop,
    /// It continues in the chain that a map has.
    Lookup,
}

/// The rules of a chain that count the same packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountedRule {
    /// The chain.
    pub chain: &'static str,
    /// What the rules count. They are those of the chain that have the [end](CountedPackets::end)
    /// of these packets.
    pub packets: CountedPackets,
}

/// The chain that rejects or drops packets to an address of a Service.
pub const REFUSE: &str = "refuse";
/// The same for node ports.
pub const REFUSE_NODE_PORT: &str = "nodeport-refuse";
/// The chain that refuses packets to cluster IPs that nothing has redirected.
pub const REFUSE_CLUSTER_IPS: &str = "refuse-cluster-ips";
/// The chain that refuses those to a cluster IP of a Service.
pub const REFUSE_UNREDIRECTED: &str = "refuse-unredirected";
/// The chain that rejects packets to a port that the Service of a cluster IP does not have.
pub const REFUSE_PORTS: &str = "refuse-ports";
/// The chain that drops packets from outside the source ranges.
pub const ALLOW_SOURCES: &str = "allow-sources";

/// Packets since the rules that count them were written: another number for each chain, because a
/// chain that is written again counts from 0.
pub type PacketCounts = BTreeMap<CountedRule, u64>;

/// Reads the counters of rules through a socket that stays open: closing one delays commits
/// ([`FlowSocket`](netlink::conntrack::FlowSocket)).
#[derive(Debug, Default)]
pub struct PacketCounters(Option<Socket>);

/// Why the counters could not be read.
#[derive(Debug, thiserror::Error)]
pub enum PacketCountError {
    /// The socket could not be opened.
    #[error("failed to open a socket to the kernel")]
    Open(#[source] OpenError),
    /// The kernel could not be read.
    #[error("failed to read the packet counters of rules")]
    Observe(#[source] ObserveError),
}

// === impl CountedPackets ===

impl CountedPackets {
    /// How a rule ends that counts these packets.
    pub fn end(self) -> RuleEnd {
        match self {
            CountedPackets::NewConnections => RuleEnd::Lookup,
            CountedPackets::Refused(reason) => match reason {
                RefusalReason::NoEndpoints
                | RefusalReason::NoSuchPort
                | RefusalReason::NotTakenByIpvs => RuleEnd::Reject,
                RefusalReason::NoLocalEndpoints
                | RefusalReason::SourceNotAllowed
                | RefusalReason::NoSuchAddress
                | RefusalReason::NotRedirected => RuleEnd::Drop,
            },
        }
    }
}

// === impl RuleEnd ===

impl RuleEnd {
    /// The end of a rule whose last expression is `last`; `None` if no counted rule ends so.
    pub fn of(last: &Expression) -> Option<RuleEnd> {
        match last {
            Expression::Reject(_) => Some(RuleEnd::Reject),
            Expression::Immediate(Verdict::Drop) => Some(RuleEnd::Drop),
            Expression::LookupVerdict { .. } => Some(RuleEnd::Lookup),
            _ => None,
        }
    }
}

// === impl CountedRule ===

impl CountedRule {
    /// The rules of `chain` that refuse packets for `reason`.
    pub const fn refusing(chain: &'static str, reason: RefusalReason) -> CountedRule {
        CountedRule {
            chain,
            packets: CountedPackets::Refused(reason),
        }
    }
}

/// Returns the rules that count packets in a table: those that every table with these chains has,
/// and one of its own.
pub const fn counted_rules(own: CountedRule) -> [CountedRule; 10] {
    [
        own,
        CountedRule::refusing(REFUSE, RefusalReason::NoEndpoints),
        CountedRule::refusing(REFUSE, RefusalReason::NoLocalEndpoints),
        CountedRule::refusing(REFUSE_NODE_PORT, RefusalReason::NoEndpoints),
        CountedRule::refusing(REFUSE_NODE_PORT, RefusalReason::NoLocalEndpoints),
        CountedRule::refusing(REFUSE_UNREDIRECTED, RefusalReason::NoSuchPort),
        CountedRule::refusing(REFUSE_UNREDIRECTED, RefusalReason::NotRedirected),
        CountedRule::refusing(REFUSE_CLUSTER_IPS, RefusalReason::NoSuchAddress),
        CountedRule::refusing(REFUSE_PORTS, RefusalReason::NoSuchPort),
        CountedRule::refusing(ALLOW_SOURCES, RefusalReason::SourceNotAllowed),
    ]
}

// === impl PacketCounters ===

impl PacketCounters {
    /// Reads what `rules`, those of a chain together, count in a table of this thread's network namespace,
    /// which must always be the same one. Costs a dump of each chain. Rules that the table does not
    /// have count 0. Returns `None` if there is no such table, or none of its rules has a counter.
    pub fn observe(
        &mut self,
        family: Family,
        table: &str,
        rules: &[CountedRule],
    ) -> Result<Option<PacketCounts>, PacketCountError> {
        let socket = match &mut self.0 {
            Some(socket) => socket,
            None => self
                .0
                .insert(Socket::open().map_err(PacketCountError::Open)?),
        };
        read(socket, family, table, rules).map_err(PacketCountError::Observe)
    }
}

fn read(
    socket: &mut Socket,
    family: Family,
    table: &str,
    rules: &[CountedRule],
) -> Result<Option<PacketCounts>, ObserveError> {
    if !socket.observe_table(family, table)? {
        return Ok(None);
    }
    let mut counts: PacketCounts = rules.iter().map(|rule| (*rule, 0)).collect();
    let mut has_counters = false;
    for rules in rules.chunk_by(|a, b| a.chain == b.chain) {
        let chain = rules.first().map(|rule| rule.chain);
        let counted = |listed: &ListedRule<'_>| {
            let count = listed.packets()?;
            let end = RuleEnd::of(listed.decode().ok()?.expressions.last()?)?;
            let rule = rules.iter().find(|rule| rule.packets.end() == end)?;
            Some((*rule, count))
        };
        for (rule, count) in socket.observe_chosen_rules(family, table, chain, counted)? {
            *counts.entry(rule).or_default() += count;
            has_counters = true;
        }
    }
    Ok(has_counters.then_some(counts))
}
