use std::env::{self, VarError};
use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::{fs, process};

use axum::extract::Request;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::error_chain::tests::assert_no_doubling;
use crate::http_server::{ConnectionLimit, serve_on};
use crate::metrics::Metrics;
use tokio_util::sync::CancellationToken;

const BUILD: BuildInfo = BuildInfo {
    program: "signpost-agent",
    version: "0.1.0",
};

/// A kubeconfig file that is removed when this is dropped.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn with(text: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("runtime-client-{}-{number}.yaml", process::id()));
        fs::write(&path, text).expect("the temporary directory can be written");
        TemporaryFile(path)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn kubeconfig(server: &str) -> TemporaryFile {
    TemporaryFile::with(&format!(
        "apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: c, cluster: {{server: '{server}'}}}}]
users: [{{name: u, user: {{token: secret}}}}]
contexts:
- {{name: here, context: {{cluster: c, user: u}}}}
- {{name: broken, context: {{cluster: nowhere, user: u}}}}
"
    ))
}

async fn open(path: &Path, context: Option<&str>) -> (Metrics, Result<Client, ClientError>) {
    let metrics = Metrics::new(&BUILD);
    let rest = RestClientMetrics::register(&metrics);
    let context = context.map(str::to_owned);
    let source = ClientSource::Kubeconfig {
        path: path.to_owned(),
        context,
    };
    let client = open_client(&source, &BUILD, &rest).await;
    (metrics, client)
}

#[tokio::test]
async fn it_reaches_the_server_says_who_it_is_and_counts() {
    let agents = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&agents);
    let version = async move |request: Request| {
        let agent = request.headers().get(header::USER_AGENT).cloned();
        heard.lock().expect("no test panicked").push(agent);
        Json(json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.2", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        }))
    };
    let routes = Router::new().route("/version", get(version));
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("loopback has free ports");
    let address = listener.local_addr().expect("it listens");
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    let server = tokio::spawn(serve_on(listener, routes, ConnectionLimit::new(8), stop));

    let file = kubeconfig(&format!("http://{address}"));
    let (metrics, client) = open(&file.0, None).await;
    let client = client.expect("the kubeconfig is whole");
    let version = client
        .apiserver_version()
        .await
        .expect("the server answers");

    assert_eq!(version.git_version, "v1.36.2");
    let agents = agents.lock().expect("no test panicked").clone();
    let agent = agents[0]
        .as_ref()
        .expect("there is a user agent")
        .to_str()
        .expect("it is text")
        .to_owned();
    assert!(agent.starts_with("signpost-agent/0.1.0 (linux/"), "{agent}");
    let text = metrics.scrape().expect("metrics encode");
    let sample =
        format!("rest_client_requests_total{{code=\"200\",method=\"GET\",host=\"{address}\"}} 1");
    assert!(
        text.lines().any(|line| line == sample),
        "no {sample} in\n{text}"
    );

    stopper.cancel();
    server.await.expect("the server does not panic");
}

#[tokio::test]
async fn a_file_that_is_missing_or_garbled_is_named() {
    let (_, client) = open(Path::new("/nonexistent/kubeconfig"), None).await;
    assert_says(
        client,
        &[
            "failed to read kubeconfig /nonexistent/kubeconfig",
            "No such file",
        ],
    );

    let file = TemporaryFile::with("clusters: {");
    let (_, client) = open(&file.0, None).await;
    assert_says(
        client,
        &["failed to read kubeconfig", &file.0.display().to_string()],
    );
}

#[tokio::test]
async fn a_context_that_cannot_be_used_is_named() {
    let file = kubeconfig("http://127.0.0.1:1");
    let path = file.0.display().to_string();
    let (_, client) = open(&file.0, Some("elsewhere")).await;
    assert_says(client, &["context \"elsewhere\"", &path]);
    let (_, client) = open(&file.0, Some("broken")).await;
    assert_says(client, &["context \"broken\"", &path, "nowhere"]);

    let file = kubeconfig("http://not a url");
    let (_, client) = open(&file.0, None).await;
    assert_says(client, &["context \"here\"", "failed to parse cluster url"]);
}

#[test]
fn outside_a_pod_the_missing_kubeconfig_is_named() {
    let error = ClientError::InCluster(InClusterError::ReadEnvironmentVariable(
        VarError::NotPresent,
    ));
    assert_says(
        Err(error),
        &["no kubeconfig is given", "environment variable"],
    );
}

#[test]
fn without_a_file_it_is_the_programs_own_pod() {
    assert_eq!(ClientSource::from(None), ClientSource::InCluster);
    let expected = ClientSource::Kubeconfig {
        path: "/k".into(),
        context: None,
    };
    assert_eq!(ClientSource::from(Some("/k".into())), expected);
}

#[track_caller]
fn assert_says(client: Result<Client, ClientError>, words: &[&str]) {
    let Err(error) = client else {
        panic!("a client was made")
    };
    let text = assert_no_doubling(&error as &(dyn Error + 'static));
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text:?}");
    }
}

/// Failure story T432.
#[tokio::test]
async fn t432_a_proxy_is_named_with_what_sets_it() {
    let file = kubeconfig("https://signpost.invalid:1");
    let text = fs::read_to_string(&file.0).expect("the file is there");
    let with_proxy = text.replace("server:", "proxy-url: 'http://127.0.0.1:2', server:");
    let file = TemporaryFile::with(&with_proxy);
    let (_, client) = open(&file.0, None).await;
    let server = "https://signpost.invalid:1/";
    assert_says(client, &[server, "proxy-url", "HTTPS_PROXY", "https_proxy"]);
}
