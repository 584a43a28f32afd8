//! A server on loopback: an API server, and a proxy that leads to itself.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// Returns the object for a request, by its first line; `None` if the user may not have it.
type Answers = fn(&str) -> Option<Value>;

pub(crate) struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) fn start(answers: Answers) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let address = listener.local_addr().expect("it listens");
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let heard = Arc::clone(&heard);
                thread::spawn(move || serve(&stream, answers, &heard));
            }
        });
        Server { address, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Takes the first lines of the requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        mem::take(&mut *self.requests.lock().expect("no thread panicked"))
    }
}

/// Answers the requests of one connection until it ends.
fn serve(mut stream: &TcpStream, answers: Answers, heard: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream);
    while let Ok(Some(request)) = take_request(&mut reader) {
        let is_connect = request.starts_with("CONNECT ");
        let answer = match (is_connect, answers(&request)) {
            (true, _) => "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
            (false, Some(object)) => respond("200 OK", &object),
            (false, None) => respond(
                "403 Forbidden",
                &json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": "it is forbidden", "reason": "Forbidden", "code": 403,
                }),
            ),
        };
        heard.lock().expect("no thread panicked").push(request);
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Reads one request; returns its first line, or `None` at the end of the connection.
fn take_request(reader: &mut BufReader<&TcpStream>) -> io::Result<Option<String>> {
    let mut length = 0;
    let mut first = None;
    for line in reader.by_ref().lines() {
        let line = line?;
        let header = line.to_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.is_empty() {
            break;
        }
        first.get_or_insert(line);
    }
    io::copy(&mut reader.take(length), &mut io::sink())?;
    Ok(first)
}

fn respond(status: &str, object: &Value) -> String {
    let body = object.to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Writes a kubeconfig for `server`, with `more` settings of its cluster.
pub(crate) fn write_kubeconfig(directory: &Path, server: &str, more: &str) -> PathBuf {
    let path = directory.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         clusters: [{{name: c, cluster: {{server: '{server}'{more}}}}}]\n\
         users: [{{name: u, user: {{token: secret}}}}]\n\
         contexts: [{{name: here, context: {{cluster: c, user: u}}}}]\n"
    );
    fs::write(&path, text).expect("a file");
    path
}
