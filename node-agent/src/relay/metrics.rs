//! Metrics of node ports on localhost, with the names that kube-proxy uses for them from 1.37 on
//! (KEP-6032).

use std::fmt::Error;
use std::sync::Arc;

use ::relay::{Counts, Transport};
use dataplane::Family;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use runtime::Metrics;

/// Reads the counters at each scrape.
#[derive(Debug)]
struct Localhost(Arc<Counts>);

/// Registers the metrics and returns the counters.
pub(super) fn register(metrics: &Metrics) -> Arc<Counts> {
    let counts = Arc::new(Counts::default());
    let collector = Localhost(Arc::clone(&counts));
    metrics.register_with(|registry| registry.register_collector(Box::new(collector)));
    counts
}

// === impl Localhost ===

impl Collector for Localhost {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let counts = &self.0;
        let mut listeners = encoder.encode_descriptor(
            "kubeproxy_nftables_localhost_nodeport_listeners",
            "Node ports open on localhost",
            None,
            MetricType::Gauge,
        )?;
        for family in Family::ALL {
            let labels = [("ip_family", family.to_string())];
            let gauge = ConstGauge::new(counts.listeners(family));
            gauge.encode(listeners.encode_family(&labels)?)?;
        }
        let mut failures = encoder.encode_descriptor(
            "kubeproxy_nftables_localhost_nodeport_listener_creation_failures",
            "Failed attempts to listen on a node port on localhost",
            None,
            MetricType::Counter,
        )?;
        for family in Family::ALL {
            let labels = [("ip_family", family.to_string())];
            let counter = ConstCounter::new(counts.creation_failures(family));
            counter.encode(failures.encode_family(&labels)?)?;
        }
        let mut rejected = encoder.encode_descriptor(
            "kubeproxy_nftables_localhost_nodeport_rejected_packets",
            "Connections and datagrams rejected at node ports on localhost",
            None,
            MetricType::Counter,
        )?;
        for transport in Transport::ALL {
            // In the API's spelling.
            let protocol = transport.protocol().to_string().to_uppercase();
            let labels = [("protocol", protocol)];
            let counter = ConstCounter::new(counts.rejected(transport));
            counter.encode(rejected.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
