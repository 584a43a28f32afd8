//! The Services of the benchmarks that drive a backend without an API server.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Result;
use dataplane::{Config, Dataplane, LocalDetection, Mode, ServiceRules};

/// The number of endpoints of a Service.
const ENDPOINTS: u8 = 5;

/// The configuration of a node that knows its pod CIDRs, so that each Service has a rule that marks
/// packets for masquerading.
pub fn config(mode: Mode) -> Result<Config> {
    Ok(Config {
        mode,
        local_detection: LocalDetection::Source {
            ipv4: Some("10.128.0.0/9".parse()?),
            ipv6: None,
        },
        ..Config::default()
    })
}

/// Returns Service `number` of five endpoints on another node, whose first endpoint is one of
/// several.
pub fn service(dataplane: &Dataplane, number: u16, first: u8) -> Arc<ServiceRules> {
    let [high, low] = number.to_be_bytes();
    let mut endpoints = testkit::mk_endpoints().tcp("http");
    for pod in 0..ENDPOINTS {
        let second = match pod {
            0 => 128 + first,
            pod => 130 + pod,
        };
        endpoints = endpoints.ready(&format!("10.{second}.{high}.{low}:8080"), "node-2");
    }
    let service = testkit::mk_service(&format!("bench/service-{number}"))
        .cluster_ip(&Ipv4Addr::new(10, 96, high, low).to_string())
        .port("http", 80)
        .build();
    let endpoints = endpoints.build();
    dataplane::compile(&service, &endpoints, dataplane.node(), dataplane.config()).into()
}
