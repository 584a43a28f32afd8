//! The largest objects that a tenant can write.
//!
//! | what | how many |
//! |---|---|
//! | wide | N Services of 200 ports, with one endpoint at each |
//! | deep | one Service of 100 ports, with 10 N endpoints at each; a slice has at most 1,000 |

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::population::NAMESPACE;

/// The number of ports of a wide Service. The API sets no limit.
const WIDE: u16 = 200;
/// The maximum number of ports of one slice (`discovery/v1`), and the number of ports of the deep
/// Service.
const SLICE: u16 = 100;
/// The number of endpoints of the deep Service for each wide one.
const DEEP: u32 = 10;
/// The first endpoint address. The range is separate from all other endpoints.
const FIRST_ENDPOINT: u32 = u32::from_be_bytes([10, 64, 0, 0]);

/// Large Services with their slices.
#[derive(Debug)]
pub(super) struct LargeObjects {
    pub(super) services: Vec<Service>,
    pub(super) slices: Vec<EndpointSlice>,
}

impl LargeObjects {
    /// Creates `count` wide Services and one deep Service.
    pub(super) fn new(count: u32) -> Result<LargeObjects> {
        let mut objects = LargeObjects {
            services: vec![service("deep", SLICE)?],
            slices: vec![slice("deep", 0, 0..DEEP * count)?],
        };
        for number in 0..count {
            let name = format!("wide-{number}");
            objects.services.push(service(&name, WIDE)?);
            for first in (0..WIDE).step_by(SLICE.into()) {
                objects
                    .slices
                    .push(slice(&name, first, number..number + 1)?);
            }
        }
        Ok(objects)
    }
}

fn service(name: &str, ports: u16) -> Result<Service> {
    let port = |number: u16| {
        json!({
            "name": format!("p{number}"), "port": 1000 + number, "targetPort": 2000 + number,
        })
    };
    let ports: Vec<Value> = (0..ports).map(port).collect();
    let object = json!({
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"ports": ports},
    });
    serde_json::from_value(object).context("this is no Service")
}

/// Creates a slice with the ports from `first` on and these endpoints.
fn slice(service: &str, first: u16, endpoints: std::ops::Range<u32>) -> Result<EndpointSlice> {
    let port = |number: u16| json!({"name": format!("p{number}"), "protocol": "TCP", "port": 2000 + number});
    let ports: Vec<Value> = (first..first + SLICE).map(port).collect();
    let endpoint = |number: u32| {
        let address = Ipv4Addr::from(FIRST_ENDPOINT + number);
        json!({"addresses": [address], "conditions": {"ready": true}})
    };
    let endpoints: Vec<Value> = endpoints.map(endpoint).collect();
    let object = json!({
        "metadata": {
            "namespace": NAMESPACE,
            "name": format!("{service}-{first}"),
            "labels": {
                "kubernetes.io/service-name": service,
                // The EndpointSlice controller would delete slices that it considers its own.
                "endpointslice.kubernetes.io/managed-by": "bench",
            },
        },
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": endpoints,
    });
    serde_json::from_value(object).context("this is no EndpointSlice")
}
