//! Packets that Signpost's rules have counted. Read from the kernel at each scrape.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use dataplane::Family;
use modes::{CountedPackets, PacketCounters, PacketCounts, RefusalReason, RuleEnd};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use runtime::chain;
use tracing::debug;

/// Reads the counters at each scrape. A family whose counters cannot be read, or whose rules have
/// none, has no series.
#[derive(Debug, Default)]
pub(super) struct PacketMetrics(Mutex<PacketCounters>);

// === impl PacketMetrics ===

impl PacketMetrics {
    fn observe(&self) -> Vec<(Family, PacketCounts)> {
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts = Vec::new();
        for family in Family::ALL {
            match counters.observe(family) {
                Ok(found) => counts.extend(found.map(|found| (family, found))),
                Err(error) => debug!(%family, error = %chain(&error), "unable to read counters"),
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
        RefusalReason::NotTakenByIpvs => "not_taken_by_ipvs",
    }
}
