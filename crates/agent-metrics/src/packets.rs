//! Packets that Signpost's rules have counted. Read from the kernel at each scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use dataplane::{Family, Mode};
use modes::PacketCounters;
use nftables_model::{CountedPackets, CountedRule, RefusalReason, RuleEnd};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use runtime::chain;
use tracing::debug;

use super::monotonic_count::MonotonicCount;

/// What the rules of a mode count.
type Rule = (Mode, CountedRule);
/// The packets of each kind.
type PacketCounts = BTreeMap<CountedPackets, u64>;

/// Reads the counters at each scrape. A family whose counters cannot be read, or whose rules have
/// never had one, has no series.
#[derive(Debug)]
pub(super) struct PacketMetrics(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    counters: PacketCounters,
    /// Of each family that was read.
    totals: BTreeMap<Family, Totals>,
}

/// Packets since the agent started.
#[derive(Debug, Default)]
struct Totals(BTreeMap<CountedPackets, MonotonicCount<Rule>>);

// === impl PacketMetrics ===

impl PacketMetrics {
    /// Reads what rules counted for an earlier agent, which is not counted again.
    pub(super) fn begin() -> PacketMetrics {
        let metrics = PacketMetrics(Mutex::default());
        metrics.observe();
        metrics
    }

    fn observe(&self) -> Vec<(Family, PacketCounts)> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State { counters, totals } = &mut *state;
        let mut counts = Vec::new();
        for family in Family::ALL {
            match counters.observe(family) {
                Ok(read) => {
                    let totals = match totals.get_mut(&family) {
                        Some(totals) => {
                            totals.add(&read);
                            totals
                        }
                        None => totals.entry(family).or_insert(Totals::begin(&read)),
                    };
                    counts.push((family, totals.current()));
                }
                Err(error) => {
                    debug!(%family, error = %chain(&error), "unable to read counters");
                    counts.extend(totals.get(&family).map(|totals| (family, totals.current())));
                }
            }
        }
        counts
    }
}

impl Collector for PacketMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        encode(&self.observe(), &mut encoder)
    }
}

// === impl Totals ===

impl Totals {
    /// Begins at 0, whatever `read` says.
    fn begin(read: &BTreeMap<Rule, u64>) -> Totals {
        let mut totals = Totals::default();
        for (packets, counters) in by_packets(read) {
            totals.0.insert(packets, MonotonicCount::begin(counters));
        }
        totals
    }

    fn add(&mut self, read: &BTreeMap<Rule, u64>) {
        let mut counters = by_packets(read);
        let known: BTreeSet<CountedPackets> = self.0.keys().copied().collect();
        for packets in known
            .into_iter()
            .chain(counters.keys().copied())
            .collect::<BTreeSet<_>>()
        {
            let counters = counters.remove(&packets).unwrap_or_default();
            self.0.entry(packets).or_default().add(counters);
        }
    }

    fn current(&self) -> PacketCounts {
        let counts = self.0.iter();
        counts
            .map(|(packets, count)| (*packets, count.current()))
            .collect()
    }
}

fn by_packets(read: &BTreeMap<Rule, u64>) -> BTreeMap<CountedPackets, BTreeMap<Rule, u64>> {
    let mut by_packets: BTreeMap<CountedPackets, BTreeMap<Rule, u64>> = BTreeMap::new();
    for (rule, count) in read {
        let of_packets = by_packets.entry(rule.1.packets).or_default();
        of_packets.insert(*rule, *count);
    }
    by_packets
}

fn encode(
    counts: &[(Family, PacketCounts)],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let all = || {
        let families = counts.iter();
        families.flat_map(|(family, counts)| counts.iter().map(move |(of, n)| (family, *of, *n)))
    };
    let mut metric = encoder.encode_descriptor(
        "signpost_new_connections",
        "New connections to addresses of Services, with a usable endpoint or without, and to node ports with one, in mode nftables",
        None,
        MetricType::Counter,
    )?;
    for (family, packets, count) in all() {
        if packets == CountedPackets::NewConnections {
            let labels = [("ip_family", family.to_string())];
            ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
        }
    }
    let mut metric = encoder.encode_descriptor(
        "signpost_refused_packets",
        "Packets to Services that were rejected or dropped, by reason, in modes nftables and ipvs",
        None,
        MetricType::Counter,
    )?;
    for (family, packets, count) in all() {
        if let CountedPackets::Refused(reason) = packets {
            let labels = [
                ("ip_family", family.to_string()),
                ("verdict", verdict(packets).to_owned()),
                ("reason", name(reason).to_owned()),
            ];
            ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// How packets are refused, as in the label.
fn verdict(packets: CountedPackets) -> &'static str {
    match packets.end() {
        RuleEnd::Reject => "reject",
        RuleEnd::Drop | RuleEnd::Lookup => "drop",
    }
}

/// The reason, as in the label.
fn name(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::NoEndpoints => "no_endpoints",
        RefusalReason::NoLocalEndpoints => "no_local_endpoints",
        RefusalReason::SourceNotAllowed => "source_not_allowed",
        RefusalReason::NoSuchPort => "no_such_port",
        RefusalReason::NoSuchAddress => "no_such_address",
        RefusalReason::NotRedirected => "not_redirected",
        RefusalReason::NotTakenByIpvs => "not_taken_by_ipvs",
    }
}
