//! Writes the objects of a round to the API server.

use anyhow::Result;
use dataplane::Family;
use serde_json::{Value, json};
use testkit::address_plan as addresses;

use super::manifests::{
    Canary, NAMESPACE, names_of_slices, service_object, slice_objects, status_object, zone_of,
};
use super::population::{Kind, Population, Service};
use crate::control_plane::{ControlPlane, Objects};

/// What the cluster autoscaler plans for node 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeFate {
    /// It stays.
    Stays,
    /// It will be deleted: load balancers must stop sending to it.
    Leaves,
}

const SERVICES: Objects<'_> = Objects {
    api_version: "v1",
    kind: "Service",
    namespace: Some(NAMESPACE),
};
const SLICES: Objects<'_> = Objects {
    api_version: "discovery.k8s.io/v1",
    kind: "EndpointSlice",
    namespace: Some(NAMESPACE),
};

/// Writes objects to one API server.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    pub(super) control_plane: &'a ControlPlane,
}

// === impl Writer ===

impl Writer<'_> {
    /// Writes the objects of every round: the namespace, and node 1 as its kubelet would write it.
    pub(super) fn apply_setting(&self, fate: NodeFate) -> Result<()> {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE},
        });
        self.apply_objects(&[namespace])?;
        self.apply_node(fate, zone_of(1))?;
        let address = |family| addresses::node_address(1, family);
        let own =
            Family::ALL.map(|family| json!({"type": "InternalIP", "address": address(family)}));
        self.control_plane.merge_status(&[json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": addresses::NODE},
            "status": {"addresses": own},
        })])
    }

    /// Writes node 1, in this zone.
    pub(super) fn apply_node(&self, fate: NodeFate, zone: &str) -> Result<()> {
        let taints = match fate {
            NodeFate::Stays => json!([]),
            NodeFate::Leaves => {
                json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}])
            }
        };
        self.apply_objects(&[json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": addresses::NODE,
                "labels": {"topology.kubernetes.io/zone": zone},
            },
            "spec": {
                "podCIDRs": Family::ALL.map(|family| addresses::pod_cidr(1, family)),
                "taints": taints,
            },
        })])
    }

    /// Makes `population` the only test objects in the API server, and then writes the canary.
    pub(super) fn apply(&self, population: &Population, canary: Canary) -> Result<()> {
        self.delete(&population.deleted)?;
        let services = &population.services;
        let mut objects: Vec<Value> = services.iter().map(service_object).collect();
        objects.extend(services.iter().flat_map(slice_objects));
        self.apply_objects(&objects)?;
        let balanced = services.iter().filter(|s| s.kind == Kind::LoadBalancer);
        let statuses: Vec<Value> = balanced.map(status_object).collect();
        self.control_plane.merge_status(&statuses)?;
        self.apply_objects(&canary.objects())
    }

    /// Deletes all Services and EndpointSlices of the test.
    pub(super) fn clear(&self) -> Result<()> {
        let mut all = [SERVICES, SLICES].into_iter();
        all.try_for_each(|objects| self.control_plane.delete_selected(objects, ""))
    }

    /// Applies `objects` as their only field manager, so that omitted fields are removed.
    pub(super) fn apply_objects(&self, objects: &[Value]) -> Result<()> {
        self.control_plane.apply_as_manager(objects)
    }

    fn delete(&self, services: &[Service]) -> Result<()> {
        let slices: Vec<String> = services.iter().flat_map(names_of_slices).collect();
        let services: Vec<String> = services.iter().map(Service::name).collect();
        self.control_plane.delete(SERVICES, &services)?;
        self.control_plane.delete(SLICES, &slices)
    }
}
