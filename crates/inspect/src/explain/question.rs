//! The questions that `explain` answers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use dataplane::{Family, FrontendKey, Port, Protocol, ServiceKey};
use thiserror::Error;

/// A Service, an address or the mark of a virtual server, as users write them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// `namespace/name` or `namespace/name:port`.
    Service {
        /// The Service.
        service: ServiceKey,
        /// The name of one of its ports, or its number.
        port: Option<String>,
    },
    /// `10.96.0.10`, `10.96.0.10:80` or `10.96.0.10:80/tcp`: a frontend, an endpoint, or both.
    Address {
        /// The address.
        address: IpAddr,
        /// The port, if the question is about one.
        port: Option<Port>,
        /// The protocol, if the question is about one.
        protocol: Option<Protocol>,
    },
    /// `node:30080` or `node:30080/tcp`.
    NodePort {
        /// The port.
        port: Port,
        /// The protocol, if the question is about one.
        protocol: Option<Protocol>,
    },
    /// `FWM 1396703300` or `FWM 1396703300 IPv6`, as `ipvsadm -Ln` prints virtual servers, or
    /// `0x53400044`.
    Mark {
        /// The mark.
        mark: u32,
        /// The family, if the question is about one: each has its own virtual servers.
        family: Option<Family>,
    },
}

/// The error for a text that is none of these.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} is not namespace/name[:port], ADDRESS[:PORT[/PROTOCOL]], node:PORT[/PROTOCOL] or 'FWM MARK'"
)]
pub struct ParseQuestionError {
    text: String,
}

// === impl Question ===

impl Question {
    /// Returns the single frontend that the question names, if it is an address with port and
    /// protocol.
    pub fn frontend(&self) -> Option<FrontendKey> {
        match self {
            Question::Address {
                address,
                port: Some(port),
                protocol: Some(protocol),
            } => Some(FrontendKey::Address {
                address: *address,
                protocol: *protocol,
                port: *port,
            }),
            _ => None,
        }
    }

    /// Returns whether `key` is a frontend that the question is about.
    pub fn is_about(&self, key: &FrontendKey) -> bool {
        let protocol_matches =
            |desired: &Option<Protocol>| desired.is_none_or(|desired| desired == key.protocol());
        match (self, key) {
            (
                Question::Address {
                    address,
                    port,
                    protocol,
                },
                FrontendKey::Address { address: own, .. },
            ) => {
                address == own
                    && port.is_none_or(|port| port == key.port())
                    && protocol_matches(protocol)
            }
            (Question::NodePort { port, protocol }, FrontendKey::NodePort { .. }) => {
                *port == key.port() && protocol_matches(protocol)
            }
            _ => false,
        }
    }
}

impl FromStr for Question {
    type Err = ParseQuestionError;

    fn from_str(text: &str) -> Result<Question, ParseQuestionError> {
        parse_mark(text)
            .or_else(|| parse_place(text))
            .or_else(|| parse_service(text))
            .ok_or_else(|| ParseQuestionError {
                text: text.to_owned(),
            })
    }
}

/// Parses the mark of a virtual server, whose family `ipvsadm` names if it is IPv6.
fn parse_mark(text: &str) -> Option<Question> {
    if let Some(mark) = text.strip_prefix("0x") {
        let mark = u32::from_str_radix(mark, 16).ok()?;
        return Some(Question::Mark { mark, family: None });
    }
    let mut words = text.split_whitespace();
    let is_mark = words.next()?.eq_ignore_ascii_case("fwm");
    let mark = words.next().filter(|_| is_mark)?;
    let mark = match mark.strip_prefix("0x") {
        Some(mark) => u32::from_str_radix(mark, 16).ok()?,
        None => mark.parse().ok()?,
    };
    let family = match words.next() {
        None => None,
        Some(family) => {
            let mut all = Family::ALL.into_iter();
            Some(all.find(|known| known.to_string().eq_ignore_ascii_case(family))?)
        }
    };
    let is_all = words.next().is_none();
    is_all.then_some(Question::Mark { mark, family })
}

/// Parses an address or a node port. A Service's name is neither, whatever its namespace is called.
fn parse_place(text: &str) -> Option<Question> {
    let (place, protocol) = match text.rsplit_once('/') {
        Some((place, protocol)) => (place, Some(parse_protocol(protocol)?)),
        None => (text, None),
    };
    if let Some(port) = place.strip_prefix("node:") {
        let port = port.parse().ok().and_then(Port::new)?;
        return Some(Question::NodePort { port, protocol });
    }
    if let Ok(socket) = place.parse::<SocketAddr>() {
        return Some(Question::Address {
            address: socket.ip(),
            port: Some(Port::new(socket.port())?),
            protocol,
        });
    }
    let bare = place.trim_start_matches('[').trim_end_matches(']');
    Some(Question::Address {
        address: bare.parse().ok()?,
        port: None,
        protocol,
    })
}

fn parse_service(text: &str) -> Option<Question> {
    let (namespace, rest) = text.split_once('/')?;
    let (name, port) = match rest.split_once(':') {
        Some((name, port)) => (name, Some(port.to_owned())),
        None => (rest, None),
    };
    let is_name = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
    let is_port = port.as_ref().is_none_or(|port| !port.is_empty());
    (is_name && is_port).then(|| Question::Service {
        service: ServiceKey::new(namespace, name),
        port,
    })
}

/// Returns the protocol with this name, as Signpost prints it; the case is ignored.
pub(crate) fn parse_protocol(name: &str) -> Option<Protocol> {
    let mut known = Protocol::ALL.into_iter();
    known.find(|protocol| protocol.to_string() == name.to_lowercase())
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self {
            Question::Service { service, port } => {
                service.fmt(f)?;
                return match port {
                    Some(port) => write!(f, ":{port}"),
                    None => Ok(()),
                };
            }
            Question::Address {
                address,
                port,
                protocol,
            } => {
                match port {
                    Some(port) => SocketAddr::new(*address, port.get()).fmt(f)?,
                    None => address.fmt(f)?,
                }
                protocol
            }
            Question::NodePort { port, protocol } => {
                write!(f, "node:{port}")?;
                protocol
            }
            Question::Mark { mark, family } => {
                write!(f, "FWM {mark}")?;
                return match family {
                    Some(family) => write!(f, " {family}"),
                    None => Ok(()),
                };
            }
        };
        match protocol {
            Some(protocol) => write!(f, "/{protocol}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_reads_as_it_prints() {
        for text in [
            "shop/cart",
            "shop/cart:http",
            "10.96.0.10",
            "10.96.0.10:80",
            "10.96.0.10:80/tcp",
            "[fd00:10:96::10]:53/udp",
            "fd00:10:96::10",
            "node:30080",
            "node:30080/sctp",
            "FWM 1396703300",
            "FWM 1396703300 IPv6",
        ] {
            let question: Question = text.parse().expect("a question");
            assert_eq!(question.to_string(), text);
        }
    }

    #[test]
    fn a_namespace_called_node_is_no_node_port() {
        let question: Question = "node/web:http".parse().expect("a question");
        assert!(matches!(question, Question::Service { .. }), "{question:?}");
    }

    #[test]
    fn a_mark_is_read_as_ipvsadm_and_as_nft_print_it() {
        for text in ["fwm 1396703300", "0x53400044", "FWM  0x53400044"] {
            let question: Question = text.parse().expect("a question");
            assert_eq!(question.to_string(), "FWM 1396703300", "{text}");
        }
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for text in [
            "cart",
            "/cart",
            "shop/",
            "shop/cart:",
            "a/b/c",
            "10.96.0.10:0",
            "node:0",
            "FWM",
            "FWM 4294967296",
            "FWM 1 IPv5",
            "FWM 1 IPv6 rr",
            "0x",
            "1396703300",
        ] {
            assert!(text.parse::<Question>().is_err(), "{text}");
        }
    }
}
