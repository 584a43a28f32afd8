//! Commands reach an API server behind a proxy.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::mpsc;
use std::thread;

/// The answer of the API server to every request.
const FORBIDDEN: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"it is forbidden","reason":"Forbidden","code":403}"#;

/// Starts an API server that is a proxy as well; returns the first line of each request.
fn start() -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let address = listener.local_addr().expect("it listens");
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let sender = sender.clone();
            thread::spawn(move || answer(&stream, &sender));
        }
    });
    (address, lines)
}

/// Answers the requests of one connection, until it ends.
fn answer(stream: &TcpStream, sender: &mpsc::Sender<String>) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(request) = lines.next() {
        // The headers; the requests have no body.
        lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
        let is_connect = request.starts_with("CONNECT ");
        let answer = match is_connect {
            true => "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
            false => format!(
                "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{FORBIDDEN}",
                FORBIDDEN.len()
            ),
        };
        // The test may have ended.
        let _ = sender.send(request);
        let mut stream = stream;
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Runs a command with one request, and with no other variables for proxies than these.
fn run(kubeconfig: &Path, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-signpost"));
    command.arg("--kubeconfig").arg(kubeconfig);
    command.args(["rollout", "history", "default"]);
    for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    command.output().expect("the program runs")
}

/// Failure story T432.
#[test]
fn t432_commands_go_through_a_proxy_unless_the_server_is_exempt() {
    let (address, lines) = start();
    let proxy = format!("http://{address}");
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = |server: &str, more: &str| {
        let path = directory.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
             clusters: [{{name: c, cluster: {{server: '{server}'{more}}}}}]\n\
             users: [{{name: u, user: {{token: secret}}}}]\n\
             contexts: [{{name: here, context: {{cluster: c, user: u}}}}]\n"
        );
        fs::write(&path, text).expect("a file");
        path
    };
    let begins = |output: &Output, expected: &str| {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let first = lines.try_recv().unwrap_or_default();
        assert!(first.starts_with(expected), "{first:?}: {errors}");
        assert!(errors.contains("it is forbidden"), "{errors}");
        lines.try_iter().for_each(drop);
    };
    // Nothing resolves this name: only the proxy can reach it.
    let server = "http://signpost.invalid:6443";
    let connect = "CONNECT signpost.invalid:6443 ";
    let path = kubeconfig(server, "");
    begins(&run(&path, &[("HTTPS_PROXY", &proxy)]), connect);
    let path = kubeconfig(server, &format!(", proxy-url: '{proxy}'"));
    begins(&run(&path, &[]), connect);
    let path = kubeconfig(&proxy, "");
    let exempt = [("HTTPS_PROXY", "http://127.0.0.1:1"), ("NO_PROXY", "127.0.0.1")];
    begins(&run(&path, &exempt), "GET /apis/signpost.dev/");
}
