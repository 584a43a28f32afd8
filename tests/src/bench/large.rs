//! The largest objects that a tenant can write.
//!
//! | what | how many |
//! |---|---|
//! | wide | N Services of 200 ports, with one endpoint at each |
//! | deep | one Service of 100 ports, with 10 N endpoints at each; a slice has at most 1,000 |
//! | ports | one Service of 8,000 ports, with one endpoint; its slice has 20,000 ports |
//! | ranges | one load balancer of 20 ports for 10,000 source ranges |
//! | addresses | one Service of 4,000 external IPs |
//!
//! The last three are about as large as the API server takes them, or as etcd stores them.

use std::net::Ipv4Addr;
use std::ops::Range;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::population::NAMESPACE;

/// The number of ports of a wide Service. The API sets no limit.
const WIDE: u16 = 200;
/// The number of ports of a slice of the EndpointSlice controller's size, and the number of ports
/// of the deep Service.
const SLICE: u16 = 100;
/// The number of ports of the Service of many ports. The API sets no limit, but etcd stores
/// requests of 1.5 MB, and each port takes some 140 bytes with what `managedFields` says about it.
const PORTS: u16 = 8_000;
/// The maximum number of ports of one slice (`maxPorts` in the validation of `discovery`).
const SLICE_PORTS: u16 = 20_000;
/// The number of ports of the load balancer with source ranges.
const RANGED: u16 = 20;
/// The number of its source ranges. The API sets no limit.
const RANGES: u16 = 10_000;
/// The number of external IPs. The API sets no limit.
const ADDRESSES: u16 = 4_000;
/// The address of the load balancer.
const LOAD_BALANCER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
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
            services: vec![
                service("deep", SLICE)?,
                service("ports", PORTS)?,
                service_with("ranges", RANGED, source_ranges())?,
                service_with("addresses", 1, external_ips())?,
            ],
            slices: vec![
                slice("deep", 0..SLICE, 0..DEEP * count)?,
                slice("ports", 0..SLICE_PORTS, 0..1)?,
                slice("ranges", 0..RANGED, 0..1)?,
                slice("addresses", 0..1, 0..1)?,
            ],
        };
        for number in 0..count {
            let name = format!("wide-{number}");
            objects.services.push(service(&name, WIDE)?);
            for first in (0..WIDE).step_by(SLICE.into()) {
                let ports = first..first + SLICE;
                objects
                    .slices
                    .push(slice(&name, ports, number..number + 1)?);
            }
        }
        Ok(objects)
    }

    /// Slices of which one endpoint concerns the most ports: of the deep Service, of the one with
    /// many ports and of a wide one.
    pub(super) fn flipped(&self) -> Vec<EndpointSlice> {
        let names = ["deep-0", "ports-0", "wide-0-0"].map(Some);
        let slices = self.slices.iter();
        slices
            .filter(|slice| names.contains(&slice.metadata.name.as_deref()))
            .cloned()
            .collect()
    }
}

fn service(name: &str, ports: u16) -> Result<Service> {
    service_with(name, ports, json!({}))
}

/// The fields of a load balancer with source ranges.
fn source_ranges() -> Value {
    let ranges = (0..RANGES).map(|range| {
        let [high, low] = range.to_be_bytes();
        format!("172.{}.{low}.0/25", 64 + high)
    });
    json!({
        "type": "LoadBalancer",
        "allocateLoadBalancerNodePorts": false,
        "loadBalancerSourceRanges": ranges.collect::<Vec<String>>(),
    })
}

fn external_ips() -> Value {
    let addresses = (0..ADDRESSES).map(|address| {
        let [high, low] = address.to_be_bytes();
        Ipv4Addr::new(198, 18, high, low)
    });
    json!({"externalIPs": addresses.collect::<Vec<Ipv4Addr>>()})
}

/// Creates a Service with these additional fields of its spec. A load balancer has its address.
fn service_with(name: &str, ports: u16, mut spec: Value) -> Result<Service> {
    let port = |number: u16| {
        json!({
            "name": format!("p{number}"), "port": 1000 + number, "targetPort": 2000 + number,
        })
    };
    let ports: Vec<Value> = (0..ports).map(port).collect();
    spec["ports"] = ports.into();
    let mut object = json!({"metadata": {"namespace": NAMESPACE, "name": name}, "spec": spec});
    if object["spec"]["type"] == "LoadBalancer" {
        object["status"] = json!({"loadBalancer": {"ingress": [{"ip": LOAD_BALANCER}]}});
    }
    serde_json::from_value(object).context("this is no Service")
}

/// Creates a slice with these ports and endpoints.
fn slice(service: &str, ports: Range<u16>, endpoints: Range<u32>) -> Result<EndpointSlice> {
    let first = ports.start;
    let port = |number: u16| json!({"name": format!("p{number}"), "protocol": "TCP", "port": 2000 + number});
    let ports: Vec<Value> = ports.map(port).collect();
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

#[cfg(test)]
mod tests {
    use anyhow::ensure;
    use dataplane::MOST_ELEMENTS;

    use super::*;

    /// The row would otherwise measure objects that a tenant can exceed.
    #[test]
    fn the_largest_objects_have_the_largest_lists() -> Result<()> {
        let large = LargeObjects::new(100)?;
        let specs = || {
            large
                .services
                .iter()
                .filter_map(|service| service.spec.as_ref())
        };
        let ports = specs().filter_map(|spec| spec.ports.as_ref()).map(Vec::len);
        ensure!(ports.max() >= Some(8_000));
        let external_ips = specs().filter_map(|spec| spec.external_ips.as_ref());
        ensure!(external_ips.map(Vec::len).max() >= Some(1_000));
        let ranges = specs().filter_map(|spec| {
            let ranges = spec.load_balancer_source_ranges.as_ref()?.len();
            Some(ranges * spec.ports.as_ref()?.len())
        });
        let ranges = ranges.max().context("a Service has source ranges")?;
        ensure!(
            (MOST_ELEMENTS / 2..MOST_ELEMENTS).contains(&ranges),
            "all of it is served"
        );
        let mut statuses = large
            .services
            .iter()
            .filter_map(|service| service.status.as_ref());
        ensure!(
            statuses.next().is_some(),
            "source ranges need an address of a load balancer"
        );
        let slices = large.slices.iter();
        let ports = slices
            .filter_map(|slice| slice.ports.as_ref())
            .map(Vec::len);
        ensure!(
            ports.max() == Some(20_000),
            "as many as the API server accepts"
        );
        // An API server accepts requests of 3 MB.
        for service in &large.services {
            ensure!(serde_json::to_vec(service)?.len() < 3_000_000);
        }
        for slice in &large.slices {
            ensure!(serde_json::to_vec(slice)?.len() < 3_000_000);
        }
        Ok(())
    }
}
