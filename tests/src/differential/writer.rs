//! Writes the objects of a round to the API server.

use anyhow::Result;
use dataplane::Family;
use serde_json::{Value, json};
use testkit::address_plan as addresses;

use super::manifests::{
    Canary, NAMESPACE, names_of_slices, service_object, slice_objects, status_object, zone_of,
};
use super::population::{Kind, Population, Service};
use crate::control_plane::ControlPlane;

/// What the cluster autoscaler plans for node 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeFate {
    /// It stays.
    Stays,
    /// It will be deleted: load balancers must stop sending to it.
    Leaves,
}

/// Writes objects to one API server.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    pub(super) control_plane: &'a ControlPlane,
}

// === impl Writer ===

impl Writer<'_> {
    /// Writes the objects of every round: the namespace, and node 1 as its kubelet would write it.
    pub(super) fn apply_setting(&self, fate: NodeFate) -> Result<()> {
        let taints = match fate {
            NodeFate::Stays => json!([]),
            NodeFate::Leaves => {
                json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}])
            }
        };
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": addresses::NODE,
                "labels": {"topology.kubernetes.io/zone": zone_of(1)},
            },
            "spec": {
                "podCIDRs": Family::ALL.map(|family| addresses::pod_cidr(1, family)),
                "taints": taints,
            },
        });
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE},
        });
        self.apply_objects(&[namespace, node], &[])?;
        let address = |family| addresses::node_address(1, family);
        let own =
            Family::ALL.map(|family| json!({"type": "InternalIP", "address": address(family)}));
        let status = json!({"status": {"addresses": own}}).to_string();
        let node = format!("node/{}", addresses::NODE);
        self.control_plane.patch_status(&node, "default", &status)
    }

    /// Makes `population` the only test objects in the API server, and then writes the canary.
    pub(super) fn apply(&self, population: &Population, canary: Canary) -> Result<()> {
        self.delete(&population.deleted)?;
        let services = &population.services;
        let mut objects: Vec<Value> = services.iter().map(service_object).collect();
        objects.extend(services.iter().flat_map(slice_objects));
        self.apply_objects(&objects, &[])?;
        let balanced = services.iter().filter(|s| s.kind == Kind::LoadBalancer);
        let statuses: Vec<Value> = balanced.map(status_object).collect();
        self.apply_objects(&statuses, &["--subresource=status"])?;
        self.apply_objects(&canary.objects(), &[])
    }

    /// Deletes all Services and EndpointSlices of the test.
    pub(super) fn clear(&self) -> Result<()> {
        let namespace = format!("--namespace={NAMESPACE}");
        let everything = ["delete", "services,endpointslices", "--all", &namespace];
        self.control_plane.kubectl(&everything).map(drop)
    }

    /// Applies `objects` as their only field manager, so that omitted fields are removed.
    pub(super) fn apply_objects(&self, objects: &[Value], more: &[&str]) -> Result<()> {
        if objects.is_empty() {
            return Ok(());
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.control_plane.apply_as_manager(&list.to_string(), more)
    }

    fn delete(&self, services: &[Service]) -> Result<()> {
        let slices = services.iter().flat_map(names_of_slices);
        let slices = slices.map(|name| format!("endpointslice/{name}"));
        let services = services.iter().map(|s| format!("service/{}", s.name()));
        let names: Vec<String> = services.chain(slices).collect();
        if names.is_empty() {
            return Ok(());
        }
        let namespace = format!("--namespace={NAMESPACE}");
        let mut arguments = vec!["delete", "--ignore-not-found", &namespace];
        arguments.extend(names.iter().map(String::as_str));
        self.control_plane.kubectl(&arguments).map(drop)
    }
}
