//! The life of Pods, with the test in the role of their kubelets.

use anyhow::{Context, Result};
use serde_json::Value;

use super::Cluster;
use super::shop::{NAMESPACE, Readiness, SPARE, WEB, Web};

impl Cluster {
    /// Reports in place of the kubelet whether a Pod is ready.
    pub fn set_readiness(&self, pod: Web, readiness: Readiness) -> Result<()> {
        let object = format!("pod/{}", pod.name);
        self.control_plane
            .patch_status(&object, NAMESPACE, &pod.status(readiness))
    }

    /// Creates a ready Pod.
    pub fn create_pod(&self, pod: Web) -> Result<()> {
        self.control_plane.apply(&pod.object())?;
        self.set_readiness(pod, Readiness::Ready)
    }

    /// Requests the deletion of a Pod. It is terminating until the test, in place of its kubelet,
    /// reports that it has ended.
    pub fn begin_to_delete_pod(&self, pod: Web) -> Result<()> {
        let namespace = format!("--namespace={}", NAMESPACE);
        let delete = ["delete", "pod", pod.name, &namespace, "--wait=false"];
        self.control_plane.kubectl(&delete).map(drop)
    }

    /// Reports that a Pod has ended, which removes the object.
    pub fn delete_pod(&self, pod: Web) -> Result<()> {
        let namespace = format!("--namespace={}", NAMESPACE);
        let now = [
            "--force",
            "--grace-period=0",
            "--ignore-not-found",
            "--wait=true",
        ];
        let mut delete = vec!["delete", "pod", pod.name, &namespace];
        delete.extend(now);
        self.control_plane.kubectl(&delete).map(drop)
    }

    /// Restores the idle state: the Pods of [`WEB`], ready, and no others.
    pub fn restore_pods(&self) -> Result<()> {
        let namespace = format!("--namespace={}", NAMESPACE);
        let pods: Value = self.get(&["pods", &namespace])?;
        let pods = pods["items"].as_array().context("a list has items")?;
        for pod in WEB.iter().chain([&SPARE]) {
            let found = pods
                .iter()
                .find(|object| object["metadata"]["name"] == pod.name);
            let going =
                found.is_some_and(|object| object["metadata"]["deletionTimestamp"].is_string());
            let expected = WEB.contains(pod);
            if going || (found.is_some() && !expected) {
                self.delete_pod(*pod)?;
            }
            let ready = !going
                && found
                    .is_some_and(|object| object["status"]["conditions"][0]["status"] == "True");
            if expected && !ready {
                self.create_pod(*pod)?;
            }
        }
        Ok(())
    }
}
