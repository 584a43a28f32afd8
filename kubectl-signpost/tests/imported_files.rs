//! `config import` of files, without a cluster.

use std::fs;
use std::process::{Command, Output};

fn import(file: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kube-proxy.yaml");
    fs::write(&path, file).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-signpost"));
    let command = command.args(["config", "import", "--file"]).arg(path);
    command.output().expect("the program runs")
}

fn configuration(fields: &str) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n{fields}"
    )
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[test]
fn t236_a_pipeline_does_not_apply_a_profile_that_lacks_a_value() {
    let whole = import(&configuration("clusterCIDR: 10.0.0.0/8\n"));
    assert_eq!(whole.status.code(), Some(0), "{whole:?}");
    let lacking = import(&configuration("clusterCIDR: 10.0.0.0/33\n"));
    assert_eq!(lacking.status.code(), Some(3), "{lacking:?}");
    let said = text(&lacking.stderr);
    assert!(
        said.contains("spec.detectLocal: the profile detects"),
        "{said}"
    );
    assert!(text(&lacking.stdout).contains("kind: ProxyProfile"));
}

/// What kubeadm prints: `kubeadm config print init-defaults --component-configs KubeProxyConfiguration`.
#[test]
fn a_file_of_several_documents_has_the_configuration_in_one_of_them() {
    let others = "kind: InitConfiguration\n---\nkind: ClusterConfiguration\n---\n";
    let file = others.to_owned() + &configuration("detectLocalMode: NodeCIDR\n");
    let output = import(&file);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        text(&output.stdout).contains("mode: nftables"),
        "{output:?}"
    );
}

#[test]
fn a_fault_of_a_file_names_its_line_and_no_option_of_a_library() {
    let output = import(&configuration("mode: ipvs\n"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(
        said.contains("line 4 column 1: duplicate mapping key: mode"),
        "{said}"
    );
    assert!(said.contains("  next: correct the line"), "{said}");
    assert!(!said.contains("Options"), "{said}");
}

/// The second was ignored, and with it what it says of other nodes.
#[test]
fn t245_a_second_configuration_is_named_and_none_is_chosen() {
    let output = import(&format!("{}---\n{}", configuration(""), configuration("")));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(
        said.contains("there are 2 KubeProxyConfigurations in it"),
        "{said}"
    );
    assert!(said.contains("  next: give a file with one"), "{said}");
}

/// It read as "there is no KubeProxyConfiguration in it".
#[test]
fn t245_a_fault_in_the_text_of_a_config_map_names_its_key_and_line() {
    let indented = |text: &str| {
        text.lines()
            .map(|line| format!("    {line}\n"))
            .collect::<String>()
    };
    let faulty = indented(&configuration("mode: ipvs\n"));
    let other = "  notes: |\n    a: b: no YAML\n";
    let output = import(&format!(
        "kind: ConfigMap\ndata:\n{other}  config.conf: |\n{faulty}"
    ));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(
        said.contains("the text of its key config.conf is neither YAML nor JSON"),
        "{said}"
    );
    assert!(
        said.contains("line 4 column 1: duplicate mapping key: mode"),
        "{said}"
    );
    let whole = indented(&configuration("detectLocalMode: NodeCIDR\n"));
    let output = import(&format!(
        "kind: ConfigMap\ndata:\n{other}  config.conf: |\n{whole}"
    ));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
