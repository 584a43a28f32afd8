//! Objects and addresses on the command line, checked before any cluster is asked. Pure.

use std::net::{IpAddr, SocketAddr};

/// A kind of object that a command line names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A Pod.
    Pod,
    /// A Service.
    Service,
    /// A Node.
    Node,
}

/// An object as it is named, with its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: &'a str,
    /// The port behind it.
    pub port: Option<&'a str>,
}

/// How to name objects.
pub const REFERENCES: &str =
    "write svc/NAME, pod/NAME or node/NAME, with :PORT behind where it is a destination";
/// How to name a subject of `explain`.
pub const SUBJECTS: &str = "write svc/NAME[:PORT], ADDRESS[:PORT[/PROTOCOL]], node:PORT for a node port, or 'FWM MARK' for a virtual server";
/// How to name a sender.
const SENDERS: &str =
    "write pod/NAME, node/NAME, an address, or an origin with one, as 'outside 203.0.113.9'";
/// How to name a destination.
const DESTINATIONS: &str =
    "write svc/NAME:PORT, pod/NAME:PORT, node/NAME:PORT or ADDRESS:PORT[/PROTOCOL]";

/// Parses `svc/web:80`, `pod/a` and `node/n1:30080`. Returns `None` for a text of another form.
///
/// # Errors
///
/// It has that form, but no name or no port.
pub fn parse(text: &str) -> Result<Option<Named<'_>>, String> {
    let Some((kind, rest)) = text.split_once('/') else {
        return Ok(None);
    };
    let kind = match kind {
        "po" | "pod" | "pods" => Kind::Pod,
        "svc" | "service" | "services" => Kind::Service,
        "no" | "node" | "nodes" => Kind::Node,
        _ => return Ok(None),
    };
    let (name, port) = match rest.split_once(':') {
        None => (rest, None),
        Some((name, port)) => (name, Some(port)),
    };
    match name.is_empty() || port.is_some_and(str::is_empty) {
        true => Err(format!("{text:?} names no object")),
        false => Ok(Some(Named { kind, name, port })),
    }
}

/// Checks the subject of `explain`.
pub(super) fn subject(text: &str) -> Result<String, String> {
    let is_subject = match parse(text).map_err(|error| advise(&error, SUBJECTS))? {
        Some(named) => named.kind == Kind::Service,
        None => is_service(text) || is_place(text) || is_mark(text),
    };
    checked(text, is_subject, SUBJECTS)
}

/// Checks the sender of a packet.
pub(super) fn sender(text: &str) -> Result<String, String> {
    let is_sender = match parse(text).map_err(|error| advise(&error, SENDERS))? {
        Some(named) => named.kind != Kind::Service,
        None => {
            let sender = text.split_once(" via ").map_or(text, |(sender, _)| sender);
            let address = sender.split_whitespace().last();
            address.is_some_and(|address| address.parse::<IpAddr>().is_ok())
        }
    };
    checked(text, is_sender, SENDERS)
}

/// Checks the destination of a packet.
pub(super) fn destination(text: &str) -> Result<String, String> {
    let is_destination = match parse(text).map_err(|error| advise(&error, DESTINATIONS))? {
        // The only port of a Service need not be named.
        Some(named) => named.kind == Kind::Service || named.port.is_some(),
        None => is_place(text) && text.contains(':') && text.parse::<IpAddr>().is_err(),
    };
    checked(text, is_destination, DESTINATIONS)
}

fn checked(text: &str, is_right: bool, next: &str) -> Result<String, String> {
    match is_right {
        true => Ok(text.to_owned()),
        false => Err(next.to_owned()),
    }
}

fn advise(error: &str, next: &str) -> String {
    format!("{error}; {next}")
}

/// Whether it is NAMESPACE/NAME[:PORT], in the agent's syntax.
fn is_service(text: &str) -> bool {
    let Some((namespace, name)) = text.split_once('/') else {
        return false;
    };
    super::is_label(namespace) && name.split(':').all(|part| !part.is_empty())
}

/// Whether it is an address or a node port, perhaps with port and protocol.
fn is_place(text: &str) -> bool {
    let place = text.rsplit_once('/').map_or(text, |(place, _)| place);
    match place.strip_prefix("node:") {
        Some(port) => port.parse::<u16>().is_ok(),
        None => {
            let bare = place.trim_start_matches('[').trim_end_matches(']');
            place.parse::<SocketAddr>().is_ok() || bare.parse::<IpAddr>().is_ok()
        }
    }
}

/// Whether it may be the mark of a virtual server.
fn is_mark(text: &str) -> bool {
    let word = text.split_whitespace().next().unwrap_or_default();
    word.starts_with("0x") || word.eq_ignore_ascii_case("fwm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_nothing_is_refused_with_what_to_write() {
        for text in [
            "web", "svc/", "svc/web:", "pod/a", "node/n1", "node:x", "/web", "shop/", "10.0.0", "",
        ] {
            let error = subject(text).expect_err(text);
            assert!(error.contains("svc/NAME"), "{error}");
        }
        for text in ["web", "svc/web", "outside", "pod/", "10.0.0.1:80"] {
            let error = sender(text).expect_err(text);
            assert!(error.contains("pod/NAME"), "{error}");
        }
        for text in [
            "web", "10.0.0.1", "fd00::1", "pod/a", "node/n1", "svc/", "svc/web:", "node:",
        ] {
            let error = destination(text).expect_err(text);
            assert!(error.contains("svc/NAME"), "{error}");
        }
    }

    #[test]
    fn what_the_agent_understands_is_left_to_it() {
        for text in [
            "svc/web",
            "service/web:http",
            "shop/web:80",
            "10.96.0.10",
            "10.96.0.10:80/tcp",
            "[fd00::1]:53/udp",
            "fd00::1",
            "10.96.0.10/udp",
            "node:30080",
            "node:30080/tcp",
            "FWM 1396703233",
            "fwm 1396703233 IPv6",
            "0x53400001",
        ] {
            assert_eq!(subject(text).as_deref(), Ok(text));
        }
        for text in [
            "pod/a",
            "node/n1",
            "no/n1",
            "10.0.0.1",
            "fd00::1",
            "outside 203.0.113.9",
            "remote-pod 10.0.1.9 via eth0",
        ] {
            assert_eq!(sender(text).as_deref(), Ok(text));
        }
        for text in [
            "svc/web",
            "svc/web:http",
            "pod/a:80",
            "node/n1:30080/udp",
            "10.0.0.1:443",
            "[fd00::1]:53/udp",
            "node:30080/tcp",
        ] {
            assert_eq!(destination(text).as_deref(), Ok(text));
        }
    }
}
