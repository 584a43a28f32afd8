//! Converts the addresses of node ports, and the detection of traffic of local Pods.

use crds::address::Cidr;
use serde_json::{Value, json};

use super::Import;

/// The value of detectLocalMode that an empty one means.
pub(super) const CLUSTER_CIDR: &str = "ClusterCIDR";

impl Import {
    pub(super) fn node_ports(&mut self) {
        let entries = match self.source.take("nodePortAddresses") {
            None => return,
            Some(Value::Array(entries)) => entries,
            Some(other) => {
                return self.leave_out(
                    "nodePortAddresses",
                    format!("{other} is not a list; it is left out"),
                );
            }
        };
        let mut addresses: Vec<String> = Vec::new();
        for entry in &entries {
            match entry.as_str().unwrap_or_default() {
                // Keywords of kube-proxy 1.37.
                "localhost" => self.set("nodePorts.localhost", json!("userspace")),
                "all" => addresses.extend(["0.0.0.0/0".to_owned(), "::/0".to_owned()]),
                "primary" => addresses.push("primary".to_owned()),
                cidr if cidr.parse::<Cidr>().is_ok() => addresses.push(cidr.to_owned()),
                _ => self.leave_out(
                    "nodePortAddresses",
                    format!("{entry} is not a CIDR; it is left out"),
                ),
            }
        }
        addresses.dedup();
        if !addresses.is_empty() {
            self.set("nodePorts.addresses", json!(addresses));
        }
    }

    pub(super) fn detect_local(&mut self) {
        let mode = self.source.take_text("detectLocalMode");
        let mode = mode.unwrap_or_else(|| CLUSTER_CIDR.to_owned());
        for (field, of) in [
            ("bridgeInterface", "BridgeInterface"),
            ("interfaceNamePrefix", "InterfaceNamePrefix"),
        ] {
            if mode != of && self.spec["detectLocal"].get(field).is_some() {
                self.note(
                    &format!("detectLocal.{field}"),
                    format!("kube-proxy does not read it with detectLocalMode {mode}"),
                );
            }
        }
        match self.source.take("clusterCIDR") {
            Some(Value::String(text)) if !text.trim().is_empty() => {
                let cidrs = text.split(',').map(str::trim);
                let cidrs: Vec<&str> = cidrs.filter(|cidr| !cidr.is_empty()).collect();
                if mode == CLUSTER_CIDR {
                    self.set("detectLocal.clusterCIDRs", json!(cidrs));
                } else {
                    self.note(
                        "clusterCIDR",
                        format!("kube-proxy does not read it with detectLocalMode {mode}"),
                    );
                }
            }
            None | Some(Value::String(_)) if mode == CLUSTER_CIDR => {
                return self.leave_out(
                    "clusterCIDR",
                    "is empty, so kube-proxy treated no traffic as that of local Pods. The profile \
                     detects such traffic by each Node's spec.podCIDRs: if the network plugin gives \
                     Pods other addresses (`kubectl get pods -A -o wide` shows them), set \
                     spec.detectLocal before you apply the profile",
                );
            }
            None | Some(Value::String(_)) => {}
            Some(other) => {
                self.leave_out(
                    "clusterCIDR",
                    format!("{other} is not text; it is left out"),
                );
            }
        }
        // NodeCIDR is the default of a profile.
        if mode != "NodeCIDR" {
            self.set("detectLocal.mode", json!(mode));
        }
    }
}
