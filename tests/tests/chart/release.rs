//! A release on a real API server, from installation to removal. No kubelet runs its Pods: if a
//! test needs the operator, it runs as a process with the permissions of its Pod.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tests::binaries;
use tests::control_plane::{ADMINISTRATOR, ControlPlane, Options, ServiceAccount};
use tests::deadline::wait_for;
use tests::network::Process;

use crate::helm::{Cluster, Helm, NAMESPACE, chart, repository};

/// Everything happens within seconds; the rest is a reserve for busy machines.
const DEADLINE: Duration = Duration::from_secs(60);

/// The kinds of objects that a release could leave behind, besides CustomResourceDefinitions.
const KINDS: &str = "daemonsets,deployments,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,poddisruptionbudgets,validatingadmissionpolicies,validatingadmissionpolicybindings";

/// A cluster and a Helm for it.
struct Stage {
    control_plane: ControlPlane,
    helm: Helm,
}

// === impl Stage ===

impl Stage {
    fn start(options: Options) -> Result<Stage> {
        let control_plane = ControlPlane::start(options)?;
        let kubeconfig = control_plane.kubeconfig(ADMINISTRATOR)?;
        let helm = Helm::new(Cluster::Kubeconfig(kubeconfig))?;
        Ok(Stage {
            control_plane,
            helm,
        })
    }

    /// Runs Helm on a chart: `install signpost CHART …`.
    fn helm(&self, verb: &str, release: &str, chart: &Path, more: &[&str]) -> Result<String> {
        let chart = chart.to_str().context("the path of the chart is text")?;
        let arguments = [verb, release, chart, "--set=apiServer.host=192.0.2.10"];
        self.helm.run(&[&arguments, more].concat())
    }

    fn install(&self, more: &[&str]) -> Result<String> {
        let more = [&["--create-namespace"], more].concat();
        self.helm("install", "signpost", &chart(), &more)
    }

    /// Runs the operator until it has created the initial profile, if there is one, and deleted its
    /// ConfigMap.
    fn run_operator_until_the_profile_exists(&self) -> Result<()> {
        let account = ServiceAccount::new(NAMESPACE, "signpost-operator");
        let mut command = Command::new(binaries::find("signpost-operator")?);
        command
            .args(["run", "--metrics-address=127.0.0.1:0", "--kubeconfig"])
            .arg(self.control_plane.kubeconfig_of_account(&account)?);
        let _operator = Process::start("signpost-operator", command)?;
        wait_for("the initial profile to be created", DEADLINE, || {
            Ok((!self.has_initial_profile()?).then_some(()))
        })
    }

    /// Whether the ConfigMap with the initial profile exists.
    fn has_initial_profile(&self) -> Result<bool> {
        let namespace = format!("--namespace={NAMESPACE}");
        let name = "configmap/signpost-initial-profile";
        let arguments = [
            "get",
            name,
            &namespace,
            "--ignore-not-found",
            "--output=name",
        ];
        Ok(!self.control_plane.kubectl(&arguments)?.is_empty())
    }

    /// Uninstalls the release and waits until nothing is left except what the chart keeps.
    fn uninstall(&self) -> Result<()> {
        self.helm.run(&["uninstall", "signpost"])?;
        wait_for("nothing to be left of the release", DEADLINE, || {
            let label = "--selector=app.kubernetes.io/name=signpost";
            let all = ["get", KINDS, "--all-namespaces", "--output=name", label];
            let left = self.control_plane.kubectl(&all)?;
            Ok(left.trim().is_empty().then_some(()))
        })
    }

    /// Returns the profile of this name, which must exist. Retries because the client may have
    /// cached the API server's list of kinds before this kind existed.
    fn profile(&self, name: &str) -> Result<Value> {
        let arguments = ["get", "proxyprofile", name, "--output=json"];
        let text = wait_for("the kind to be listed", DEADLINE, || {
            Ok(self.control_plane.kubectl(&arguments).ok())
        })?;
        Ok(serde_json::from_str(&text)?)
    }

    fn priority_of_the_profile(&self) -> Result<Value> {
        Ok(self.profile("default")?["spec"]["priority"].clone())
    }

    /// Returns the CustomResourceDefinition of a kind, which must not be terminating.
    fn kind(&self, name: &str) -> Result<Value> {
        let arguments = ["get", "crd", name, "--output=json"];
        let kind: Value = serde_json::from_str(&self.control_plane.kubectl(&arguments)?)?;
        let deleted = &kind["metadata"]["deletionTimestamp"];
        // A terminating definition and its objects can still be read for a while.
        ensure!(deleted.is_null(), "{name} was deleted at {deleted}");
        Ok(kind)
    }

    /// Returns the columns of `kubectl get proxyprofiles`.
    fn columns(&self) -> Result<String> {
        let kind = self.kind("proxyprofiles.signpost.dev")?;
        Ok(kind["spec"]["versions"][0]["additionalPrinterColumns"].to_string())
    }
}

/// Returns a copy of the chart as a later version, with an additional column and another version
/// number.
fn later_chart() -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let copied = Command::new("cp")
        .arg("--recursive")
        .arg(chart().join("."))
        .arg(folder.path())
        .status()?;
    ensure!(copied.success(), "failed to copy the chart: {copied}");
    let column = "  - additionalPrinterColumns:\n    - jsonPath: .spec.syncPeriod\n      name: Later\n      type: string\n";
    for (file, from, to) in [
        (
            "files/crds/proxyprofiles.yaml",
            "  - additionalPrinterColumns:\n",
            column,
        ),
        ("Chart.yaml", "\nversion: ", "\nversion: 99"),
    ] {
        let file = folder.path().join(file);
        let text = fs::read_to_string(&file)?;
        ensure!(text.contains(from), "{} has no {from:?}", file.display());
        fs::write(&file, text.replacen(from, to, 1))?;
    }
    Ok(folder)
}

#[test]
fn a_release_is_installed_upgraded_with_its_kinds_and_removed_without_them() -> Result<()> {
    let stage = Stage::start(Options::default())?;
    let notes = stage.install(&[])?;
    stage.run_operator_until_the_profile_exists()?;
    let next = "kubectl --namespace signpost-system rollout status daemonset/signpost-agent";
    ensure!(notes.contains(next), "{notes}");
    ensure!(!notes.contains("kube-proxy runs"), "{notes}");
    ensure!(stage.priority_of_the_profile()? == 1000);

    let Err(error) = stage.helm("install", "another", &chart(), &[]) else {
        bail!("a second installation is let in");
    };
    ensure!(
        error.to_string().contains("cannot be imported"),
        "{error:#}"
    );

    // From here on the profile contains a change by the user.
    let edit = r#"--patch={"spec": {"priority": 7}}"#;
    let patch = ["patch", "proxyprofile", "default", "--type=merge", edit];
    stage.control_plane.kubectl(&patch)?;

    ensure!(!stage.columns()?.contains("Later"));
    stage.helm("upgrade", "signpost", later_chart()?.path(), &[])?;
    ensure!(
        stage.columns()?.contains("Later"),
        "the kind is the old one"
    );
    ensure!(stage.priority_of_the_profile()? == 7, "after an upgrade");
    ensure!(!stage.has_initial_profile()?, "an upgrade brings it again");

    stage.uninstall()?;
    stage.kind("nodeproxies.signpost.dev")?;
    ensure!(stage.columns()?.contains("Later"), "after a removal");
    ensure!(stage.priority_of_the_profile()? == 7, "after a removal");

    stage.install(&[])?;
    ensure!(
        !stage.columns()?.contains("Later"),
        "the kind is the new one"
    );
    stage.run_operator_until_the_profile_exists()?;
    ensure!(stage.priority_of_the_profile()? == 7, "installed again");
    stage.uninstall()
}

#[test]
fn t162_an_installation_succeeds_where_a_new_kind_is_served_late() -> Result<()> {
    let stage = Stage::start(Options {
        api_server_count: 3,
        ..Options::default()
    })?;
    stage.install(&["--set=profile.name=first", "--set=profile.spec.priority=3"])?;
    stage.run_operator_until_the_profile_exists()?;
    let profile = stage.profile("first")?;
    ensure!(profile["spec"]["priority"] == 3, "{profile}");
    let component = &profile["metadata"]["labels"]["app.kubernetes.io/component"];
    ensure!(component == "profile", "{profile}");
    Ok(())
}

/// Failure story T407: no operator has run, Helm leaves the ConfigMap with the initial profile, and the
/// operator of a later release, which is to create none, creates that profile.
#[test]
fn t407_a_release_without_a_profile_creates_none_that_an_earlier_one_has_left() -> Result<()> {
    let stage = Stage::start(Options::default())?;
    stage.install(&["--set=profile.name=first"])?;
    stage.uninstall()?;
    ensure!(stage.has_initial_profile()?, "there is nothing to replace");
    stage.install(&["--set=profile.create=false"])?;
    stage.run_operator_until_the_profile_exists()?;
    let list = ["get", "proxyprofiles", "--output=name"];
    let profiles = stage.control_plane.kubectl(&list)?;
    ensure!(profiles.trim().is_empty(), "{profiles}");
    stage.uninstall()
}

#[test]
fn what_was_installed_from_plain_manifests_is_taken_over() -> Result<()> {
    let stage = Stage::start(Options::default())?;
    for folder in ["deploy/namespace.yaml", "crds/generated", "deploy"] {
        let folder = repository().join(folder);
        let file = format!("--filename={}", folder.display());
        stage.control_plane.kubectl(&["apply", &file])?;
    }
    let Err(error) = stage.install(&[]) else {
        bail!("objects of another owner are taken over without --take-ownership");
    };
    ensure!(
        error.to_string().contains("cannot be imported"),
        "{error:#}"
    );
    // Fails if a selector differs: the selector of a DaemonSet is immutable.
    stage.install(&["--take-ownership"])?;
    stage.uninstall()
}

#[test]
fn a_kube_proxy_that_runs_is_pointed_out() -> Result<()> {
    let stage = Stage::start(Options::default())?;
    stage.control_plane.apply(
        "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec: {containers: [{name: kube-proxy, image: none.invalid/kube-proxy}]}
",
    )?;
    let notes = stage.install(&["--dry-run=server"])?;
    ensure!(
        notes.contains("kube-proxy runs in this cluster too"),
        "{notes}"
    );
    ensure!(notes.contains("patch proxyprofile default "), "{notes}");
    ensure!(
        notes.contains("  kubectl signpost status --wait"),
        "{notes}"
    );
    // Without a profile of the chart, its notes wait for none and name none.
    let notes = stage.install(&["--dry-run=server", "--set=profile.create=false"])?;
    for (line, is_there) in [
        ("profile.create is off", true),
        ("  kubectl signpost check\n", true),
        ("patch proxyprofile PROFILE ", true),
        ("kubectl wait", false),
        ("status --wait", false),
    ] {
        ensure!(notes.contains(line) == is_there, "{line}: {notes}");
    }
    Ok(())
}
