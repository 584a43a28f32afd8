//! EndpointSlices: those written by the controller, and those written by the tests.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use dataplane::Family;
use serde_json::{Value, json};

use super::Cluster;
use super::shop::{NAMESPACE, Web, endpoints, slice_by_hand};
use crate::deadline::wait_for;

impl Cluster {
    /// Creates or changes an EndpointSlice of the Service `by-hand` with these Pods as its
    /// endpoints.
    pub fn apply_slice(&self, name: &str, pods: &[Web]) -> Result<()> {
        self.control_plane
            .apply(&slice_by_hand(name, pods))
            .map(drop)
    }

    /// Changes an existing EndpointSlice with a single request. `kubectl apply` first needs
    /// discovery data, which an API server that has just started cannot serve for many seconds.
    pub fn patch_slice(&self, name: &str, pods: &[Web]) -> Result<()> {
        let namespace = format!("--namespace={NAMESPACE}");
        let patch = json!({"endpoints": endpoints(pods)}).to_string();
        let object = ["patch", "endpointslice", name, &namespace];
        let change = ["--type=merge", "--patch", &patch];
        self.control_plane
            .kubectl(&[&object[..], &change].concat())
            .map(drop)
    }

    /// Deletes those of these EndpointSlices that exist.
    pub fn delete_slices(&self, names: &[&str]) -> Result<()> {
        let namespace = format!("--namespace={NAMESPACE}");
        let delete = ["delete", "endpointslice", &namespace, "--ignore-not-found"];
        self.control_plane
            .kubectl(&[&delete[..], names].concat())
            .map(drop)
    }

    /// Waits until the controller's EndpointSlices of the Service `web` have exactly these Pods as
    /// ready endpoints.
    pub fn wait_for_slices(&self, pods: &[Web], deadline: Duration) -> Result<()> {
        let addresses = pods
            .iter()
            .flat_map(|pod| Family::ALL.map(|family| pod.address(family)));
        let expected: BTreeSet<String> = addresses.map(|address| address.to_string()).collect();
        let namespace = format!("--namespace={NAMESPACE}");
        let of_web = "--selector=kubernetes.io/service-name=web";
        wait_for("the controller's EndpointSlices", deadline, || {
            let slices: Value = self.get(&["endpointslices", &namespace, of_web])?;
            let slices = slices["items"]
                .as_array()
                .context("a list has items")?
                .iter();
            let endpoints = slices
                .filter_map(|slice| slice["endpoints"].as_array())
                .flatten();
            let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true);
            let addresses = ready.filter_map(|endpoint| endpoint["addresses"][0].as_str());
            let addresses: BTreeSet<String> = addresses.map(str::to_owned).collect();
            Ok((addresses == expected).then_some(()))
        })
    }
}
