//! Runs Kubernetes' own end-to-end tests against a service proxy: `make e2e`, and ten of them in
//! `make test`.
//!
//! ```text
//!   real cluster -- Stand: the proxy, and a router for load balancers
//!        ^
//!   Suite: ginkgo and e2e.test with a Selection -> ginkgo's report
//!                                                                  | parse
//!   docs/conformance.md <- render <- Comparison of both proxies <- Run, one of a proxy
//! ```
//!
//! The real kube-proxy runs on the same cluster, to distinguish failures of the cluster from
//! failures of Signpost.

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

use selection::Omitted;

/// The service proxy on the nodes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Proxy {
    /// Signpost, installed by its chart.
    Signpost,
    /// kube-proxy in nftables mode.
    KubeProxy,
}

/// The results of one run of the tests with one proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The proxy.
    pub proxy: Proxy,
    /// The environment.
    pub setting: Setting,
    /// The time from the start of the first test to the end of the last.
    pub duration: Duration,
    /// The outcome of each test, sorted.
    pub tests: BTreeMap<Group, BTreeMap<String, Outcome>>,
    /// The number of tests that were not run, by reason.
    pub left_out: BTreeMap<Omitted, usize>,
}

/// The environment of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The version of Kubernetes and its tests, such as `v1.36.2`.
    pub kubernetes: String,
    /// The version of the proxy.
    pub proxy: String,
    /// The kernel's release.
    pub kernel: String,
    /// The container runtime, such as `containerd://1.6.20`.
    pub containers: String,
    /// The number of nodes.
    pub nodes: usize,
}

/// The subject of tests: the texts of their ginkgo containers, such as `[sig-network] Services`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Group(pub String);

/// The outcome of a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The test passed.
    Passed,
    /// The test failed or was interrupted.
    Failed {
        /// Its message in one line.
        message: String,
    },
    /// The test skipped itself as not applicable.
    Skipped {
        /// Its reason in one line.
        reason: String,
    },
}

// === impl Proxy ===

impl Proxy {
    /// All proxies, Signpost first.
    pub const ALL: [Proxy; 2] = [Proxy::Signpost, Proxy::KubeProxy];

    /// Returns the name on the command line and in file names.
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
    /// Adds tests from a later call of the suite. Their outcome replaces that of the same test in
    /// an earlier call.
    pub fn add(&mut self, tests: BTreeMap<Group, BTreeMap<String, Outcome>>) {
        for (group, tests) in tests {
            self.tests.entry(group).or_default().extend(tests);
        }
    }

    /// Returns the group, name and outcome of each test.
    pub fn outcomes(&self) -> impl Iterator<Item = (&Group, &str, &Outcome)> {
        self.tests.iter().flat_map(|(group, tests)| {
            let tests = tests.iter();
            tests.map(move |(name, outcome)| (group, name.as_str(), outcome))
        })
    }

    /// Saves the run for [`Run::read`].
    pub fn save(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("a run can be written as JSON")?;
        fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
    }

    /// Reads a saved run.
    pub fn read(file: &Path) -> Result<Run> {
        let text = fs::read_to_string(file)
            .with_context(|| format!("failed to read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no run", file.display()))
    }
}
