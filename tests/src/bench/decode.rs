//! How fast Signpost decodes objects from the API server, and how much memory it keeps for them.

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use catalog::object::EndpointSlice;
use catalog::{Catalog, Event};
use rustix::param::page_size;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The result of the measurement.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Decoded {
    /// EndpointSlices per second in one thread.
    pub slices_per_second: f64,
    /// The additional memory of the process per slice.
    pub bytes_per_slice: f64,
    /// The length of one slice as JSON.
    pub bytes_of_json: f64,
}

/// Decodes `slices` EndpointSlices with `endpoints` endpoints each in the format of the API server,
/// and stores them. Must run in a fresh process: memory that was already free would not count.
pub fn measure_decoding(slices: u32, endpoints: u32) -> Result<Decoded> {
    let mut catalog = Catalog::new("node-1");
    catalog.apply(Event::<EndpointSlice>::Init);
    // One-time allocations of the first slice do not count for each slice.
    let _: EndpointSlice = serde_json::from_str(&slice(slices, endpoints))?;
    let before = observe_resident()?;
    let (mut spent, mut length) = (Duration::ZERO, 0);
    for number in 0..slices {
        let text = slice(number, endpoints);
        length += text.len();
        let started = Instant::now();
        let slice: EndpointSlice =
            serde_json::from_str(&text).context("this is no EndpointSlice")?;
        catalog.apply(Event::InitApply(slice));
        spent += started.elapsed();
    }
    catalog.apply(Event::<EndpointSlice>::InitDone);
    let grown = observe_resident()?.saturating_sub(before);
    let count = f64::from(slices);
    Ok(Decoded {
        slices_per_second: count / spent.as_secs_f64(),
        bytes_per_slice: f64::from(u32::try_from(grown)?) / count,
        bytes_of_json: f64::from(u32::try_from(length)?) / count,
    })
}

/// Returns a slice as the EndpointSlice controller writes it, with the fields that the API server
/// adds.
fn slice(number: u32, endpoints: u32) -> String {
    let [_, a, b, c] = number.to_be_bytes();
    let mut uid = String::new();
    // Writing to a String cannot fail.
    let _ = write!(uid, "5f0c{number:08x}-1c7e-4f0e-9d3c-0123456789ab");
    let endpoint = |index: u32| {
        json!({
            "addresses": [format!("10.{}.{b}.{c}", 128 + (index + u32::from(a)) % 128)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{}", index % 100),
            "targetRef": {
                "kind": "Pod", "namespace": "bench",
                "name": format!("service-{number}-7d9c5b8f6d-{index:05}"), "uid": uid,
            },
            "zone": "a",
        })
    };
    let endpoints: Vec<_> = (0..endpoints).map(endpoint).collect();
    let owner = json!([{
        "apiVersion": "v1", "kind": "Service", "name": format!("service-{number}"), "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let managed = json!([{
        "manager": "kube-controller-manager", "operation": "Update",
        "apiVersion": "discovery.k8s.io/v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:addressType": {}, "f:endpoints": {}, "f:ports": {},
            "f:metadata": {
                "f:generateName": {}, "f:labels": {".": {}, "f:kubernetes.io/service-name": {}},
            },
        },
    }]);
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "bench",
            "name": format!("service-{number}-x7k2p"),
            "generateName": format!("service-{number}-"),
            "uid": uid,
            "resourceVersion": number.to_string(),
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "kubernetes.io/service-name": format!("service-{number}"),
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
            "ownerReferences": owner,
            "managedFields": managed,
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
        "endpoints": endpoints,
    })
    .to_string()
}

fn observe_resident() -> Result<usize> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_whitespace().nth(1);
    let pages: usize = pages
        .context("the second number is resident pages")?
        .parse()?;
    Ok(pages * page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slice_is_decoded_whole() -> Result<()> {
        let decoded = measure_decoding(50, 3)?;
        assert!(decoded.slices_per_second > 0.0);
        assert!(decoded.bytes_of_json > 500.0, "{decoded:?}");
        Ok(())
    }
}
