//! The CustomResourceDefinitions and permissions that are installed before the programs start.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::control_plane::{ControlPlane, ServiceAccount};
use crate::deadline::wait_for;

/// The namespace of the manifests.
const NAMESPACE: &str = "signpost-system";
/// How long the API server may take to serve a new kind or to apply a new RBAC rule.
const PROMPTLY: Duration = Duration::from_secs(30);
/// The installation manifests except for the Pods: the tests run the programs as processes.
const MANIFESTS: [&str; 4] = [
    "namespace.yaml",
    "rbac-agent.yaml",
    "rbac-operator.yaml",
    "admission-policy.yaml",
];

/// Applies the CustomResourceDefinitions and the permissions of the source tree; returns when both
/// are in force.
pub(super) fn install(control_plane: &ControlPlane) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let definitions = ["nodeproxies", "proxyprofiles"]
        .map(|kind| root.join("crds/generated").join(format!("{kind}.yaml")));
    let permissions = MANIFESTS.map(|file| root.join("deploy").join(file));
    let mut all = String::new();
    for file in definitions.iter().chain(&permissions) {
        let text = fs::read_to_string(file);
        let text = text.with_context(|| format!("failed to read {}", file.display()))?;
        all.push_str("---\n");
        all.push_str(&text);
    }
    control_plane.apply(&all)?;
    wait_for("the new kinds to be served", PROMPTLY, || {
        let listed = control_plane.kubectl(&["get", "proxyprofiles,nodeproxies"]);
        Ok(listed.ok())
    })?;
    wait_for("the agents' permissions", PROMPTLY, || {
        let account = format!("--as=system:serviceaccount:{NAMESPACE}:signpost-agent");
        let asked = [
            "auth",
            "can-i",
            "list",
            "endpointslices",
            "--all-namespaces",
            &account,
        ];
        // The command prints "no" and fails until the permission is in force.
        Ok(control_plane.kubectl(&asked).ok())
    })?;
    Ok(())
}

/// Returns the operator's kubeconfig.
pub(super) fn kubeconfig_of_operator(control_plane: &ControlPlane) -> Result<PathBuf> {
    control_plane.kubeconfig_of_account(&ServiceAccount::new(NAMESPACE, "signpost-operator"))
}

/// Returns the kubeconfig of the agent on `node`, which must exist: its token is bound to the node
/// as the token of a Pod on it would be.
pub(super) fn kubeconfig_of_agent(control_plane: &ControlPlane, node: &str) -> Result<PathBuf> {
    let account = ServiceAccount::new(NAMESPACE, "signpost-agent").on_node(node);
    control_plane.kubeconfig_of_account(&account)
}
