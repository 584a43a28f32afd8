//! Pods as processes and namespaces on their node.

use anyhow::{Context, Result, ensure};

use super::Node;
use super::node_files::CONTAINERD_SOCKET;
use crate::network::Namespace;

/// A part of a Pod with a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The sandbox process, which holds the namespaces of the Pod.
    Sandbox,
    /// The first process of the only container.
    Container,
}

// === impl Part ===

impl Part {
    /// Returns the value of containerd's label `io.cri-containerd.kind`.
    fn kind(self) -> &'static str {
        match self {
            Part::Sandbox => "sandbox",
            Part::Container => "container",
        }
    }
}

// === impl Node ===

impl Node {
    /// Returns the network of a Pod that runs here. It is valid while the Pod runs.
    pub fn observe_pod_network(&self, pod: &str) -> Result<Namespace> {
        let sandbox = self.observe_pod_process(pod, Part::Sandbox)?;
        Ok(Namespace::of_process(sandbox))
    }

    /// Returns the process ID of a part of a Pod that runs here.
    pub fn observe_pod_process(&self, pod: &str, part: Part) -> Result<u32> {
        let filter = format!(
            "labels.\"io.kubernetes.pod.name\"=={pod},labels.\"io.cri-containerd.kind\"=={}",
            part.kind()
        );
        let containers = self.ctr(&["containers", "list", "--quiet", &filter])?;
        let tasks = self.ctr(&["tasks", "list"])?;
        // A restarted container is listed twice but has only one running process.
        let running: Vec<u32> = tasks
            .lines()
            .filter_map(|line| running(line, &containers))
            .collect();
        ensure!(
            running.len() == 1,
            "{} runs {} processes for the {} of {pod}, not one",
            self.name(),
            running.len(),
            part.kind()
        );
        running.first().copied().context("there is one")
    }

    fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let address = format!("--address={CONTAINERD_SOCKET}");
        self.run(&[&["ctr", &address, "--namespace=k8s.io"], arguments].concat())
    }
}

/// Returns the process ID from a line of `TASK PID STATUS` if it is running and one of
/// `containers`.
fn running(line: &str, containers: &str) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [task, process, "RUNNING"] = words[..] else {
        return None;
    };
    let expected = containers.lines().any(|container| container == task);
    expected.then(|| process.parse().ok()).flatten()
}
