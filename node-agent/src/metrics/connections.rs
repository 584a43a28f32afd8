//! Connections that the kernel counts, in modes for which it does.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::board::Board;

/// Encodes the connections of each family, and those of the busiest endpoints.
pub(super) fn encode(board: &Board, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let modes = board.modes();
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
