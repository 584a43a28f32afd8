//! Connections that the kernel counts, in modes for which it does.

use std::collections::BTreeMap;
use std::fmt;

use dataplane::{Family, Mode};
use modes::ModeState;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::ipvs_statistics;

/// Encodes how many connections IPVS has sent to endpoints, if it serves any family.
pub(super) fn encode_new(
    modes: &BTreeMap<Family, ModeState>,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let mut modes = modes.values();
    let serves = modes.any(|mode| mode.active_mode == Some(Mode::Ipvs));
    encode_count(serves.then(ipvs_statistics::observe).flatten(), encoder)
}

fn encode_count(count: Option<u64>, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let metric = encoder.encode_descriptor(
        "signpost_ipvs_new_connections",
        "Connections that IPVS has sent to endpoints, of both families, in mode ipvs",
        None,
        MetricType::Counter,
    )?;
    match count {
        Some(count) => ConstCounter::new(count).encode(metric),
        None => Ok(()),
    }
}

/// Encodes the connections of each family, and those of the busiest endpoints.
pub(super) fn encode(
    modes: &BTreeMap<Family, ModeState>,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let counted = || {
        let modes = modes.iter();
        modes.filter_map(|(family, mode)| Some((family, mode.connections.as_ref()?)))
    };
    let mut all = encoder.encode_descriptor(
        "signpost_ipvs_connections",
        "Connections that IPVS counts for Signpost's virtual servers, by family and state",
        None,
        MetricType::Gauge,
    )?;
    for (family, connections) in counted() {
        for (state, count) in [
            ("active", connections.active),
            ("inactive", connections.inactive),
        ] {
            let labels = [
                ("ip_family", family.to_string()),
                ("state", state.to_owned()),
            ];
            gauge(count).encode(all.encode_family(&labels)?)?;
        }
    }
    let mut endpoints = encoder.encode_descriptor(
        "signpost_ipvs_endpoint_connections",
        "Connections that IPVS counts for an endpoint of a Service port, by state, for the 20 endpoints of each family with the most",
        None,
        MetricType::Gauge,
    )?;
    for endpoint in counted().flat_map(|(_, connections)| &connections.busiest) {
        let port = &endpoint.service_port;
        for (state, count) in [("active", endpoint.active), ("inactive", endpoint.inactive)] {
            let labels = [
                ("namespace", port.service.namespace.to_string()),
                ("service", port.service.name.to_string()),
                ("port", port.port.to_string()),
                ("protocol", port.protocol.to_string()),
                ("endpoint", endpoint.endpoint.to_string()),
                ("state", state.to_owned()),
            ];
            gauge(count).encode(endpoints.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn gauge(count: u64) -> ConstGauge<f64> {
    ConstGauge::new(f64::from(u32::try_from(count).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use backend::{Connections, EndpointConnections};
    use dataplane::{Protocol, ServiceKey, ServicePortName};
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    /// The page that lists every metric with its labels.
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");

    #[derive(Debug)]
    struct Counted(BTreeMap<Family, ModeState>);

    impl Collector for Counted {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
            encode(&self.0, &mut encoder)
        }
    }

    /// What a scrape has if one endpoint has connections.
    fn scrape() -> String {
        let connections = Connections::of(vec![EndpointConnections {
            service_port: ServicePortName {
                service: ServiceKey::new("shop", "web"),
                port: "http".into(),
                protocol: Protocol::Tcp,
            },
            endpoint: ([10, 0, 1, 5], 8080).into(),
            active: 2,
            inactive: 1,
        }]);
        let state = ModeState {
            connections: Some(connections),
            ..ModeState::default()
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Counted([(Family::Ipv4, state)].into())));
        let mut scrape = String::new();
        text::encode(&mut scrape, &registry).expect("a string takes everything");
        scrape
    }

    /// No kernel of `metrics_kernel` has IPVS, so no scrape there has these series.
    #[test]
    fn the_page_of_metrics_has_the_labels_of_these() {
        let (scrape, page) = (scrape(), fs::read_to_string(PAGE).expect("the page"));
        for name in [
            "signpost_ipvs_connections",
            "signpost_ipvs_endpoint_connections",
        ] {
            let series = scrape.lines().filter_map(|line| line.strip_prefix(name));
            let series = series.filter_map(|labels| labels.strip_prefix('{'));
            // Every other part outside quotes ends with the name of a label.
            let labels = series.flat_map(|labels| labels.split('"').step_by(2));
            let labels = labels.filter_map(|part| part.strip_suffix('='));
            let labels: BTreeSet<&str> = labels.map(|l| l.trim_start_matches(',')).collect();
            let labels: Vec<&str> = labels.into_iter().collect();
            let row = format!("| `{name}` | gauge | {} | ", labels.join(", "));
            assert!(labels.contains(&"state"), "{scrape}");
            assert!(page.contains(&row), "the page has no row {row:?}");
        }
    }
}
