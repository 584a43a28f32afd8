//! `kubectl signpost` as users run it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::binaries;
use tests::control_plane::ADMINISTRATOR;
use tests::deadline::wait_for;

use crate::cluster::Cluster;
use crate::operator::Operator;
use crate::{DEADLINE, NODES};

/// The command line with the administrator's credentials.
pub(crate) struct CommandLine {
    program: PathBuf,
    kubeconfig: PathBuf,
}

// === impl CommandLine ===

impl CommandLine {
    pub(crate) fn of(cluster: &Cluster) -> Result<CommandLine> {
        Ok(CommandLine {
            program: binaries::find("kubectl-signpost")?,
            kubeconfig: cluster.control_plane.kubeconfig(ADMINISTRATOR)?,
        })
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.args(arguments).output().context("it runs")
    }

    /// Runs a command on a terminal of its own with this environment, such as `NO_COLOR=1`; returns
    /// what it prints there. `recorded` has that meanwhile.
    pub(crate) fn on_terminal(
        &self,
        environment: &str,
        arguments: &[&str],
        recorded: &Path,
    ) -> Result<String> {
        let (program, kubeconfig) = (self.program.display(), self.kubeconfig.display());
        let arguments = arguments.join(" ");
        let line = format!("env {environment} {program} --kubeconfig {kubeconfig} {arguments}");
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--flush", "--command", &line]);
        script.arg(recorded).env_remove("NO_COLOR");
        let output = script.stdin(Stdio::null()).output();
        let output = output.context("it runs")?;
        ensure!(output.status.success(), "{line}: {output:?}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a command, which must exit with this code; returns its output.
    pub(crate) fn expect(&self, code: i32, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let ended = output.status.code();
        ensure!(
            ended == Some(code),
            "{arguments:?} ended with {ended:?}, not {code}:\n{printed}\n{errors}"
        );
        Ok(printed)
    }
}

pub(crate) fn t143_a_rollout_is_followed_held_and_let_go_on_by_the_command_line(
    cluster: &mut Cluster,
) -> Result<()> {
    let cli = CommandLine::of(cluster)?;
    let text = cli.expect(3, &["status"])?;
    assert!(text.contains("There is no ProxyProfile"), "{text}");
    assert!(text.contains("n1, n2, n3"), "{text}");

    let _operator = Operator::start_with_profile(cluster)?;
    let text = cli.expect(3, &["nodes"])?;
    assert!(text.contains("NotReported on n1, n2, n3"), "{text}");
    for node in NODES {
        cluster.report_ready(node)?;
    }
    let text = cli.expect(0, &["status", "--wait", "--timeout=60s"])?;
    assert!(text.contains("ProxyProfile default: healthy"), "{text}");
    let text = cli.expect(0, &["nodes", "--output=json"])?;
    let listing: Value = serde_json::from_str(&text)?;
    assert_eq!(listing["nodes"].as_array().map(Vec::len), Some(3), "{text}");
    let text = cli.expect(0, &["nodes", "--not-ready"])?;
    assert_eq!(text, "no nodes\n");

    cli.expect(0, &["rollout", "pause", "default"])?;
    let text = cli.expect(0, &["rollout", "pause", "default"])?;
    assert!(text.contains("was paused already"), "{text}");
    let change = json!({"mode": "iptables", "paused": true});
    cluster.put_profile("default", change)?;
    let text = wait_for("the pause to be reported", DEADLINE, || {
        let output = cli.run(&["rollout", "status", "default", "--once"])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.contains("Paused").then_some(text))
    })?;
    assert!(text.contains("0 of 3 nodes updated"), "{text}");
    cli.expect(3, &["rollout", "status", "default"])?;

    cli.expect(0, &["rollout", "resume", "default"])?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "iptables")?;
        cluster.report_ready(node)?;
    }
    let text = cli.expect(0, &["rollout", "status", "default", "--timeout=60s"])?;
    assert!(text.contains("3 of 3 nodes updated"), "{text}");
    Ok(())
}

pub(crate) fn t158_a_rollout_is_aborted_tried_again_and_undone_by_the_command_line(
    cluster: &mut Cluster,
) -> Result<()> {
    let cli = CommandLine::of(cluster)?;
    let _operator = Operator::start_with_ready_nodes(cluster)?;
    let text = cli.expect(3, &["rollout", "abort", "default"])?;
    assert!(text.contains("no rollout is in progress"), "{text}");
    let text = cli.expect(3, &["rollout", "undo", "default"])?;
    assert!(text.contains("no configuration before"), "{text}");

    cluster.put_profile("default", json!({"mode": "iptables"}))?;
    cluster.wait_for_stamp("n1", "default", "iptables")?;
    let progresses = |reason: &str| {
        wait_for(&format!("the rollout to be {reason}"), DEADLINE, || {
            let output = cli.run(&["rollout", "status", "default", "--once"])?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(text.contains(reason).then_some(text))
        })
    };
    progresses("RollingOut")?;
    cli.expect(0, &["rollout", "abort", "default"])?;
    cluster.wait_for_stamp("n1", "default", "nftables")?;
    cluster.report_ready("n1")?;
    let text = progresses("RolledBack")?;
    assert!(text.contains("aborted"), "{text}");
    for node in ["n2", "n3"] {
        cluster.wait_for_stamp(node, "default", "nftables")?;
    }

    cli.expect(0, &["rollout", "retry", "default"])?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "iptables")?;
        cluster.report_ready(node)?;
    }
    cli.expect(0, &["rollout", "status", "default", "--timeout=60s"])?;
    let text = cli.expect(3, &["rollout", "retry", "default"])?;
    assert!(text.contains("has not failed"), "{text}");

    let text = cli.expect(0, &["rollout", "history", "default"])?;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines[1].contains("mode: \"nftables\" -> \"iptables\""),
        "{text}"
    );
    let text = cli.expect(0, &["rollout", "undo", "default"])?;
    assert!(
        text.contains("mode: \"iptables\" -> \"nftables\""),
        "{text}"
    );
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "nftables")?;
        cluster.report_ready(node)?;
    }
    cli.expect(0, &["rollout", "status", "default", "--timeout=60s"])?;

    // Without the plugin, in the way that the documentation has.
    let read = || cluster.get("proxyprofile", "default");
    let before = read()?.context("the profile is there")?;
    run_documented(cluster, ".status.history[1].spec")?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "iptables")?;
        cluster.report_ready(node)?;
    }
    cli.expect(0, &["rollout", "status", "default", "--timeout=60s"])?;
    let after = read()?.context("the profile is there")?;
    let expected = &before["status"]["history"][1]["configHash"];
    assert_eq!(after["status"]["targetHash"], *expected, "{after:#}");
    assert_eq!(after["spec"]["rollout"], before["spec"]["rollout"]);
    Ok(())
}

/// Runs the command of docs/rollouts.md that contains this text, for profile `default`.
fn run_documented(cluster: &Cluster, text: &str) -> Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/rollouts.md");
    let page = fs::read_to_string(page)?;
    let mut code = page.split('`');
    let found = code.find(|code| code.starts_with("kubectl ") && code.contains(text));
    let line = found.context("the page has no such command")?;
    let kubeconfig = cluster.control_plane.kubeconfig(ADMINISTRATOR)?;
    let kubectl = cluster.control_plane.kubectl_command(&kubeconfig);
    let words = [kubectl.get_program()]
        .into_iter()
        .chain(kubectl.get_args());
    let words: Vec<String> = words
        .map(|word| format!("'{}'", word.to_string_lossy()))
        .collect();
    let line = line.replace("NAME", "default");
    let script = format!(
        "kubectl() {{ command {} \"$@\"; }}\n{line}",
        words.join(" ")
    );
    let mut shell = Command::new("sh");
    shell.env_remove("KUBECONFIG").env("KUBERC", "off");
    let output = shell.args(["-c", &script]).output().context("it runs")?;
    ensure!(output.status.success(), "{line}: {output:?}");
    Ok(())
}

pub(crate) fn t144_errors_of_the_command_line_say_what_to_do_next(
    cluster: &mut Cluster,
) -> Result<()> {
    let cli = CommandLine::of(cluster)?;
    let failing = |arguments: &[&str]| -> Result<String> {
        let output = cli.run(arguments)?;
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let text = failing(&["status", "no-such"])?;
    assert!(
        text.contains("failed to read ProxyProfile no-such"),
        "{text}"
    );
    assert!(
        text.contains("\n  next: `kubectl get proxyprofiles"),
        "{text}"
    );
    let text = failing(&["--context=no-such", "status"])?;
    assert!(
        text.contains("next: `kubectl config get-contexts`"),
        "{text}"
    );
    // Wherever the flag is.
    for arguments in [
        ["-n", "shop", "trace", "pod/a", "10.96.0.1:443"],
        ["trace", "-n", "shop", "pod/a", "10.96.0.1:443"],
        ["trace", "pod/a", "10.96.0.1:443", "--namespace", "shop"],
    ] {
        let text = failing(&arguments)?;
        assert!(text.contains("Pod shop/a"), "{arguments:?}: {text}");
    }
    let output = cli.run(&["no-such"])?;
    assert_eq!(output.status.code(), Some(2));

    // After every failure, the last line states the next step.
    let folder = tempfile::tempdir()?;
    let file = |name: &str, text: &str| -> Result<String> {
        let file = folder.path().join(name);
        std::fs::write(&file, text)?;
        Ok(file.to_string_lossy().into_owned())
    };
    let missing = folder.path().join("missing").display().to_string();
    let (garbled, other) = (file("garbled", "{")?, file("other", "kind: Other")?);
    let busy = TcpListener::bind("127.0.0.1:0")?;
    let port = format!("--port={}", busy.local_addr()?.port());
    let ports = json!([{"name": "a", "port": 80}, {"name": "b", "port": 81}]);
    for (name, spec) in [
        ("headless", json!({"clusterIP": "None", "ports": ports})),
        ("two-ports", json!({"ports": ports})),
    ] {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
        cluster.control_plane.apply(&service.to_string())?;
    }
    let commands: [&[&str]; 22] = [
        &["explain", "svc/nothing"],
        &["explain", "svc/nothing", "--node", "no-such"],
        &["explain", "svc/nothing", "--all-nodes"],
        &["trace", "10.0.0.1", "10.96.0.1:443"],
        &["trace", "pod/no-such", "10.96.0.1:443"],
        &["trace", "node/n1", "svc/headless"],
        &["trace", "node/n1", "svc/two-ports"],
        &["trace", "node/n1", "node/n1:x"],
        &["nodes", "--context=no-such"],
        &["nodes", "--profile=no-such"],
        &["rollout", "pause", "no-such"],
        &["rollout", "undo", "no-such"],
        &["config", "effective", "no-such"],
        &["config", "diff", "no-such"],
        &["config", "diff", "--file", &missing],
        &["config", "import", "--file", &garbled],
        &["config", "import", "--file", &other],
        &["--namespace", "no-such", "config", "import"],
        &["version", "--context=no-such"],
        &["migrate", "takeover", "--node", "no-such"],
        &["sysdump", "--file", &other],
        &["dashboard", &port],
    ];
    for arguments in commands {
        let text = failing(arguments)?;
        let last = text.lines().last().unwrap_or_default();
        assert!(last.starts_with("  next: "), "{arguments:?}: {text}");
        assert!(!last.contains("if it fails again"), "{arguments:?}: {text}");
    }
    Ok(())
}

pub(crate) fn t145_kube_proxys_configuration_becomes_a_profile_of_the_cluster(
    cluster: &mut Cluster,
) -> Result<()> {
    let cli = CommandLine::of(cluster)?;
    let text = cli.expect(0, &["check", "--pre"])?;
    assert!(text.contains("ok     Kubernetes 1."), "{text}");
    let text = cli.expect(3, &["check"])?;
    assert!(text.contains("fault  no operator is ready"), "{text}");

    let configuration = "kind: KubeProxyConfiguration\n\
                         apiVersion: kubeproxy.config.k8s.io/v1alpha1\n\
                         mode: iptables\n\
                         clusterCIDR: 10.244.0.0/16\n";
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "data": {"config.conf": configuration},
    });
    cluster.control_plane.apply(&map.to_string())?;
    let profile = cli.expect(0, &["config", "import"])?;
    cluster.control_plane.apply(&profile)?;
    let text = cli.expect(3, &["config", "diff", "default"])?;
    assert!(
        text.contains("n1, n2, n3\n  the first configuration"),
        "{text}"
    );

    let _operator = Operator::start(cluster, "operator-1")?;
    for node in NODES {
        cluster.wait_for_stamp(node, "default", "iptables")?;
    }
    let text = cli.expect(3, &["config", "effective", "n1"])?;
    assert!(text.contains("not applied yet\nmode: iptables\n"), "{text}");
    cluster.report_ready("n1")?;
    cli.expect(0, &["config", "effective", "n1"])?;
    let text = cli.expect(0, &["version"])?;
    let version = env!("CARGO_PKG_VERSION");
    for line in [
        format!("kubectl-signpost   {version}"),
        // It runs as a process of this test, and not in a Pod.
        "operator           none found".to_owned(),
        format!("agent              {version} on 1 node"),
        "agent              unknown on 2 nodes".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    cli.expect(0, &["config", "diff", "default"])?;

    let folder = tempfile::tempdir()?;
    let file = folder.path().join("profile.yaml");
    std::fs::write(&file, format!("{profile}  conntrack: {{min: 7}}\n"))?;
    let file = file.to_str().context("the path is text")?;
    let text = cli.expect(3, &["config", "diff", "--file", file])?;
    assert_eq!(text, "n1, n2, n3\n  conntrack.min: 131072 -> 7\n");
    Ok(())
}
