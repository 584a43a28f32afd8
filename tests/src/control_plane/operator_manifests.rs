//! The manifests that an operator and its agents require.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::ControlPlane;

/// The files in the order of application.
pub const OPERATOR_MANIFESTS: [&str; 6] = [
    "deploy/namespace.yaml",
    "crds/generated/proxyprofiles.yaml",
    "crds/generated/nodeproxies.yaml",
    "deploy/rbac-operator.yaml",
    "deploy/rbac-agent.yaml",
    "deploy/admission-policy.yaml",
];

// === impl ControlPlane ===

impl ControlPlane {
    /// Applies [`OPERATOR_MANIFESTS`]; returns when the API server serves the kinds.
    pub fn apply_operator_manifests(&self) -> Result<()> {
        for file in OPERATOR_MANIFESTS {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
            let text =
                fs::read_to_string(&path).with_context(|| format!("failed to read {file}"))?;
            self.apply(&text)?;
        }
        let established = "--for=condition=Established";
        self.kubectl(&["wait", "crd", "--all", established, "--timeout=60s"])?;
        Ok(())
    }
}
