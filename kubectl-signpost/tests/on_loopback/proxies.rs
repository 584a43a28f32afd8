//! Commands reach an API server behind a proxy.

use std::path::Path;
use std::process::{Command, Output};

use crate::server::{Server, write_kubeconfig};

/// Runs a command with one request, and with no other variables for proxies than these.
fn run(kubeconfig: &Path, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-signpost"));
    command.arg("--kubeconfig").arg(kubeconfig);
    command.args(["rollout", "history", "default"]);
    for name in [
        "HTTPS_PROXY",
        "https_proxy",
        "HTTP_PROXY",
        "http_proxy",
        "NO_PROXY",
        "no_proxy",
    ] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    command.output().expect("the program runs")
}

/// Failure story T432.
#[test]
fn t432_commands_go_through_a_proxy_unless_the_server_is_exempt() {
    let server = Server::start(|_| None);
    let proxy = server.url();
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = |server: &str, more: &str| write_kubeconfig(directory.path(), server, more);
    let begins = |output: &Output, expected: &str| {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let requests = server.requests();
        let first = requests.first().map_or("", String::as_str);
        assert!(first.starts_with(expected), "{first:?}: {errors}");
        assert!(errors.contains("it is forbidden"), "{errors}");
    };
    // Nothing resolves this name: only the proxy can reach it.
    let behind = "http://signpost.invalid:6443";
    let connect = "CONNECT signpost.invalid:6443 ";
    let path = kubeconfig(behind, "");
    begins(&run(&path, &[("HTTPS_PROXY", proxy.as_str())]), connect);
    let path = kubeconfig(behind, &format!(", proxy-url: '{proxy}'"));
    begins(&run(&path, &[]), connect);
    // That exempts the proxy itself, not the API server.
    let path = kubeconfig(behind, "");
    let of_proxy = [("HTTPS_PROXY", proxy.as_str()), ("NO_PROXY", "127.0.0.1")];
    begins(&run(&path, &of_proxy), connect);
    let exempt = [
        ("HTTPS_PROXY", proxy.as_str()),
        ("NO_PROXY", "10.0.0.0/8,.invalid"),
    ];
    let output = run(&path, &exempt);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("no answer from http://signpost.invalid:6443/"),
        "{errors}"
    );
    assert_eq!(server.requests(), [""; 0]);
}

/// Failure story T460.
#[test]
fn t460_empty_entries_exempt_nothing_and_fail_nothing() {
    let server = Server::start(|_| None);
    let proxy = server.url();
    let directory = tempfile::tempdir().expect("a directory");
    let path = write_kubeconfig(directory.path(), "http://signpost.invalid:6443", "");
    for name in ["NO_PROXY", "no_proxy"] {
        for list in [",", " ", ",10.0.0.0/8", "10.0.0.0/8, ,example.com,"] {
            let output = run(&path, &[("HTTPS_PROXY", proxy.as_str()), (name, list)]);
            let errors = String::from_utf8_lossy(&output.stderr);
            let requests = server.requests();
            let first = requests.first().map_or("", String::as_str);
            let connect = "CONNECT signpost.invalid:6443 ";
            assert!(first.starts_with(connect), "{list}: {first:?}: {errors}");
        }
        let exempt = [("HTTPS_PROXY", proxy.as_str()), (name, ",.invalid,")];
        let output = run(&path, &exempt);
        let errors = String::from_utf8_lossy(&output.stderr);
        let unanswered = "no answer from http://signpost.invalid:6443/";
        assert!(errors.contains(unanswered), "{errors}");
        assert_eq!(server.requests(), [""; 0]);
    }
}
