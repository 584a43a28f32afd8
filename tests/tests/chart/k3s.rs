//! An API server that reports the version of k3s. The chart reads nothing but the version, which
//! the real API server of these tests cannot change, so this server answers that request itself and
//! forwards all others.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::control_plane::{ADMINISTRATOR, ControlPlane};

/// Forwards requests to the real API server.
#[derive(Debug, Clone)]
struct Behind {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    /// The reported version.
    version: String,
}

/// Starts to serve in a thread that ends with the process; returns the URL.
pub(crate) fn serve(control_plane: &ControlPlane, version: &str) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("failed to listen")?;
    let url = format!("http://{}", listener.local_addr()?);
    let behind = Behind {
        kubectl: control_plane.programs().join("kubectl"),
        kubeconfig: control_plane.kubeconfig(ADMINISTRATOR)?,
        version: version.to_owned(),
    };
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let behind = behind.clone();
            // A client whose connection broke retries.
            thread::spawn(move || drop(behind.answer(stream)));
        }
    });
    Ok(url)
}

// === impl Behind ===

impl Behind {
    fn answer(&self, mut stream: TcpStream) -> Result<()> {
        let lines = BufReader::new(stream.try_clone()?).lines();
        let head: Vec<String> = lines
            .map_while(Result::ok)
            .take_while(|line| !line.is_empty())
            .collect();
        let path = head.first().and_then(|line| line.split(' ').nth(1));
        let path = path.context("a request has a path")?;
        let answer = match path.split('?').next() {
            Some("/version") => Ok(self.version()),
            _ => self.get(path),
        };
        let (status, body) = match answer {
            Ok(body) => ("200 OK", body),
            Err(_) => ("404 Not Found", not_found()),
        };
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )?;
        Ok(())
    }

    fn get(&self, path: &str) -> Result<String> {
        let output = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["get", "--raw", path])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()?;
        ensure!(output.status.success(), "the API server has no {path}");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn version(&self) -> String {
        json!({"major": "1", "minor": "34", "gitVersion": self.version}).to_string()
    }
}

fn not_found() -> String {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404})
        .to_string()
}
