//! The outcome of one connection for a client.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::str::FromStr;

/// The outcome of one TCP connection, or of one UDP datagram and the wait for its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A server answered.
    Answered {
        /// The name of the server, without spaces.
        server: String,
        /// The server's own address.
        at: SocketAddr,
        /// The client's address as the server received it.
        saw: SocketAddr,
    },
    /// The connection was refused: a reset, or an ICMP or ICMPv6 port unreachable error.
    Refused,
    /// No answer arrived in time.
    TimedOut,
    /// Another error, by its name without the operating system's message.
    Failed(String),
}

impl Outcome {
    /// Classifies an error.
    pub fn of_error(error: &io::Error) -> Outcome {
        match error.kind() {
            ErrorKind::ConnectionRefused => Outcome::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Outcome::TimedOut,
            kind => match error.raw_os_error() {
                Some(number) => Outcome::Failed(format!("{kind:?} ({number})")),
                None => Outcome::Failed(format!("{kind:?}")),
            },
        }
    }
}

impl fmt::Display for Outcome {
    /// `answered by NAME at ADDRESS saw ADDRESS`, `refused`, `timed out`, `failed: ERROR`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Answered { server, at, saw } => {
                write!(f, "answered by {server} at {at} saw {saw}")
            }
            Outcome::Refused => f.write_str("refused"),
            Outcome::TimedOut => f.write_str("timed out"),
            Outcome::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}

impl FromStr for Outcome {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Outcome, anyhow::Error> {
        if let Some(error) = text.strip_prefix("failed: ") {
            return Ok(Outcome::Failed(error.to_owned()));
        }
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["refused"] => Ok(Outcome::Refused),
            ["timed", "out"] => Ok(Outcome::TimedOut),
            ["answered", "by", server, "at", at, "saw", saw] => Ok(Outcome::Answered {
                server: server.to_owned(),
                at: at.parse()?,
                saw: saw.parse()?,
            }),
            _ => anyhow::bail!("{text:?} is not an outcome"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Outcome;

    #[test]
    fn an_outcome_reads_back_as_it_prints() {
        for text in [
            "answered by web-1 at 10.0.1.5:8080 saw 203.0.113.2:40000",
            "answered by web-1 at [fd00:10:0:1::5]:8080 saw [2001:db8:113::2]:40000",
            "refused",
            "timed out",
            "failed: HostUnreachable (113)",
        ] {
            let outcome: Outcome = text.parse().expect("the texts above are outcomes");
            assert_eq!(outcome.to_string(), text);
        }
        assert!("answered by web-1".parse::<Outcome>().is_err());
    }
}
