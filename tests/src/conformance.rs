//! Kubernetes' own end-to-end tests as a judge of a service proxy: `make e2e`, and the ten of them in
//! `make test`.
//!
//! ```text
//!   real cluster -- Stand: the proxy, and a router for load balancers
//!        ^
//!   Suite: ginkgo and e2e.test, of what a Selection selects -> ginkgo's report
//!                                                                  | parse
//!   docs/conformance.md <- render <- Comparison of both proxies <- Run, one of a proxy
//! ```
//!
//! The real kube-proxy is run on the same cluster, so that a failure of the cluster is told from one
//! of ours.

pub mod api_server_restart;
pub mod comparison;
pub mod document;
pub mod ginkgo;
pub mod load_balancers;
pub mod proxies;
pub mod selection;
pub mod suite;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use selection::LeftOut;

/// Who serves Services on the nodes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Proxy {
    /// Ours, installed by its chart.
    Signpost,
    /// That of Kubernetes, in nftables mode.
    KubeProxy,
}

/// What is known after the tests were run once, with one proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// With which.
    pub proxy: Proxy,
    /// On what.
    pub setting: Setting,
    /// From the first test to the end of the last.
    pub duration: Duration,
    /// What came of each test, in order.
    pub tests: BTreeMap<Group, BTreeMap<String, Outcome>>,
    /// How many tests there are besides, by why they were not run.
    pub left_out: BTreeMap<LeftOut, usize>,
}

/// What tests were run on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The version of the tests and of everything else of Kubernetes, as `v1.36.2`.
    pub kubernetes: String,
    /// The version of the proxy.
    pub proxy: String,
    /// The kernel's release.
    pub kernel: String,
    /// What ran containers, as `containerd://1.6.20`.
    pub containers: String,
    /// How many nodes there were.
    pub nodes: usize,
}

/// What tests are about: the texts of the containers that they are in, as `[sig-network] Services`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Group(pub String);

/// What came of a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// What it asks for is so.
    Passed,
    /// It is not, or the test ended otherwise than by itself.
    Failed {
        /// What it says, in one line.
        message: String,
    },
    /// It decided itself that there is nothing for it here.
    Skipped {
        /// Why, as it says, in one line.
        reason: String,
    },
}

// === impl Proxy ===

impl Proxy {
    /// All, ours first.
    pub const ALL: [Proxy; 2] = [Proxy::Signpost, Proxy::KubeProxy];

    /// As on the command line, and in names of files.
    pub fn name(self) -> &'static str {
        match self {
            Proxy::Signpost => "signpost",
            Proxy::KubeProxy => "kube-proxy",
        }
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Proxy::Signpost => "Signpost",
            Proxy::KubeProxy => "kube-proxy",
        })
    }
}

// === impl Run ===

impl Run {
    /// Adds tests that were run later, by another call of the suite. It is theirs what came of a test
    /// that is in both.
    pub fn add(&mut self, tests: BTreeMap<Group, BTreeMap<String, Outcome>>) {
        for (group, tests) in tests {
            self.tests.entry(group).or_default().extend(tests);
        }
    }

    /// Group, name and outcome of each test.
    pub fn outcomes(&self) -> impl Iterator<Item = (&Group, &str, &Outcome)> {
        self.tests.iter().flat_map(|(group, tests)| {
            let tests = tests.iter();
            tests.map(move |(name, outcome)| (group, name.as_str(), outcome))
        })
    }

    /// Keeps it for [`Run::read`].
    pub fn save(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("a run can be written as JSON")?;
        fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
    }

    /// One that was kept.
    pub fn read(file: &Path) -> Result<Run> {
        let text = fs::read_to_string(file)
            .with_context(|| format!("failed to read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no run", file.display()))
    }
}
