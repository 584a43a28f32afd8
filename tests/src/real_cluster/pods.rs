//! Pods as their node sees them: processes in namespaces.

use anyhow::{Context, Result, ensure};

use super::Node;
use super::node_files::CONTAINERD_SOCKET;
use crate::network::Namespace;

/// A process of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What holds its namespaces, as long as it is there.
    Sandbox,
    /// The first process of its only container.
    Container,
}

// === impl Part ===

impl Part {
    /// What containerd's label `io.cri-containerd.kind` says of it.
    fn kind(self) -> &'static str {
        match self {
            Part::Sandbox => "sandbox",
            Part::Container => "container",
        }
    }
}

// === impl Node ===

impl Node {
    /// The network of a Pod that runs here, for as long as it does.
    pub fn observe_pod_network(&self, pod: &str) -> Result<Namespace> {
        let sandbox = self.observe_pod_process(pod, Part::Sandbox)?;
        Ok(Namespace::of_process(sandbox))
    }

    /// The process id of a part of a Pod that runs here.
    pub fn observe_pod_process(&self, pod: &str, part: Part) -> Result<u32> {
        let filter = format!(
            "labels.\"io.kubernetes.pod.name\"=={pod},labels.\"io.cri-containerd.kind\"=={}",
            part.kind()
        );
        let containers = self.ctr(&["containers", "list", "--quiet", &filter])?;
        let tasks = self.ctr(&["tasks", "list"])?;
        // A container that was started again is there twice, and has one process.
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

/// The process id in a line of `TASK PID STATUS`, if it runs and is one of `containers`.
fn running(line: &str, containers: &str) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [task, process, "RUNNING"] = words[..] else {
        return None;
    };
    let wanted = containers.lines().any(|container| container == task);
    wanted.then(|| process.parse().ok()).flatten()
}
